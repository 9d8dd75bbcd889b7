"""Every row of "Who unloads whom", over every pair of the sample configuration."""

from __future__ import annotations

import pytest

from swapd.core.groups import GroupRules
from swapd.core.spec import Catalog, Group, ModelSpec, Policy

GROUPS = {
    "swapping": Group("swapping", ("s1", "s2"), swap=True, exclusive=False),
    "duo": Group("duo", ("d1", "d2"), swap=False, exclusive=True),
    "pinned": Group("pinned", ("p1", "p2"), swap=True, exclusive=False, persistent=True),
}
MODELS = ["s1", "s2", "d1", "d2", "p1", "p2", "u1", "u2"]

# For each target: what the table unloads, then what is protected from it.
TABLE = {
    # a group that swaps, not exclusive: its sibling alone
    "s1": ({"s2"}, {"p1", "p2"}),
    "s2": ({"s1"}, {"p1", "p2"}),
    # members stay together; everybody outside goes
    "d1": ({"s1", "s2", "p1", "p2", "u1", "u2"}, {"p1", "p2"}),
    "d2": ({"s1", "s2", "p1", "p2", "u1", "u2"}, {"p1", "p2"}),
    # its group's protection does not hold against its own siblings
    "p1": ({"p2"}, set()),
    "p2": ({"p1"}, set()),
    # in no group: the whole exclusive group goes, others by headroom alone
    "u1": ({"d1", "d2"}, {"p1", "p2"}),
    "u2": ({"d1", "d2"}, {"p1", "p2"}),
}


def rules(ungrouped: str = "headroom", persistent: tuple[str, ...] = ()) -> GroupRules:
    models = {m: ModelSpec(m, persistent=m in persistent) for m in MODELS}
    return GroupRules(Catalog(models, GROUPS, Policy(ungrouped=ungrouped)))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", MODELS)
def test_the_table_says_who_goes_for_every_pair(target: str) -> None:
    others = [m for m in MODELS if m != target]
    assert {r for r in others if rules().unloads(target, r)} == TABLE[target][0]
    assert {r for r in others if rules().protects(target, r)} == TABLE[target][1]


@pytest.mark.parametrize("target", ["u1", "u2"])
def test_ungrouped_models_swap_like_llama_swap_when_told_so(target: str) -> None:
    other = "u2" if target == "u1" else "u1"
    unloaded = {r for r in MODELS if r != target and rules("swap").unloads(target, r)}
    assert unloaded == {"s1", "s2", "d1", "d2", "p1", "p2", other}


def test_a_model_of_its_own_persistence_is_protected_from_every_other() -> None:
    assert all(rules(persistent=("u1",)).protects(target, "u1") for target in MODELS if target != "u1")


def test_only_a_persistent_sibling_in_a_swap_group_bars_for_good() -> None:
    found = rules(persistent=("s1", "d1", "u1"))
    barred = {(t, r) for t in MODELS for r in MODELS if t != r and found.bars(t, r)}
    assert barred == {("s2", "s1")}


def test_reasons_name_the_rule() -> None:
    assert rules().unloads("s1", "s2") == "group 'swapping' swaps its members"
    assert rules().unloads("d1", "u1") == "group 'duo' is exclusive"
    assert rules().unloads("u1", "d1") == "it is in the exclusive group 'duo'"

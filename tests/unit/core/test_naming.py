"""What a name means: every step against the next, and what selectors and edits make of it."""

from __future__ import annotations

import itertools

import pytest

from swapd.core.endpoint import Upstream
from swapd.core.naming import Edit, Names, Pattern, Peer, Selector, Step, choose, looks, meaning_of, merged

STEPS = list(Step)
NAME = "box/it"
"""A name that every step can mean."""


def names_with(steps: set[Step]) -> tuple[Names, dict[str, frozenset[str]]]:
    """A configuration in which exactly these steps find ``NAME``, each something of its own."""
    peer = Peer("box", "http://box:1", Upstream(host="box", port=1), "box:1")
    names = Names(
        models=("by pin", "by variant", "by alias", "by pattern", *([NAME] if Step.MODEL in steps else [])),
        variants={NAME: "by variant"} if Step.VARIANT in steps else {},
        aliases={NAME: "by alias"} if Step.ALIAS in steps else {},
        patterns=(Pattern("box*", "by pattern"),) if Step.PATTERN in steps else (),
        selectors={NAME: Selector(NAME, ("by pin",))} if Step.SELECTOR in steps else {},
        profiles={"night": {NAME: "by pin"}} if Step.PIN in steps else {},
        peers={"box": peer} if Step.AT_PEER in steps else {},
    )
    return names, {"other": frozenset({NAME})} if Step.PEERS_MODEL in steps else {}


@pytest.mark.parametrize(("first", "then"), list(itertools.combinations(STEPS, 2)), ids=lambda step: step.name)
def test_of_two_steps_that_know_a_name_the_earlier_one_counts(first: Step, then: Step) -> None:
    names, at_peers = names_with({first, then})
    found = meaning_of(NAME, names, "night", at_peers)
    assert found is not None and found.by is first
    told = looks(NAME, names, "night", at_peers)
    assert [look.step for look in told] == STEPS[: STEPS.index(first) + 1]
    assert told[-1].found == found.why and not any(look.found for look in told[:-1])


@pytest.mark.parametrize(
    ("step", "model", "variant", "peer"),
    [
        (Step.PIN, "by pin", "", ""),
        (Step.MODEL, NAME, "", ""),
        (Step.VARIANT, "by variant", NAME, ""),
        (Step.ALIAS, "by alias", "", ""),
        (Step.SELECTOR, "", "", ""),
        (Step.AT_PEER, "it", "", "box"),
        (Step.PEERS_MODEL, NAME, "", "other"),
        (Step.PATTERN, "by pattern", "", ""),
    ],
)
def test_what_each_step_finds(step: Step, model: str, variant: str, peer: str) -> None:
    names, at_peers = names_with({step})
    found = meaning_of(NAME, names, "night", at_peers)
    assert found is not None
    assert (found.by, found.model, found.variant, found.peer) == (step, model, variant, peer)
    assert (found.selector is not None) is (step is Step.SELECTOR)


def test_one_step_only_what_an_alias_or_a_pin_names_is_not_looked_up_again() -> None:
    names = Names(("a", "b"), aliases={"x": "a"}, profiles={"night": {"a": "b", "b": "a"}})
    meant = {name: meaning_of(name, names, "night") for name in ("x", "a", "b")}
    assert {name: found.model for name, found in meant.items() if found} == {"x": "a", "a": "b", "b": "a"}


def test_pins_of_other_profiles_are_no_pins() -> None:
    names = Names(("a", "b"), profiles={"night": {"a": "b"}, "day": {"x": "a"}})
    assert [f and f.model for f in (meaning_of("a", names, p) for p in (None, "day", "night"))] == ["a", "a", "b"]
    assert meaning_of("x", names, "night") is None


def test_the_first_pattern_in_file_order_counts() -> None:
    names = Names(("a", "b"), patterns=(Pattern("claude-*", "a"), Pattern("claude-*haiku*", "b")))
    found = meaning_of("claude-3-haiku", names)
    assert found is not None and found.model == "a"


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*", ["", "x"], []),
        ("a*", ["a", "ab"], ["ba", ""]),
        ("*a", ["a", "ba"], ["ab"]),
        ("claude-*haiku*", ["claude-haiku", "claude-3-5-haiku-2024"], ["claude-", "haiku", "xclaude-haiku"]),
        ("a*b*a", ["aba", "a-b-a"], ["ab", "aa", "a-a"]),
        ("a*a", ["aa", "axa"], ["a"]),
        ("gpt-4[o]?*", ["gpt-4[o]?", "gpt-4[o]?x"], ["gpt-4o", "gpt-4ox"]),
        ("**", ["", "x"], []),
    ],
)
def test_a_star_is_any_text_and_every_other_sign_is_itself(pattern: str, fits: list[str], does_not: list[str]) -> None:
    assert all(Pattern(pattern, "m").matches(name) for name in fits)
    assert not any(Pattern(pattern, "m").matches(name) for name in does_not)


def test_a_name_made_to_be_slow_is_not() -> None:
    assert not Pattern("*a*a*a*a*a*b", "m").matches("a" * 1_000_000)


@pytest.mark.parametrize("name", ["box", "box/", "/it", "nothing", ""])
def test_what_nothing_means(name: str) -> None:
    names, at_peers = names_with({Step.AT_PEER})
    assert meaning_of(name, names, None, at_peers) is None
    assert [look.step for look in looks(name, names, None, at_peers)] == STEPS


def test_shown_are_ids_variants_and_selectors_but_nothing_unlisted() -> None:
    names = Names(
        ("a", "b"), {"a+": "a", "b+": "b"}, {"x": "a"}, selectors={"s": Selector("s", ("a",))}, unlisted=frozenset("b")
    )
    assert names.listed() == ["a", "a+", "s"]
    assert names.nearest("a++") == "a+" and names.nearest("zzzzz") == ""
    assert names.nearest("bigg", ["big"]) == "big"


# ---- selectors


@pytest.mark.parametrize(
    ("strategy", "states", "full", "chosen"),
    [
        ("warm", ["stopped", "ready", "ready"], "", "b"),
        ("warm", ["starting", "stopped", "ready"], "", "c"),
        ("warm", ["stopped", "starting", "draining"], "", "b"),
        ("warm", ["stopped", "failed", "draining"], "", "a"),
        ("warm", ["stopped", "ready", "ready"], "b", "b"),
        ("pin", ["stopped", "ready", "ready"], "", "a"),
        ("spillover", ["stopped", "ready", "ready"], "", "b"),
        ("spillover", ["stopped", "ready", "ready"], "b", "c"),
        ("spillover", ["stopped", "ready", "ready"], "bc", "b"),
        ("spillover", ["stopped", "starting", "stopped"], "", "b"),
        ("spillover", ["stopped", "stopped", "stopped"], "", "a"),
    ],
)
def test_target_of_a_selector(strategy: str, states: list[str], full: str, chosen: str) -> None:
    state_of = dict(zip("abc", states, strict=True)).__getitem__

    def has_place(model: str) -> bool:
        return state_of(model) == "ready" and model not in full

    assert choose(Selector("s", ("a", "b", "c"), strategy), state_of, has_place) == chosen  # type: ignore[arg-type]


# ---- edits


def test_tables_are_merged_and_anything_else_is_replaced() -> None:
    under = {"a": {"x": 1, "y": {"z": 1}}, "l": [1, 2], "n": 1}
    over = {"a": {"y": {"w": 2}}, "l": [3], "n": {"x": 1}}
    assert merged(under, over) == {"a": {"x": 1, "y": {"z": 1, "w": 2}}, "l": [3], "n": {"x": 1}}
    assert under["a"] == {"x": 1, "y": {"z": 1}}


def test_keys_are_stripped_first_then_the_models_values_then_the_variants() -> None:
    model = Edit(("top_k", "temperature"), {"temperature": 0.2, "chat_template_kwargs": {"tools": True}})
    variant = model.then({"chat_template_kwargs": {"enable_thinking": True}})
    body = {"top_k": 9, "temperature": 1.0, "top_p": 0.5, "chat_template_kwargs": {"enable_thinking": False, "mine": 1}}
    assert model.applied_to(body) == {
        "temperature": 0.2,
        "top_p": 0.5,
        "chat_template_kwargs": {"enable_thinking": False, "mine": 1, "tools": True},
    }
    assert variant.applied_to(body)["chat_template_kwargs"] == {"enable_thinking": True, "mine": 1, "tools": True}
    assert variant.strip == model.strip and not Edit() and Edit(("x",)) and body["top_k"] == 9

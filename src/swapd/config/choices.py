"""What a model leaves to be chosen at its start: ``ctx`` and ``n_cpu_moe`` = "auto", and ladders."""

from __future__ import annotations

from typing import Final

from swapd.config.load import Problems
from swapd.config.schema import Model
from swapd.core.spec import Ladder
from swapd.units import parse_size

TAKEN_BY: Final = {
    "ctx": ("-c", "--ctx-size"),
    "n_cpu_moe": ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor", "-ngl", "--n-gpu-layers"),
}
"""Flags that make the choice already."""


def ladder_of(id_: str, model: Model, problems: Problems) -> Ladder | None:
    """The ladder with the bytes of each step; mistakes of it, and of what is "auto", go to ``problems``."""
    _check_auto(id_, model, problems)
    if model.ladder is None:
        return None
    at, sizes = ("models", id_, "ladder"), list(model.ladder.sizes)
    if "auto" in (model.ctx, model.n_cpu_moe):
        problems.add(at, 'steps down together with an "auto"', "give ctx and n_cpu_moe numbers")
    if not sizes:
        try:
            sizes = [parse_size(step) for step in model.ladder.steps]
        except ValueError as error:
            problems.add((*at, "steps"), str(error), "say what each step takes with sizes = [...]")
            return None
    if len(sizes) != len(model.ladder.steps):
        problems.add((*at, "sizes"), f"{len(sizes)} sizes for {len(model.ladder.steps)} steps", "one for each")
        return None
    if model.ladder.flag in (word.split("=", 1)[0] for word in model.args):
        problems.add((*at, "flag"), f"{model.ladder.flag} is in args as well", "remove it there")
    return Ladder(model.ladder.flag, tuple(model.ladder.steps), tuple(sizes))


def _check_auto(id_: str, model: Model, problems: Problems) -> None:
    """A choice that ``args`` have made already cannot be left open."""
    for key, words in TAKEN_BY.items():
        given = [word for word in model.args if word.split("=", 1)[0] in words]
        if getattr(model, key) == "auto" and given:
            problems.add(("models", id_, key), f'"auto", but args have {given[0]}', "remove one of the two")

"""What a model leaves to be chosen at its start: ``ctx`` and ``n_cpu_moe`` = "auto", and ladders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from swapd.config.load import Problems
from swapd.config.schema import Model
from swapd.core.flags import flag_name
from swapd.core.spec import Ladder
from swapd.units import parse_size

TAKEN_BY: Final = {
    "ctx": frozenset(["-c", "--ctx-size"]),
    "n_cpu_moe": frozenset([
        "-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor", "-ngl", "--gpu-layers",
        "--n-gpu-layers", "-ts", "--tensor-split", "-sm", "--split-mode", "-dev", "--device", "-mg", "--main-gpu",
    ]),
}  # fmt: skip
"""Flags that make the choice already."""


def ladder_of(id_: str, model: Model, args: Sequence[str], problems: Problems) -> Ladder | None:
    """The ladder with the bytes of each step; mistakes of it, and of what is "auto", go to ``problems``.

    ``args``: the model's, those of its binary included.
    """
    given = [flag_name(word) for word in args]
    _check_auto(id_, model, given, problems)
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
    if sorted(sizes, reverse=True) != sizes:
        problems.add((*at, "steps"), "do not step down", "write the largest first")
    if flag_name(model.ladder.flag) in given:
        problems.add((*at, "flag"), f"{model.ladder.flag} is in args as well", "remove it there")
    return Ladder(model.ladder.flag, tuple(model.ladder.steps), tuple(sizes))


def _check_auto(id_: str, model: Model, given: Sequence[str], problems: Problems) -> None:
    """A choice that ``args`` have made already cannot be left open."""
    for key, words in TAKEN_BY.items():
        taken = [word for word in given if word in words]
        if getattr(model, key) == "auto" and taken:
            problems.add(("models", id_, key), f'"auto", but args have {taken[0]}', "remove one of the two")

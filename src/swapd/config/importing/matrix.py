"""llama-swap's matrix: sets of models that may run together; as groups, where groups can say the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import Any, Final, TypeAlias

MAX_SETS: Final = 4096
"""More combinations than anybody means."""

Sets: TypeAlias = list[frozenset[str]]

_TOKEN: Final = re.compile(r"\s*(?:([&|()])|(\+?)([\w.-]+)|(\S))")


def expand(definitions: Mapping[str, str], model_of: Callable[[str], str]) -> dict[str, Sets]:
    """Every named expression as its sets; ``model_of`` gives a name's model, or raises ``ValueError``.

    Raises:
        ValueError: with the name of the set and what is wrong in it.
    """
    done: dict[str, Sets] = {}

    def named(name: str, below: tuple[str, ...]) -> Sets:
        if name in below:
            raise ValueError(f"the set {name!r} contains itself")
        if name not in definitions:
            raise ValueError(f"there is no set {name!r}")
        if name not in done:
            inner = (*below, name)
            done[name] = _Parser(definitions[name], model_of, lambda other: named(other, inner)).parse()
        return done[name]

    for name in definitions:
        try:
            named(name, ())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return {name: done[name] for name in definitions}


class _Parser:
    """``a & b``, ``a | b``, brackets, ``+other``; & binds more tightly."""

    def __init__(self, text: str, model_of: Callable[[str], str], named: Callable[[str], Sets]) -> None:
        self._words = [(op or plus, name) for op, plus, name, _ in map(_checked, _TOKEN.finditer(text.strip()))]
        self._model_of, self._named = model_of, named

    def parse(self) -> Sets:
        found = self._any_of()
        if self._words:
            raise ValueError(f"{''.join(self._words[0])!r} is out of place")
        return found

    def _any_of(self) -> Sets:
        found = self._all_of()
        while self._next_is("|"):
            found = found + self._all_of()
        return list(dict.fromkeys(found))

    def _all_of(self) -> Sets:
        found = self._one()
        while self._next_is("&"):
            other = self._one()
            if len(found) * len(other) > MAX_SETS:
                raise ValueError(f"more than {MAX_SETS} combinations")
            found = [a | b for a, b in product(found, other)]
        return found

    def _next_is(self, operator: str) -> bool:
        if self._words and self._words[0] == (operator, ""):
            self._words.pop(0)
            return True
        return False

    def _one(self) -> Sets:
        operator, name = self._words.pop(0) if self._words else ("the end", "")
        if operator == "(":
            found = self._any_of()
            if not self._next_is(")"):
                raise ValueError("a bracket is not closed")
            return found
        if operator == "+":
            return self._named(name)
        if operator:
            raise ValueError(f"{operator!r} where a name should be")
        return [frozenset([self._model_of(name)])]


def _checked(match: re.Match[str]) -> tuple[str, str, str, str]:
    operator, plus, name, other = (part or "" for part in match.groups())
    if other:
        raise ValueError(f"{other!r} is out of place")
    return operator, plus, name, other


def as_groups(named: Mapping[str, Sets], models: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """Groups that allow exactly the same combinations, the rest of ``models`` running alone; ``None``: there are none.

    Two shapes can be said: sets that share no model, and one of each of several lists (all models in one of them).
    """
    origin = {found: name for name, sets in reversed(list(named.items())) for found in sets if found}
    largest = list(dict.fromkeys(f for sets in named.values() for f in sets if f))
    largest = [found for found in largest if not any(found < other for other in largest)]
    if not any(a & b for a, b in combinations(largest, 2)):
        return _apart(largest, origin, models)
    return _one_of_each(largest, models)


def _apart(largest: Sets, origin: Mapping[frozenset[str], str], models: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for found in largest:
        if len(found) > 1:
            name = origin[found]
            name = name if name not in groups else f"{name}-{len(groups) + 1}"
            groups[name] = {"members": [m for m in models if m in found], "swap": False}
    return groups


def _one_of_each(largest: Sets, models: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    together = {pair for found in largest for pair in product(found, found)}
    lists = {model: tuple(m for m in models if m == model or (m, model) not in together) for model in models}
    kinds = list(dict.fromkeys(lists.values()))
    fits = all(lists[m] == kind for kind in kinds for m in kind) and all(
        len(found & set(kind)) == 1 for found in largest for kind in kinds
    )
    if not fits or len(largest) != prod(len(kind) for kind in kinds):
        return None
    several = [kind for kind in kinds if len(kind) > 1]
    groups: dict[str, dict[str, Any]] = {
        f"one-of-{number}": {"members": list(kind), "exclusive": False} for number, kind in enumerate(several, 1)
    }
    always = [kind[0] for kind in kinds if len(kind) == 1]
    if always:
        groups["beside"] = {"members": always, "swap": False, "exclusive": False}
    return groups

"""llama-swap's macros: texts put in for ``${name}``, the last defined first, a model's own before the global ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from swapd.config.importing.section import Section, written

Macros: TypeAlias = list[tuple[str, Any]]

RESERVED: Final = ("PORT", "PID", "MODEL_ID")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z0-9_-]+)\}")


def read_macros(section: Section) -> Macros:
    """The macros of one table, in order; mistakes are those that llama-swap refuses too."""
    found: Macros = []
    for name in section:
        value, path = section.value(name), section.at(name)
        if not _NAME.fullmatch(name) or name in RESERVED:
            section.book.problems.add(path, "is no name for a macro", "letters, digits, _ and -, none of PORT MODEL_ID")
        elif value is None or isinstance(value, list):
            section.book.problems.add(path, "a macro is a text, a number, a switch or a table")
        elif f"${{{name}}}" in str(value):
            section.book.problems.add(path, "the macro contains itself")
        else:
            found.append((name, value))
    return found


def for_model(id_: str, everywhere: Macros, own: Macros) -> Macros:
    """All macros of one model: its own take the place of global ones of the same name."""
    merged = dict([("MODEL_ID", id_), *everywhere])
    return list((merged | dict(own)).items())


def put_in(value: Any, macros: Sequence[tuple[str, Any]]) -> Any:
    """The value with every macro in it replaced, in keys too; comment lines of commands go first."""
    for name, content in reversed(macros):
        value = _replace(value, f"${{{name}}}", content)
    return value


def without_comments(command: str) -> str:
    """A command without its lines that begin with ``#``."""
    return "\n".join(line for line in command.split("\n") if not line.strip().startswith("#"))


def unknown(value: str, allowed: Sequence[str] = ()) -> list[str]:
    """The macros that are still in a text."""
    return [name for name in _REFERENCE.findall(value) if name not in allowed]


def _replace(value: Any, slug: str, content: Any) -> Any:
    if isinstance(value, str):
        if value == slug:
            return content
        return value if isinstance(content, dict) else value.replace(slug, written(content))
    if isinstance(value, Mapping):
        return {key.replace(slug, written(content)): _replace(inner, slug, content) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace(inner, slug, content) for inner in value]
    return value

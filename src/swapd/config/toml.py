"""Writes TOML: the standard library only reads it, and what swapd generates is small and of known shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from swapd.config.lines import KeyPath
from swapd.config.variables import RESERVED

Tables: TypeAlias = list[tuple[KeyPath, dict[str, Any]]]
"""Tables in order, each with its keys; a table inside one is written inline."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SHORT: Final = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\"", "\\": r"\\"}
_UNPRINTABLE: Final = re.compile(r'[\x00-\x1f"\\\x7f]')
_REFERENCE: Final = re.compile(r"\$\{(?!(?:" + "|".join(sorted(RESERVED)) + r")\})[^{}]*\}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def text(value: str) -> str:
    """A basic string."""
    return '"' + _UNPRINTABLE.sub(lambda m: _SHORT.get(m[0], f"\\u{ord(m[0]):04x}"), value) + '"'


def literal(value: str) -> str:
    """A text that swapd takes as it is: what only looks like a ``${reference}`` is escaped."""
    return _REFERENCE.sub(r"$\g<0>", value)


def key(name: str) -> str:
    """A key, quoted if it must be."""
    return name if _BARE.fullmatch(name) else text(name)


def value(item: Any) -> str:
    """Any value that TOML has: text, numbers, switches, arrays, (inline) tables.

    Raises:
        TypeError: for what TOML has no word for (``None``).
    """
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return text(item)
    if isinstance(item, int | float):
        return repr(item)
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(one) for one in item) + "]"
    if isinstance(item, Mapping):
        pairs = ", ".join(f"{key(str(name))} = {value(inner)}" for name, inner in item.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML has no {type(item).__name__}")


def header(path: KeyPath) -> str:
    """``[models."org/name"]``."""
    return "[" + ".".join(key(part) for part in path) + "]"


def document(tables: Tables) -> str:
    """All tables that say something, an empty line between them; a model's table is written even if empty."""
    blocks = []
    for path, keys in tables:
        if keys or path[0] == "models":
            blocks.append("\n".join([header(path), *(f"{key(name)} = {value(item)}" for name, item in keys.items())]))
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def comments(lines: Iterable[str]) -> str:
    """Each line as a comment; what must not stand in one (line breaks, controls) becomes a space."""
    return "".join(f"# {_CONTROL.sub(' ', line)}\n" for line in lines)

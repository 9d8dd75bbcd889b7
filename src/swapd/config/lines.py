"""On which line of a TOML text a key stands: no TOML library tells."""

from __future__ import annotations

import re
import tomllib
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str, ...]

_HEADER = re.compile(r"\s*\[{1,2}([^\[\]]*(?:\"[^\"]*\"|'[^']*'|[^\[\]\"'])*)\]{1,2}\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_KEY = re.compile(rf"\s*({_DOTTED})\s*=(.*)$")
_INNER = re.compile(rf"[{{,]\s*({_DOTTED})\s*=")
_STRING_OR_COMMENT = re.compile(r"\"\"\"|'''|\"(?:[^\"\\]|\\.)*\"|'[^']*'|#.*$")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Every key and table header of a valid TOML text, with its line (from 1); the first wins."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    inside = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if inside or depth > 0:
            inside, depth = _scan(line, inside, depth)
            continue
        header = _HEADER.match(line)
        if header and "=" not in line.split("#")[0].replace(header[1], ""):
            table = _split(header[1])
            _note(found, table, number)
            continue
        key = _KEY.match(line)
        if key is None:
            continue
        path = (*table, *_split(key[1]))
        _note(found, path, number)
        for inner in _INNER.finditer(key[2]):
            _note(found, (*path, *_split(inner[1])), number)
        inside, depth = _scan(key[2], "", 0)
    return found


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of a key, else of the nearest table around it; 0 if nothing is known."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


def _note(found: dict[KeyPath, int], path: KeyPath, number: int) -> None:
    for length in range(1, len(path) + 1):
        found.setdefault(path[:length], number)


def _split(dotted: str) -> KeyPath:
    """``a."b.c".d`` as its parts."""
    try:
        value: object = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted.strip(),)
    parts: list[str] = []
    while isinstance(value, dict) and value:
        part, value = next(iter(value.items()))
        parts.append(part)
    return tuple(parts)


def _scan(line: str, inside: str, depth: int) -> tuple[str, int]:
    """Whether a multi-line string or array is open at the end of a line."""
    rest = line
    while rest:
        if inside:
            end = rest.find(inside)
            if end < 0:
                return inside, depth
            rest, inside = rest[end + 3 :], ""
            continue
        match = _STRING_OR_COMMENT.search(rest)
        plain = rest[: match.start()] if match else rest
        depth += plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}")
        if match is None:
            break
        rest = rest[match.end() :]
        if match[0] in ('"""', "'''"):
            inside = match[0]
    return inside, depth

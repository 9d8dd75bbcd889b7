"""Which model a body asks for, and whether as a stream; pure, and never re-encodes anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from swapd.errors import BadRequest

PARSED_WHOLE_BYTES: Final = 1 << 20
"""Up to here a body is parsed as a whole (0.2 ms for 80 KB); beyond, a photo costs 120 ms and is scanned instead."""

_DECODE = json.JSONDecoder().decode
_STRUCTURE = re.compile(rb'["{}\[\]]')
_SCALAR = re.compile(rb"\s*:\s*(true|false|null|-?[0-9][0-9.eE+-]*)")
_COLON = re.compile(rb"\s*:\s*")
_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)
_PART_NAME = re.compile(rb'\bname="([^"]*)"', re.IGNORECASE)


class Asked(NamedTuple):
    """``model`` is empty if the body names none (or nothing that could be a name)."""

    model: str
    stream: bool


NOTHING: Final = Asked("", stream=False)


def model_of(body: bytes, content_type: bytes = b"") -> Asked:
    """The top-level ``model`` and ``stream`` of a JSON body or form.

    Raises:
        BadRequest: if the body is no JSON.
    """
    if content_type.startswith(b"multipart/"):
        return _asked(_multipart(body, content_type))
    is_form = content_type.startswith(b"application/x-www-form-urlencoded")
    if is_form and not body.lstrip().startswith(b"{"):  # "curl -d '{…}'" calls JSON a form
        return _asked({name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()})
    if not body or body.isspace():
        return NOTHING
    if len(body) > PARSED_WHOLE_BYTES:
        return _asked(dict(_top_level(body)))
    try:
        return _asked(_DECODE(body.decode()))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON that can be read: {error}") from error


def with_model(body: bytes, model: str) -> bytes:
    """The body with another top-level ``model``; unchanged if it is no JSON object."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps({**parsed, "model": model}).encode() if isinstance(parsed, dict) else body


def _asked(fields: Any) -> Asked:
    if not isinstance(fields, dict):
        return NOTHING
    model, stream = fields.get("model"), fields.get("stream")
    return Asked(model if isinstance(model, str) else "", stream is True or stream == "true")


def _top_level(body: bytes) -> Iterator[tuple[str, Any]]:
    """Names and scalar values of the outermost object, jumping over strings with ``find``."""
    depth, position = 0, 0
    while found := _STRUCTURE.search(body, position):
        sign, position = found[0], found.end()
        if sign == b'"':
            start, position = position - 1, _end_of_string(body, position)
            if depth == 1 and position - start < 64 and (pair := _pair(body, start, position)):
                position = max(position, pair[2])
                yield pair[0], pair[1]
        else:
            depth += 1 if sign in b"{[" else -1


def _pair(body: bytes, start: int, end: int) -> tuple[str, Any, int] | None:
    name = _loads(body[start:end])
    if not isinstance(name, str):
        return None
    if scalar := _SCALAR.match(body, end):
        return name, _loads(scalar[1]), scalar.end()
    colon = _COLON.match(body, end)
    if colon is None or body[colon.end() : colon.end() + 1] != b'"':
        return None
    close = _end_of_string(body, colon.end() + 1)
    value = _loads(body[colon.end() : close]) if close - colon.end() < 4096 else None
    return name, value, close


def _end_of_string(body: bytes, position: int) -> int:
    """Just behind the closing quote of the string whose text begins at ``position``."""
    while (quote := body.find(b'"', position)) >= 0:
        text = quote
        while text > 0 and body[text - 1] == 0x5C:
            text -= 1
        if (quote - text) % 2 == 0:
            return quote + 1
        position = quote + 1
    return len(body)


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _multipart(body: bytes, content_type: bytes) -> dict[str, str]:
    """The small text fields of a multipart form."""
    boundary = _BOUNDARY.search(content_type)
    fields: dict[str, str] = {}
    if boundary is None:
        return fields
    delimiter = b"--" + boundary[1].strip()
    position = body.find(delimiter)
    while position >= 0:
        head = position + len(delimiter)
        position = body.find(delimiter, head)
        blank = body.find(b"\r\n\r\n", head, position if position >= 0 else len(body))
        name = _PART_NAME.search(body[head:blank]) if blank >= 0 else None
        if name is not None and 0 <= position - blank < 4096:
            fields[name[1].decode("utf-8", "replace")] = body[blank + 4 : position - 2].decode("utf-8", "replace")
    return fields

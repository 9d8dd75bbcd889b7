"""Which model a body asks for, and whether as a stream; pure, and never re-encodes anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from mmap import mmap
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote_plus

import msgspec

from swapd.errors import BadRequest

Text: TypeAlias = bytes | mmap
Field: TypeAlias = tuple[str, Any, int, int]
"""Name, value, and the place of the value's text."""

PARSED_WHOLE_BYTES: Final = 1 << 20
"""Up to here a body is read as a whole, in the loop; beyond, it is scanned beside it."""


class _Fields(msgspec.Struct):
    """What is read of a JSON body; the rest is checked and skipped (130 KB of messages and tools: 0.07 ms, not 0.6)."""

    model: Any = None
    stream: Any = None


_FIELDS: Final = msgspec.json.Decoder(_Fields)
_STRUCTURE = re.compile(rb'["{}\[\]]')
_SCALAR = re.compile(rb"\s*:\s*(true|false|null|-?[0-9][0-9.eE+-]*)")
_COLON = re.compile(rb"\s*:\s*")
_BRACE = re.compile(rb"\s*\{\s*(\}?)")
_IN_FORM = re.compile(rb"(?:^|&)model=([^&]*)")
_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)
_PART_NAME = re.compile(rb'\bname="([^"]*)"', re.IGNORECASE)


class Asked(NamedTuple):
    """``model`` is empty if the body names none (or nothing that could be a name)."""

    model: str
    stream: bool


NOTHING: Final = Asked("", stream=False)


def model_of(body: Text, content_type: bytes = b"") -> Asked:
    """The top-level ``model`` and ``stream`` of a JSON body or form.

    Raises:
        BadRequest: if the body is no JSON.
    """
    if content_type.startswith(b"multipart/"):
        return _asked({name: value for name, value, _, _ in _multipart(body, content_type)})
    if _is_form(body, content_type):
        fields = parse_qs(bytes(body).decode("utf-8", "replace"))
        return _asked({name: values[-1] for name, values in fields.items()})
    if len(body) > PARSED_WHOLE_BYTES or not isinstance(body, bytes):
        return _asked({name: value for name, value, _, _ in _top_level(body)})
    if not body or body.isspace():
        return NOTHING
    try:
        return _asked_in_json(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON that can be read: {error}") from error


def _asked_in_json(body: bytes) -> Asked:
    if not body.isascii():
        body.decode()  # what is skipped has to be UTF-8 too
    try:
        found = _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):  # no object, or what only Python's parser takes (NaN), or says why
        return _asked(json.loads(body.decode()))
    return _asked_by(found.model, found.stream)


def model_place(body: Text, content_type: bytes, model: str) -> tuple[int, int, bytes]:
    """Where a body names its model, and what has to stand there for another: all else stays byte for byte.

    An empty place at the start of a JSON object that names none; one at the very start where there is no such place.
    """
    if content_type.startswith(b"multipart/"):
        places = [(start, end) for name, _, start, end in _multipart(body, content_type) if name == "model"]
        return (*places[-1], model.encode()) if places else (0, 0, b"")
    if _is_form(body, content_type):
        found = list(_IN_FORM.finditer(body))
        return (*found[-1].span(1), quote_plus(model).encode()) if found else (0, 0, b"")
    text = json.dumps(model).encode()
    places = [(start, end) for name, _, start, end in _top_level(body) if name == "model"]
    if places:
        return (*places[-1], text)
    if brace := _BRACE.match(body):
        at = brace.start(1)
        return at, at, b'"model": %b%b' % (text, b"" if brace[1] else b", ")
    return 0, 0, b""


def is_json(body: Text, content_type: bytes) -> bool:
    """Whether a body is read as JSON: what is no form of either kind."""
    return not content_type.startswith(b"multipart/") and not _is_form(body, content_type)


def _is_form(body: Text, content_type: bytes) -> bool:
    """Whether it is a form; ``curl -d '{…}'`` calls JSON one."""
    return content_type.startswith(b"application/x-www-form-urlencoded") and not _BRACE.match(body)


def _asked(fields: Any) -> Asked:
    if not isinstance(fields, dict):
        return NOTHING
    return _asked_by(fields.get("model"), fields.get("stream"))


def _asked_by(model: object, stream: object) -> Asked:
    return Asked(model if isinstance(model, str) else "", stream is True or stream == "true")


def _top_level(body: Text) -> Iterator[Field]:
    """Names and scalar values of the outermost object, jumping over strings with ``find``."""
    depth, position = 0, 0
    while found := _STRUCTURE.search(body, position):
        sign, position = found[0], found.end()
        if sign == b'"':
            start, position = position - 1, _end_of_string(body, position)
            if depth == 1 and position - start < 64 and (pair := _pair(body, start, position)):
                position = max(position, pair[3])
                yield pair
        else:
            depth += 1 if sign in b"{[" else -1


def _pair(body: Text, start: int, end: int) -> Field | None:
    name = _loads(body[start:end])
    if not isinstance(name, str):
        return None
    if scalar := _SCALAR.match(body, end):
        return name, _loads(scalar[1]), *scalar.span(1)
    colon = _COLON.match(body, end)
    if colon is None or body[colon.end() : colon.end() + 1] != b'"':
        return None
    close = _end_of_string(body, colon.end() + 1)
    value = _loads(body[colon.end() : close]) if close - colon.end() < 4096 else None
    return name, value, colon.end(), close


def _end_of_string(body: Text, position: int) -> int:
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


def _multipart(body: Text, content_type: bytes) -> Iterator[Field]:
    """The small text fields of a multipart form."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return
    delimiter = b"--" + boundary[1].strip()
    position = body.find(delimiter)
    while position >= 0:
        head = position + len(delimiter)
        position = body.find(delimiter, head)
        blank = body.find(b"\r\n\r\n", head, position if position >= 0 else len(body))
        name = _PART_NAME.search(body[head:blank]) if blank >= 0 else None
        if name is not None and 0 <= position - blank < 4096:
            start, end = blank + 4, position - 2
            yield name[1].decode("utf-8", "replace"), body[start:end].decode("utf-8", "replace"), start, end

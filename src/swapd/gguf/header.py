"""A GGUF file's header, read from a stream: never the tensors' data, in bounded memory and time.

The format is ggml's `docs/gguf.md`: magic, version, counts, key-values, tensor
infos, then (aligned) the data. Nothing in the file is trusted: every length is
held against the bytes that are left before anything is allocated or skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from swapd.errors import GgufError
from swapd.gguf.stream import Stream
from swapd.gguf.types import TENSOR_TYPES, GgufHeader, SkippedValue, TensorInfo, TensorType, Value

MAX_KEY_VALUES = 16_384
MAX_TENSORS = 131_072
MAX_NAME_BYTES = 1024
MAX_PARTS = 1024
MAX_TEXT_BYTES = 256 << 10
"""Longer strings are skipped over and kept as their length."""
MAX_ELEMENTS = 1024
"""Longer arrays likewise; one number for each layer fits."""

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "string"} | {
    10: "u64",
    11: "i64",
    12: "f64",
}
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)")


def read_header(path: str | Path) -> GgufHeader:
    """The header of a model; of a split model give its first file, the others are found beside it.

    Raises: ``GgufError`` with the file and the byte at which it stops making sense.
    """
    names = _part_names(str(path))
    first, *rest = (_read_part(name, number) for number, name in enumerate(names))
    for number, part in enumerate((first, *rest)):
        _check_part(part, number, len(names))
    parts = (first, *rest)
    return GgufHeader(
        version=first.version,
        architecture=_architecture(first),
        kv=first.kv,
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        file_bytes=sum(part.file_bytes for part in parts),
        data_bytes=sum(tensor.nbytes for part in parts for tensor in part.tensors),
        path=str(path),
        parts=names,
        big_endian=first.big_endian,
    )


@dataclass(slots=True)
class _Part:
    path: str
    version: int
    big_endian: bool
    file_bytes: int
    kv: dict[str, Value] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)


def _part_names(path: str) -> tuple[str, ...]:
    found = _PART.fullmatch(path)
    if found is None:
        return (path,)
    stem, number, count, suffix = found.groups()
    if int(number) != 1:
        raise GgufError(f"{path}: a split model is named by its first file, this is number {int(number)}", path=path)
    if not 1 <= int(count) <= MAX_PARTS:
        raise GgufError(f"{path}: {int(count)} files are more than the {MAX_PARTS} read", path=path)
    return tuple(f"{stem}-{index:05d}-of-{count}{suffix}" for index in range(1, int(count) + 1))


def _check_part(part: _Part, number: int, count: int) -> None:
    said = part.kv.get("split.count", 1)
    if said not in (0, count) and (count > 1 or said != 1):
        raise GgufError(f"{part.path}: says that it is one of {said} files, its name says {count}", path=part.path)
    if count > 1 and part.kv.get("split.no", number) != number:
        raise GgufError(f"{part.path}: is part {part.kv['split.no']}, its name says {number}", path=part.path)


def _architecture(part: _Part) -> str:
    value = part.kv.get("general.architecture")
    if not isinstance(value, str) or not value:
        raise GgufError(f"{part.path}: general.architecture is missing", path=part.path)
    return value


def _read_part(path: str, number: int) -> _Part:
    with Stream.open(path) as stream:
        version = _read_version(stream)
        part = _Part(path, version, stream.order == ">", stream.size)
        tensor_count = _count(stream, MAX_TENSORS, 24, "tensors")
        pair_count = _count(stream, MAX_KEY_VALUES, 13, "key-values")
        for _ in range(pair_count):
            _read_pair(stream, part.kv)
        entries = [_read_tensor(stream) for _ in range(tensor_count)]
        part.tensors = _measured(stream, entries, _alignment(stream, part.kv), number)
        return part


def _read_version(stream: Stream) -> int:
    if stream.take(4) != b"GGUF":
        stream.fail("no GGUF file: its first four bytes are not GGUF", at=0)
    version: int = stream.unpack("I")
    if version and not version & 0xFFFF:
        stream.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        stream.fail(f"GGUF version {version} is not 2 or 3", at=4)
    return version


def _count(stream: Stream, limit: int, smallest_bytes: int, what: str) -> int:
    """A number of things that follow, of which each takes at least ``smallest_bytes``."""
    start = stream.position
    count: int = stream.unpack("Q")
    if count > limit or count * smallest_bytes > stream.left:
        stream.fail(f"{count} {what} cannot be", at=start)
    return count


def _read_pair(stream: Stream, kv: dict[str, Value]) -> None:
    start = stream.position
    key = _text(stream, MAX_NAME_BYTES, "a key")
    if key in kv:
        stream.fail(f"{key} comes twice", at=start)
    kind = stream.unpack("I")
    if kind == _ARRAY:
        kv[key] = _read_array(stream)
    elif kind == _STRING:
        kv[key] = _read_string(stream)
    elif kind in _NUMBERS:
        kv[key] = stream.unpack(_NUMBERS[kind])
    else:
        stream.fail(f"{key}: there is no value type {kind}", at=stream.position - 4)


def _text(stream: Stream, limit: int, what: str) -> str:
    start = stream.position
    length = stream.unpack("Q")
    if not 0 < length <= limit:
        stream.fail(f"{what} of {length} bytes cannot be", at=start)
    return stream.take(length).decode("utf-8", "replace")


def _read_string(stream: Stream) -> Value:
    length = stream.unpack("Q")
    if length > MAX_TEXT_BYTES:
        stream.skip(length)
        return SkippedValue("string", length)
    return stream.take(length).decode("utf-8", "replace")


def _read_array(stream: Stream) -> Value:
    start = stream.position
    kind = stream.unpack("I")
    if kind != _STRING and kind not in _NUMBERS:
        stream.fail(f"there is no array of type {kind}", at=start)
    count = stream.unpack("Q")
    width = 8 if kind == _STRING else stream.width(_NUMBERS[kind])
    if count * width > stream.left:
        stream.fail(f"an array of {count} elements does not fit the file", at=start + 4)
    if kind == _STRING:
        stream.skip_strings(count)
    elif count <= MAX_ELEMENTS:
        return tuple(stream.unpack_many(_NUMBERS[kind], count))
    else:
        stream.skip(count * width)
    return SkippedValue(_NAMES[kind], count)


def _alignment(stream: Stream, kv: dict[str, Value]) -> int:
    value = kv.get("general.alignment", 32)
    if not isinstance(value, int) or value <= 0 or value & (value - 1) or value > 1 << 20:
        stream.fail(f"general.alignment = {value} is no power of two")
    return value


@dataclass(slots=True)
class _Entry:
    at: int
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def _read_tensor(stream: Stream) -> _Entry:
    start = stream.position
    name = _text(stream, MAX_NAME_BYTES, "a tensor's name")
    dimensions = stream.unpack("I")
    if dimensions > 4:
        stream.fail(f"{name}: {dimensions} dimensions are more than 4", at=stream.position - 4)
    shape = tuple(stream.unpack_many("Q", dimensions))
    type_id, offset = stream.unpack("I"), stream.unpack("Q")
    return _Entry(start, name, shape, type_id, offset)


def _measured(stream: Stream, entries: list[_Entry], alignment: int, part: int) -> list[TensorInfo]:
    """Give every tensor its bytes; one of an unknown type reaches to the next tensor's start."""
    data = -(-stream.position // alignment) * alignment
    room = stream.size - data
    ends = dict(pairwise(sorted({entry.offset for entry in entries} | {max(room, 0)})))
    tensors = []
    for entry in entries:
        kind = TENSOR_TYPES.get(entry.type_id)
        nbytes = _nbytes(stream, entry, kind) if kind else max(ends.get(entry.offset, 0) - entry.offset, 0)
        if entry.offset + nbytes > room:
            stream.fail(
                f"the file ends within the data of {entry.name}: {entry.offset + nbytes - room} bytes are missing",
                at=entry.at,
            )
        name = kind.name if kind else f"type {entry.type_id}"
        tensors.append(TensorInfo(entry.name, entry.shape, entry.type_id, name, nbytes, entry.offset, part))
    return tensors


def _nbytes(stream: Stream, entry: _Entry, kind: TensorType) -> int:
    elements = 1
    for size in entry.shape:
        elements *= size
    if entry.shape and entry.shape[0] % kind.block:
        stream.fail(
            f"{entry.name}: rows of {entry.shape[0]} are no multiple of {kind.block}, {kind.name}'s block", at=entry.at
        )
    return elements // kind.block * kind.block_bytes

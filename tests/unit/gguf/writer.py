"""Writes small GGUF files for tests: enough of the format to be read, broken and read again."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swapd.gguf.types import GgufHeader

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
LETTERS = {U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}


class Strings(list[str]):
    """An array of strings."""


class Numbers(list[int]):
    """An array of signed 32-bit numbers."""


def packed_string(text: str | bytes, order: str = "<") -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def packed_value(value: Any, order: str) -> bytes:
    if isinstance(value, bool):
        return struct.pack(order + "I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack(order + "II", U32, value)
    if isinstance(value, float):
        return struct.pack(order + "If", F32, value)
    if isinstance(value, Strings):
        head = struct.pack(order + "IIQ", ARRAY, STRING, len(value))
        return head + b"".join(packed_string(text, order) for text in value)
    if isinstance(value, Numbers):
        return struct.pack(f"{order}IIQ{len(value)}i", ARRAY, I32, len(value), *value)
    return struct.pack(order + "I", STRING) + packed_string(value, order)


def gguf(
    kv: Mapping[str, Any],
    tensors: Sequence[tuple[str, tuple[int, ...], int, int]] = (),
    *,
    version: int = 3,
    order: str = "<",
    data_bytes: int | None = None,
) -> bytes:
    """A file; tensors are (name, shape, type id, bytes), laid out one after another."""
    body = b"".join(packed_string(key, order) + packed_value(value, order) for key, value in kv.items())
    offset = 0
    for name, shape, kind, size in tensors:
        body += packed_string(name, order) + struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape)
        body += struct.pack(order + "IQ", kind, offset)
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(kv)) + body
    head += bytes(-len(head) % 32)
    return head + bytes(offset if data_bytes is None else data_bytes)


SMALL = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.rope.freq_base": 1e4,
}
TENSORS = [
    ("token_embd.weight", (64, 100), 1, 64 * 100 * 2),
    ("blk.0.attn_q.weight", (64, 64), 8, 64 * 64 // 32 * 34),
    ("blk.1.attn_norm.weight", (64,), 0, 256),
]


def write_model(path: Path, header: GgufHeader) -> Path:
    """A file with this header, its data a hole: no disk is used."""
    kv = {
        key: Numbers(int(v) for v in value) if isinstance(value, tuple) else value for key, value in header.kv.items()
    }
    tensors = [(t.name, t.shape, t.type_id, t.nbytes) for t in header.tensors]
    head = gguf(kv, tensors, data_bytes=0)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + header.data_bytes)
    return path

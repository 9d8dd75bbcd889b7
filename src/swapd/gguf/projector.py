"""The image or audio encoder beside a model (``--mmproj``): weights as in the file, an upper bound for its work."""

from __future__ import annotations

from math import prod

from swapd.gguf.types import GgufHeader

MAX_PATCHES = 16_384
"""Patches of one picture that are counted at most."""


def projector_bytes(header: GgufHeader) -> tuple[int, int]:
    """Weights, and a compute buffer that errs high: every patch's hidden and feed-forward vectors, and scores.

    Source: tools/mtmd/clip.cpp reserves a graph for one picture of the model's size.
    """
    weights = sum(tensor.nbytes for tensor in header.tensors)
    size, patch = _number(header, "clip.vision.image_size", 1024), _number(header, "clip.vision.patch_size", 14)
    width = _number(header, "clip.vision.embedding_length", 1280)
    inner = _number(header, "clip.vision.feed_forward_length", 4 * width)
    heads = _number(header, "clip.vision.attention.head_count", 16)
    patches = min(max(size // max(patch, 1), 1) ** 2, MAX_PATCHES)
    pixels = 3 * prod((size, size)) * 4
    return weights, 4 * patches * (8 * width + 3 * inner) + 4 * heads * min(patches, 4096) ** 2 + pixels


def _number(header: GgufHeader, key: str, default: int) -> int:
    value = header.kv.get(key)
    return int(value) if isinstance(value, int | float) and 0 < value < 1 << 24 else default

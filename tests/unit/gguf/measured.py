"""What a real llama-server took (tests/data/vram), and the headers of the models it ran, rebuilt without their data.

``models.jsonl``: key-values and tensor tables, layers of one kind written once; ``hosts.jsonl``: the same of models
like those of the three hosts of docs/field-measurements.md. ``measured.jsonl``: MiB;
``set`` one (one GPU), two (two GPUs), more (one GPU, larger shapes measured after the formulas were written).
"""

from __future__ import annotations

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from swapd.gguf.memory import Gpu, Prediction, predict
from swapd.gguf.types import TENSOR_TYPES, GgufHeader, TensorInfo
from swapd.llama.flags import parse_flags

DATA = Path(__file__).parents[2] / "data" / "vram"
MIB = 1 << 20
OVERHEAD_MIB = 597.5
TOTAL_MIB, FREE_MIB = 143_771, 143_155


def header_of(kv: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int]], file_bytes: int = 0) -> GgufHeader:
    """A header as if read from a file."""
    infos, offset = [], 0
    for name, shape, type_id in tensors:
        kind = TENSOR_TYPES[type_id]
        size = prod(shape) // kind.block * kind.block_bytes
        infos.append(TensorInfo(name, shape, type_id, kind.name, size, offset))
        offset += -(-size // 32) * 32
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in kv.items()}
    return GgufHeader(3, str(values["general.architecture"]), values, tuple(infos), file_bytes or offset, offset)


@cache
def models() -> dict[str, GgufHeader]:
    """Headers by name."""
    return {row["model"]: _expanded(row) for row in _rows("models.jsonl")}


@cache
def host_models() -> dict[str, GgufHeader]:
    """Headers of the hosts' models by name."""
    return {row["model"]: _expanded(row) for row in _rows("hosts.jsonl")}


def _expanded(row: dict[str, Any]) -> GgufHeader:
    tensors = [(name, tuple(shape), kind) for name, shape, kind in row["tensors"]]
    for layer, kind in enumerate(row["layers"]):
        tensors += [(f"blk.{layer}.{name}", tuple(shape), type_id) for name, shape, type_id in row["kinds"][kind]]
    return header_of(row["kv"], tensors, row["file_bytes"])


@cache
def measurements() -> list[dict[str, Any]]:
    """Every configuration measured."""
    return list(_rows("measured.jsonl"))


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def gpus(count: int, free_mib: int = FREE_MIB) -> list[Gpu]:
    """Equal GPUs like the one measured on."""
    return [Gpu(f"GPU-{i}", TOTAL_MIB * MIB, free_mib * MIB, int(OVERHEAD_MIB * MIB)) for i in range(count)]


def prediction(model: str, args: str | list[str], count: int = 1) -> Prediction:
    """What is predicted for a measured model."""
    return _predicted(model, tuple(args.split() if isinstance(args, str) else args), count)


@cache
def _predicted(model: str, args: tuple[str, ...], count: int) -> Prediction:
    flags = parse_flags(args)
    draft = models()[flags.draft_model.removesuffix(".gguf")] if flags.draft_model else None
    return predict(models()[model], flags, gpus(count), draft=draft)


def predicted(row: dict[str, Any]) -> Prediction:
    """What is predicted for a row."""
    return prediction(row["model"], row["args"], row["gpus"])


def idle_errors(row: dict[str, Any]) -> list[float]:
    """Predicted less measured, MiB, for each GPU; a hidden GPU takes nothing."""
    needs = [device.need / MIB for device in predicted(row).devices] or [0.0]
    return [need - found for need, found in zip(needs, row["vram"], strict=True)]


def peak_errors(row: dict[str, Any]) -> list[float]:
    """The same after the first long requests, where that was measured."""
    if row["peak"] is None:
        return []
    peaks = [device.peak / MIB for device in predicted(row).devices] or [0.0]
    return [peak - found for peak, found in zip(peaks, row["peak"], strict=True)]


def host_errors(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Predicted less measured, and measured, MiB: anonymous, pinned and mapped memory of the process.

    One GPU's rows with a peak were measured after long requests, all others right after the load.
    """
    host, found = predicted(row).host, row["host"]
    worked = row["set"] == "one" and row["peak"] is not None
    sizes = {
        "anonymous": (host.anonymous + (host.working if worked else 0), "RssAnon"),
        "pinned": (host.pinned, "RssShmem"),
        "mapped": (host.mapped, "RssFile"),
    }
    return {kind: (size / MIB - found[key], found[key]) for kind, (size, key) in sizes.items()}

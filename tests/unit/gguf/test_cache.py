"""Slots, caches and states, each formula on figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from swapd.core.flags import EngineFlags
from swapd.gguf.cache import slots, window_cells
from swapd.gguf.model import Model
from tests.unit.gguf.measured import MIB, models, prediction


@pytest.mark.parametrize(
    ("flags", "ctx", "cells", "streams", "batch"),
    [
        ({"ctx_tokens": 1000, "parallel": 1}, 1024, 1024, 1, 512),
        ({"ctx_tokens": 32768}, 32768, 32768, 1, 512),
        ({"ctx_tokens": 32768, "parallel": 4}, 32768, 8192, 4, 512),
        ({"ctx_tokens": 32768, "parallel": 4, "kv_unified": True}, 32768, 32768, 1, 512),
        ({"ctx_tokens": 1000, "parallel": 3}, 1536, 512, 3, 513),
        ({"ctx_tokens": 256, "parallel": 1, "ubatch_tokens": 4096}, 256, 256, 1, 256),
        ({"ctx_tokens": 8192, "parallel": 1, "ubatch_tokens": 4096}, 8192, 8192, 1, 2048),
        ({"parallel": 1}, 131072, 131072, 1, 512),
    ],
)
def test_slots_share_the_context(flags: dict[str, Any], ctx: int, cells: int, streams: int, batch: int) -> None:
    size = slots(Model(models()["q8b"]), EngineFlags(**flags))
    assert (size.ctx, size.cells, size.streams, size.batch) == (ctx, cells, streams, batch)


@pytest.mark.parametrize(
    ("model", "flags", "cells"),
    [
        ("gem", {"parallel": 1}, 1536),
        ("gem", {"parallel": 4, "kv_unified": True}, 4608),
        ("gem", {"parallel": 4}, 1536),
        ("gem", {"parallel": 1, "ubatch_tokens": 2048}, 3072),
        ("gem", {"parallel": 1, "swa_full": True}, 32768),
        ("oss", {"parallel": 1}, 768),
        ("q8b", {"parallel": 1}, 32768),
    ],
)
def test_a_window_takes_a_batch_more(model: str, flags: dict[str, Any], cells: int) -> None:
    made, found = Model(models()[model]), EngineFlags(ctx_tokens=32768, **flags)
    assert window_cells(made, found, slots(made, found)) == cells


@pytest.mark.parametrize(
    ("model", "args", "mib"),
    [
        ("q8b", "-c 4096 -np 1", 576),  # 36 layers, 2 x 1024 elements, 2 bytes
        ("q8b", "-c 32768 -np 1 -ctk q8_0 -ctv q8_0", 2448),
        ("q8b", "-c 131072 -np 1 -ctk q8_0 -ctv q4_0", 7488),
        ("hyb", "-c 32768 -np 1", 192),  # 3 of 12 layers
        ("mla", "-c 32768 -np 1", 972),  # 27 layers, one row of 576
        ("gem", "-c 32768 -np 1", 512 + 120),
        ("oss", "-c 32768 -np 1", 384 + 10),  # 9, rounded
        ("q8b", "-c 4096 -np 1 -nkvo", 0),
    ],
)
def test_kv_bytes(model: str, args: str, mib: int) -> None:
    assert prediction(model, f"-ngl 99 {args}").devices[0].kv == mib * MIB


@pytest.mark.parametrize(
    ("args", "mib"), [("-np 1", 20), ("-np 4", 76), ("-np 8", 152), ("-np 1 --spec-type draft-mtp", 76)]
)
def test_state_bytes_grow_with_slots_and_snapshots(args: str, mib: int) -> None:
    assert prediction("hyb", f"-ngl 99 -c 8192 {args}").devices[0].state == mib * MIB

"""Layers and tensors go where llama.cpp puts them."""

from __future__ import annotations

from typing import Any

import pytest

from swapd.core.flags import EngineFlags
from swapd.gguf.model import Model
from swapd.gguf.placement import Placement, place
from tests.unit.gguf.measured import models

EQUAL = (100, 100)


def placed(model: str = "q8b", free: tuple[int, ...] = EQUAL, **flags: Any) -> Placement:
    return place(Model(models()[model]), EngineFlags(**flags), free)


@pytest.mark.parametrize(
    ("flags", "free", "counts"),
    [
        ({}, (100,), [36, 0]),
        ({}, (), [36]),
        ({"gpu_layers": 0}, (100,), [0, 36]),
        ({"gpu_layers": 18}, (100,), [17, 19]),
        ({}, EQUAL, [19, 17, 0]),
        ({}, (300, 100), [28, 8, 0]),
        ({"tensor_split": (3.0, 1.0)}, EQUAL, [28, 8, 0]),
        ({"tensor_split": (1.0, 3.0)}, EQUAL, [10, 26, 0]),
        ({"tensor_split": (0.0, 1.0)}, EQUAL, [0, 36, 0]),
        ({"split_mode": "none", "main_gpu": 1}, EQUAL, [36, 0]),
        ({"devices": "CUDA1"}, EQUAL, [36, 0]),
        ({"devices": "none"}, EQUAL, [36]),
    ],
)
def test_layers_are_shared_out(flags: dict[str, Any], free: tuple[int, ...], counts: list[int]) -> None:
    places = placed(free=free, **flags).layer_place
    assert [places.count(place) for place in range(len(counts))] == counts
    assert len(places) == 36


@pytest.mark.parametrize(
    ("flags", "name", "expected"),
    [
        ({}, "token_embd.weight", 2),
        ({}, "output.weight", 1),
        ({}, "blk.0.ffn_up_exps.weight", 0),
        ({"n_cpu_moe": 1}, "blk.0.ffn_up_exps.weight", 2),
        ({"n_cpu_moe": 1}, "blk.0.attn_q.weight", 0),
        ({"n_cpu_moe": 1}, "blk.1.ffn_up_exps.weight", 0),
        ({"cpu_moe": True}, "blk.11.ffn_down_exps.weight", 2),
        ({"override_tensors": ("attn=CUDA1", "exps=CPU")}, "blk.0.attn_q.weight", 1),
        ({"override_tensors": ("attn=CUDA1", "exps=CPU")}, "blk.3.ffn_gate_exps.weight", 2),
    ],
)
def test_tensors_follow_overrides_then_layers(flags: dict[str, Any], name: str, expected: int) -> None:
    placement = placed("moe", **flags)
    assert placement.of(models()["moe"].tensor[name]) == expected


@pytest.mark.parametrize(
    ("flags", "exact"),
    [
        ({}, True),
        ({"split_mode": "row"}, False),
        ({"override_tensors": ("exps=Vulkan0",)}, False),
        ({"override_tensors": ("(=CPU",)}, False),
        ({"devices": "CUDA7"}, False),
    ],
)
def test_says_when_a_flag_is_not_modelled(flags: dict[str, Any], exact: bool) -> None:
    assert placed(**flags).exact is exact

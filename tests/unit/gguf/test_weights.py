"""Weights and what of the host's is mapped or repacked."""

from __future__ import annotations

import pytest

from swapd.core.flags import EngineFlags
from swapd.gguf.blocks import row_padding
from swapd.gguf.host import mapped_span, repacked
from swapd.gguf.model import Model
from swapd.gguf.placement import place
from swapd.gguf.types import TensorInfo
from swapd.gguf.weights import weigh
from tests.unit.gguf.measured import MIB, models


@pytest.mark.parametrize(
    ("model", "flags", "mib"),
    [
        ("q8b", {}, 4455.34),
        ("q8b", {"gpu_layers": 18}, 2367.58),
        ("q8b", {"gpu_layers": 0}, 0),
        ("f16m", {}, 1137.0),  # tied: the embedding is there as well
        ("oss", {}, 5768.11),
        ("mla", {}, 2930.10),
        ("moe", {"n_cpu_moe": 6}, 2520.68),
        ("hyb", {}, 6230.55),  # without the prediction head
    ],
)
def test_bytes_on_the_gpu(model: str, flags: dict[str, int], mib: float) -> None:
    made = Model(models()[model])
    weights = weigh(made, place(made, EngineFlags(**flags), [1]), mtp=False)  # type: ignore[arg-type]
    assert weights.by_gpu[0] / MIB == pytest.approx(mib, abs=0.1)


@pytest.mark.parametrize(
    ("width", "kind", "padding"), [(512, 8, 0), (2880, 39, 192 // 32 * 17), (576, 8, 448 // 32 * 34), (576, 0, 0)]
)
def test_quantized_rows_are_padded_to_512(width: int, kind: int, padding: int) -> None:
    assert row_padding(TensorInfo("t", (width, 4), kind, "", 0, 0)) == padding


def test_the_mapped_range_reaches_from_first_to_last() -> None:
    spread = [
        TensorInfo("a", (), 0, "F32", 10, 100),
        TensorInfo("b", (), 0, "F32", 5, 1000),
        TensorInfo("c", (), 0, "F32", 7, 0, 1),
    ]
    assert mapped_span(spread) == 905 + 7


@pytest.mark.parametrize(("model", "mib"), [("q8b", 3199.5), ("moe", 3358.12)])
def test_the_cpu_keeps_reordered_copies(model: str, mib: float) -> None:
    assert repacked(models()[model].tensors) / MIB == pytest.approx(mib, abs=0.1)

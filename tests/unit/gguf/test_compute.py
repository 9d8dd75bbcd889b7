"""Compute buffers: closed forms that hold for dense models, and shortcuts that change nothing."""

from __future__ import annotations

import pytest

from swapd.gguf.architectures import build
from swapd.gguf.cache import slots
from swapd.gguf.compute import compute_bytes, layers_to_build, plan_run
from swapd.gguf.model import Model
from swapd.gguf.placement import place
from swapd.gguf.run import Run
from swapd.gguf.scheduler import buffer_sizes
from swapd.llama.flags import parse_flags
from tests.unit.gguf.measured import MIB, measurements, models


def planned(name: str, args: str | list[str], count: int = 1) -> tuple[Model, Run]:
    model, flags = Model(models()[name]), parse_flags(args.split() if isinstance(args, str) else args)
    return model, plan_run(model, flags, place(model, flags, [100] * count), slots(model, flags))


@pytest.mark.parametrize("batch", [256, 512, 1024, 2048])
@pytest.mark.parametrize("ctx", [8192, 32768, 131072])
def test_a_dense_model_needs_its_feed_forward_and_its_mask(batch: int, ctx: int) -> None:
    """Three of its widest results, four of its narrow ones, and a f16 mask for each token of the batch."""
    model, run = planned("q8b", f"-ngl 99 -np 1 -c {ctx} -ub {batch}")
    gpu, _ = compute_bytes(model, run)
    assert gpu / MIB == pytest.approx(batch * (4 * (3 * 12288 + 4 * 4096) + 2 * ctx) / MIB, abs=0.2)


def test_scores_without_flash_attention_grow_with_heads() -> None:
    with_flash, without = (
        compute_bytes(*planned("q8b", f"-ngl 99 -np 1 -c 32768 -fa {word}"))[0] for word in ("on", "off")
    )
    assert without - with_flash == pytest.approx(32 * 32768 * 512 * 4, rel=0.02)


def test_logits_of_a_whole_batch_only_for_embeddings() -> None:
    plain, embedding = (
        compute_bytes(*planned("q8b", f"-ngl 99 -np 1 -c 4096 {word}"))[0] for word in ("", "--embedding")
    )
    assert (plain / MIB, embedding / MIB) == pytest.approx((108.01, 332.77), abs=0.02)


def test_host_weights_visit_the_gpu_unless_told_not_to() -> None:
    args = "-ngl 99 -np 1 -c 8192 -ncmoe 12"
    visiting, staying = (compute_bytes(*planned("moe", args + word))[0] / MIB for word in ("", " --no-op-offload"))
    assert (visiting, staying) == pytest.approx((225.51, 88.01), abs=0.02)


@pytest.mark.parametrize("row", [row for row in measurements() if row["set"] != "one"][::3], ids=lambda row: row["id"])
def test_leaving_out_repeated_layers_changes_nothing(row: dict[str, object]) -> None:
    model, run = planned(str(row["model"]), row["args"], int(str(row["gpus"])))  # type: ignore[arg-type]
    whole = buffer_sizes(
        build(model, run, list(range(model.layers))), run.backends, op_offload=run.op_offload, pipeline=run.pipeline
    )
    assert compute_bytes(model, run) == whole


def test_a_deep_model_is_shortened() -> None:
    model, run = planned("moefull", "-ngl 99 -np 1 -c 8192")
    kept = layers_to_build(model, run)
    assert len(kept) < 30 < model.layers
    assert (kept[0], kept[-1]) == (0, model.layers - 1)

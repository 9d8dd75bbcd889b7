"""Predictions against what a real llama-server took; and what must hold for any header."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swapd.core.flags import EngineFlags
from swapd.core.spec import RAM
from swapd.gguf.memory import predict
from tests.unit.gguf.measured import (
    MIB,
    gpus,
    header_of,
    host_errors,
    idle_errors,
    measurements,
    models,
    peak_errors,
    predicted,
    prediction,
)


def rows(*sets: str) -> list[dict[str, Any]]:
    return [row for row in measurements() if row["set"] in sets]


@pytest.mark.parametrize(
    ("name", "median", "most", "worst"), [("one", 2, 16, 40), ("two", 4, 16, 64), ("more", 2, 16, 40)]
)
def test_idle_use_is_predicted(name: str, median: float, most: float, worst: float) -> None:
    errors = sorted(abs(error) for row in rows(name) for error in idle_errors(row))
    assert statistics.median(errors) <= median
    assert errors[int(0.95 * len(errors))] <= most
    assert errors[-1] <= worst


def test_peaks_are_never_under_predicted_by_more_than_16_mib() -> None:
    worst = min((error, row["id"]) for row in measurements() for error in peak_errors(row))
    assert worst[0] >= -16, worst


def test_compute_buffers_are_exact() -> None:
    """Every buffer that llama-server logged, to a tenth of a MiB."""
    off = []
    for row in measurements():
        found = [size for where, size in row["compute"].items() if where.startswith("CUDA") and where != "CUDA_Host"]
        shares = [device.compute for device in predicted(row).devices if device.compute]
        if "draft" in row["id"] or "mtp" in row["id"]:
            continue
        off += [row["id"] for a, b in zip(shares, found, strict=True) if not 0 <= a / MIB - b < 2.01]
    assert off == []


def test_host_memory_is_near_what_was_measured() -> None:
    """Within 100 MiB or 10 %: after the load, or after the first long requests where these had been sent."""
    off = [row["id"] for row in measurements() if "host" in row for error, found in host_errors(row).values()
           if abs(error) > max(100, found / 10)]  # fmt: skip
    assert off == []


def test_a_prediction_takes_less_than_50_ms() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        predict(models()["moefull"], EngineFlags(ctx_tokens=32768, parallel=1, n_cpu_moe=24), gpus(2))
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.1, "half of it on a quiet machine"


def test_terms_add_up() -> None:
    device = prediction("hyb", "-ngl 99 -np 1 -c 8192").devices[0]
    assert device.need == device.weights + device.kv + device.state + device.compute + device.overhead
    assert device.peak == device.need + device.growth
    assert (device.weights // MIB, device.kv // MIB, device.state // MIB, device.compute // MIB) == (6232, 48, 20, 118)


def test_a_footprint_counts_peaks_and_unreclaimable_host_memory() -> None:
    found = prediction("moe", "-ngl 99 -np 1 -c 8192 -ncmoe 6", 2)
    footprint = found.footprint()
    assert footprint.on("GPU-0") == found.devices[0].peak
    assert footprint.growth_bytes["GPU-1"] == found.devices[1].growth
    assert footprint.on(RAM) == found.host.anonymous + found.host.working + found.host.pinned
    assert found.host.mapped > 1400 * MIB, "experts on the host stay page cache"


def test_hidden_gpus_cost_host_memory() -> None:
    found = prediction("q8b", "-ngl 99 -np 1 -c 8192", 0)
    assert found.devices == ()
    assert found.host.pinned == 0
    assert found.host.anonymous == pytest.approx(4526 * MIB, rel=0.02), "repacked weights beside the file"


def test_a_gpu_that_only_gets_a_context_is_listed() -> None:
    first, second = prediction("q8b", "-ngl 99 -np 1 -c 8192 -sm none -mg 1", 2).devices
    assert first.need / MIB == pytest.approx(526.8, abs=1)
    assert first.growth == 0
    assert second.weights > 4400 * MIB


def test_no_gpu_layers_still_take_memory_there() -> None:
    assert prediction("q8b", "-ngl 0 -np 1 -c 8192").devices[0].need / MIB == pytest.approx(661, abs=4)


def test_a_draft_counts_fully_only_with_its_spec_type() -> None:
    alone = prediction("q8b", "-ngl 99 -np 1 -c 8192").devices[0]
    used = prediction("q8b", "-ngl 99 -np 1 -c 8192 -md f16m.gguf --spec-type draft-simple").devices[0]
    passing = prediction("q8b", "-ngl 99 -np 1 -c 8192 -md f16m.gguf").devices[0]
    assert (used.need - alone.need) / MIB == pytest.approx(2072, abs=4)
    assert passing.need == alone.need
    assert passing.growth / MIB == pytest.approx(2072, abs=2)


def test_a_prediction_head_needs_more_state() -> None:
    plain = prediction("hyb", "-ngl 99 -np 1 -c 8192").devices[0]
    head = prediction("hyb", "-ngl 99 -np 1 -c 8192 --spec-type draft-mtp").devices[0]
    assert head.state == pytest.approx(4 * plain.state, rel=0.06)
    assert head.weights > plain.weights
    assert head.growth > 1.8 * plain.growth


def test_a_projector_is_added_and_not_exact() -> None:
    picture = header_of({"general.architecture": "clip"}, [("v.blk.0.ffn_up.weight", (1024, 4096), 1)])
    flags = EngineFlags(ctx_tokens=8192, parallel=1)
    plain = predict(models()["gem"], flags, gpus(1))
    seeing = predict(models()["gem"], flags, gpus(1), mmproj=picture)
    assert seeing.devices[0].weights == plain.devices[0].weights + 8 * MIB
    assert seeing.devices[0].compute > plain.devices[0].compute
    assert (plain.exact, seeing.exact) == (True, False)


def test_what_may_come_is_the_prompt_cache_and_checkpoints() -> None:
    plain = prediction("q8b", "-ngl 99 -np 1 -c 8192 --cache-ram 100").host.may_come
    windowed = prediction("gem", "-ngl 99 -np 1 -c 32768 --cache-ram 100").host.may_come
    assert plain == 100 * MIB
    assert windowed == (100 + 32 * 80) * MIB


@pytest.mark.parametrize("model", ["q8b", "moe", "gem", "mla", "oss"])
def test_an_unknown_architecture_errs_high(model: str) -> None:
    known = models()[model]
    kv = {key.replace(known.architecture, "novel"): value for key, value in known.kv.items()}
    novel = replace(known, architecture="novel", kv={**kv, "general.architecture": "novel"})
    for flags in (
        EngineFlags(ctx_tokens=8192, parallel=1),
        EngineFlags(ctx_tokens=32768, n_cpu_moe=3, cache_type_k="q8_0"),
    ):
        exact, bound = (predict(header, flags, gpus(1)) for header in (known, novel))
        assert (exact.exact, bound.exact) == (True, False)
        assert exact.devices[0].need <= bound.devices[0].need < 2 * exact.devices[0].need + 4096 * MIB


def test_a_flag_of_a_fork_makes_it_inexact() -> None:
    assert not predict(models()["moe"], EngineFlags(unknown=("--moe-pool",)), gpus(1)).exact


NUMBERS = st.one_of(
    st.integers(-3, 1 << 40),
    st.just(0),
    st.integers(1, 4096),
    st.lists(st.integers(0, 999), max_size=4).map(tuple),
    st.sampled_from([math.nan, math.inf]),
)
FLAGS = st.builds(
    EngineFlags,
    ctx_tokens=st.integers(0, 1 << 24),
    ubatch_tokens=st.integers(-1, 1 << 16),
    parallel=st.integers(-1, 300),
    kv_unified=st.sampled_from([None, True, False]),
    gpu_layers=st.integers(-2, 1000),
    n_cpu_moe=st.integers(-1, 100),
    split_mode=st.sampled_from(["layer", "none", "row", "?"]),
    tensor_split=st.lists(st.floats(0, 100), max_size=4).map(tuple),
    main_gpu=st.integers(-1, 9),
    cache_type_k=st.sampled_from(["f16", "q8_0", "turbo2"]),
    override_tensors=st.sampled_from([(), ("exps=CPU",), ("blk=CUDA1",), ("(=CPU",), ("nothing",)]),
    flash_attention=st.sampled_from(["auto", "on", "off"]),
    kv_offload=st.booleans(),
    spec_type=st.sampled_from(["", "draft-mtp", "draft-simple"]),
    devices=st.sampled_from(["", "none", "CUDA1", "CUDA7"]),
)


@given(
    model=st.sampled_from(["s_hyb_base", "s_moe_base", "s_oss_base", "gem", "mla"]),
    changes=st.lists(st.tuples(st.integers(0, 60), NUMBERS), max_size=4),
    flags=FLAGS,
    count=st.integers(0, 3),
)
@example(model="s_moe_base", changes=[(0, -1)], flags=EngineFlags(), count=1)
@settings(max_examples=60, deadline=3000)
def test_any_header_and_flags_give_a_bounded_answer(
    model: str, changes: list[tuple[int, Any]], flags: EngineFlags, count: int
) -> None:
    header = models()[model]
    kv = dict(header.kv)
    keys = [key for key in kv if key != "general.architecture"]
    kv |= {keys[at % len(keys)]: value for at, value in changes}
    found = predict(replace(header, kv=kv), flags, gpus(count))
    assert len(found.devices) == count
    assert all(size >= 0 for device in found.devices for size in (device.need, device.peak, device.growth))
    assert found.host.need > 0

"""``ctx = "auto"``, ``n_cpu_moe = "auto"`` and ladders become ways to start a model, the best first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, BinarySpec, Footprint, Ladder, LaunchSpec, Policy
from swapd.gguf.memory import Gpu, predict
from swapd.llama.flags import flags_for
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.planner.fit import fit
from swapd.planner.footprints import Footprints
from swapd.planner.machine import PlanGpu
from swapd.store import Store
from swapd.units import GIB, MIB
from tests.unit.gguf.measured import host_models
from tests.unit.gguf.writer import write_model

BINARY = BinarySpec("x", "/opt/x/llama-server")


def machine(*totals_gib: float) -> MachineSample:
    gpus = [DeviceSample(f"GPU-{i}", int(t * GIB), int(t * GIB), i) for i, t in enumerate(totals_gib)]
    return MachineSample(tuple(gpus), DeviceSample(RAM, 128 * GIB, 120 * GIB))


def spec(folder: Path, model: str, **more: Any) -> LaunchSpec:
    return LaunchSpec("m", gguf=str(write_model(folder / f"{model}.gguf", host_models()[model])), binary=BINARY, **more)


def ways(found: Footprint) -> list[Footprint]:
    return [*found.larger, found]


def footprint(launch: LaunchSpec, sample: MachineSample) -> Footprint:
    return Footprints({"m": launch}, Store(None), run="t", policy=Policy()).footprint("m", sample)


def exactly(launch: LaunchSpec, way: Footprint, sample: MachineSample) -> dict[str, int]:
    """What the flags of a way are predicted to take, each for itself."""
    from dataclasses import replace

    header = host_models()[Path(launch.gguf).stem]
    flags = flags_for(replace(launch, args=(*launch.args, *way.args)), 32_768)
    gpus = [Gpu(g.id, g.total_bytes, g.total_bytes, OVERHEAD_BYTES) for g in sample.gpus]
    return dict(predict(header, flags, gpus).footprint().need_bytes)


def test_contexts_step_down_from_the_trained_one(tmp_path: Path) -> None:
    found = ways(footprint(spec(tmp_path, "host-l-4b", auto_ctx=True), machine(96)))
    contexts = [int(way.args[1]) for way in found]
    assert {way.args[0] for way in found} == {"-c"}
    assert contexts[0] == 262_144 and contexts[-1] == 4096 and contexts == sorted(contexts, reverse=True)
    sizes = [way.on("GPU-0") for way in found]
    assert sizes == sorted(sizes, reverse=True)


def test_as_few_experts_on_the_cpu_as_fit_and_sizes_are_those_of_the_flags(tmp_path: Path) -> None:
    sample = machine(32)
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, ctx_tokens=8192)
    found = ways(footprint(launch, sample))
    assert len(found) == 41 and found[0].args == () and found[-1].args == ("--n-cpu-moe", "40")
    for way in (found[0], found[7], found[20], found[33], found[40]):
        exact = exactly(launch, way, sample)
        assert way.on("GPU-0") == exact["GPU-0"] and way.on(RAM) == exact[RAM], way.args


def test_several_gpus_get_a_split_with_each_number(tmp_path: Path) -> None:
    sample = machine(12, 10)
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, ctx_tokens=8192)
    found = footprint(launch, sample)
    room = {g.id: g.total_bytes - GIB for g in sample.gpus} | {RAM: 100 * GIB}
    best = found.best_for(room)
    assert "-ts" in best.args and best in found.larger
    exact = exactly(launch, best, sample)
    assert all(exact[d] <= room[d] for d in exact), "what is started keeps the headroom"
    gpus = [PlanGpu(Gpu(g.id, g.total_bytes, g.total_bytes, OVERHEAD_BYTES), GIB) for g in sample.gpus]
    fewest = fit(host_models()["host-n-35b"], flags_for(launch), gpus)
    assert fewest is not None and best.args[1] == str(fewest.shed), "as few as the search of swapd plan finds"


def test_both_auto_give_up_experts_first_then_context(tmp_path: Path) -> None:
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, auto_ctx=True)
    found = ways(footprint(launch, machine(32)))
    assert found[0].args == ("-c", "32768")
    assert found[40].args == ("-c", "32768", "--n-cpu-moe", "40")
    assert found[41].args == ("-c", "24576", "--n-cpu-moe", "40")
    assert found[-1].args == ("-c", "4096", "--n-cpu-moe", "40")


@pytest.mark.parametrize(("ctx", "step"), [(131_072, "8GiB"), (196_608, "6GiB"), (262_144, "4GiB")])
def test_host_m_s_ladder_keeps_the_headroom_at_each_context(tmp_path: Path, ctx: int, step: str) -> None:
    ladder = Ladder("--expert-pool", ("8GiB", "6GiB", "4GiB"), (8 * GIB, 6 * GIB, 4 * GIB))
    args = ("--cpu-moe", "-fa", "on", "-ctk", "q8_0", "-ctv", "q4_0", "-np", "1")
    launch = spec(tmp_path, "host-m-177b", args=args, ctx_tokens=ctx, ladder=ladder)
    sample = machine(16376 / 1024)
    info = Footprints({"m": launch}, Store(None), run="t", policy=Policy())
    info.footprint("m", sample)
    header = host_models()["host-m-177b"]
    need = predict(header, flags_for(launch), [Gpu("GPU-0", 16 * GIB, 16 * GIB, OVERHEAD_BYTES)]).devices[0].need
    idle = {"GPU-0": need - 300 * MIB}
    info.record("m", 1, idle, idle, 1.0, False, ())  # this machine's context and kernels are 300 MiB, not 600
    found = info.footprint("m", sample)
    assert ways(found)[-1].args[1] == "4GiB"
    assert found.best_for({"GPU-0": sample.gpus[0].total_bytes - GIB, RAM: 120 * GIB}).args[1] == step


def test_each_way_is_measured_for_itself(tmp_path: Path) -> None:
    launch = spec(tmp_path, "host-l-4b", auto_ctx=True)
    info = Footprints({"m": launch}, Store(None), run="t", policy=Policy())
    first = info.footprint("m", machine(24))
    idle = {"GPU-0": 5 * GIB}
    info.record("m", 1, idle, idle, 1.0, True, first.args)
    again = info.footprint("m", machine(24))
    assert again.on("GPU-0") == 5 * GIB and again.larger[:-1] == first.larger[:-1]


def test_a_hidden_gpu_leaves_the_context_to_the_ram(tmp_path: Path) -> None:
    found = ways(footprint(spec(tmp_path, "host-l-4b", auto_ctx=True, auto_n_cpu_moe=True, gpus=()), machine(24)))
    assert all(set(way.need_bytes) == {RAM} for way in found) and len(found) > 5


def test_ways_that_the_machine_or_the_configured_size_can_never_hold_are_left_out(tmp_path: Path) -> None:
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, ctx_tokens=8192)
    tight = ways(footprint(launch, machine(12)))
    assert tight[0].args[0] == "--n-cpu-moe" and all(way.on("GPU-0") <= 11 * GIB for way in tight)
    small = spec(tmp_path, "host-l-4b", auto_ctx=True, vram=6 * GIB)
    known = Footprints({"m": small}, Store(None), run="t", policy=Policy())
    largest = ways(known.footprint("m", machine(24)))[0]
    assert largest.on("GPU-0") == 6 * GIB and int(largest.args[1]) in (16_384, 24_576), "what 6 GiB hold"


def test_the_way_with_least_vram_is_no_way_where_the_ram_cannot_hold_its_experts(tmp_path: Path) -> None:
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, ctx_tokens=8192, args=("--load-mode", "none"))
    little = MachineSample(machine(24).gpus, DeviceSample(RAM, 12 * GIB, 11 * GIB))
    assert all(way.on(RAM) <= 11 * GIB for way in ways(footprint(launch, little)))


def test_gpus_without_room_are_no_error(tmp_path: Path) -> None:
    launch = spec(tmp_path, "host-n-35b", auto_n_cpu_moe=True, ctx_tokens=8192)
    assert len(ways(footprint(launch, machine(0.5, 0.5)))) == 1

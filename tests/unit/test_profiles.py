"""The three hosts' files: each accepted on its simulated machine, and host L's duo lives together there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swapd import wiring
from swapd.config.resolve import Resolved
from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.ledger import MachineSample
from swapd.core.scheduler import Scheduler
from swapd.devices.monitor import Monitor
from swapd.planner.check import Report
from swapd.units import MIB

PROFILES = Path(__file__).parents[2] / "profiles"
HOSTS = ("host-l", "host-m", "host-n")


def resolved(host: str) -> Resolved:
    return wiring.configure(str(PROFILES / f"{host}.toml"), devices=str(PROFILES / f"{host}.sim.json"), files=False)


def checked(host: str) -> Report:
    return wiring.check(resolved(host), files=False)


def sample(host: str) -> MachineSample:
    return Monitor(resolved(host).device_source).sample_now()


def test_every_profile_has_a_simulated_machine_and_is_tested() -> None:
    assert {p.stem for p in PROFILES.glob("*.toml")} == set(HOSTS)
    assert {p.name.removesuffix(".sim.json") for p in PROFILES.glob("*.sim.json")} == set(HOSTS)


@pytest.mark.parametrize("host", HOSTS)
def test_a_profile_is_accepted_on_its_machine(host: str) -> None:
    report = checked(host)
    assert not [w for w in report.warnings if "never fit" in w or "not yet effective" in w]
    assert sample(host).gpus_known


def test_host_l_is_warned_of_its_headroom_and_of_its_small_models_k() -> None:
    headroom, keys = checked("host-l").warnings
    assert "headroom.vram: 256 MiB is less than 1 GiB" in headroom and "(M1)" in headroom
    assert "L11: models.qwen3-4b: --cache-type-k q4_0 is below q8_0" in keys


def test_host_n_keeps_less_only_on_the_gpu_of_its_own() -> None:
    (warning,) = checked("host-n").warnings
    assert "headroom.gpus.1: 512 MiB" in warning


def test_host_m_keeps_the_headroom_that_was_measured_there() -> None:
    assert checked("host-m").warnings == []


@pytest.mark.parametrize(
    ("host", "model"),
    [("host-l", "qwen3-4b"), ("host-l", "qwen36-35b"), ("host-m", "moe-177b-262k"), ("host-n", "qwen36-35b")],
)
def test_a_model_of_known_size_would_start_at_once(host: str, model: str) -> None:
    assert wiring.imagine(resolved(host)).explain(model)["action"] == "start"


def test_host_l_picks_a_build_and_its_libraries_for_each_model() -> None:
    launches = resolved("host-l").launches
    binaries = [spec.binary for spec in launches.values()]
    assert {b.name for b in binaries if b} == {"turboquant", "upstream", "ik"}
    assert all(b and b.library_path and Path(b.library_path[0]).parent == Path(b.path).parents[1] for b in binaries)
    assert launches["qwen36-35b"].gpus == ()  # set and empty: not "no layer on the GPU"


class Laptop:
    """Host L's scheduler on its machine: what is ready holds what was measured for it."""

    def __init__(self) -> None:
        self.sizes = checked("host-l").sizes
        self.machine = sample("host-l")
        self.scheduler = Scheduler(resolved("host-l").catalog)
        self.now, self.held = 100.0, dict[str, int]()
        for model, size in self.sizes.items():
            self.scheduler.handle(ev.FootprintLearned(self.now, model, size, 1.0))
        self.read()

    def send(self, event: ev.Event) -> list[cmd.Command]:
        """What is ordered, a reading of the GPU included where one is asked for."""
        orders = self.scheduler.handle(event)
        return orders + (self.read() if any(isinstance(o, cmd.SampleDevices) for o in orders) else [])

    def read(self) -> list[cmd.Command]:
        (gpu,) = self.machine.gpus
        left = replace(gpu, free_bytes=(gpu.free_bytes or 0) - sum(self.held.values()))
        return self.scheduler.handle(ev.DeviceSampled(self.now, replace(self.machine, gpus=(left,))))

    def ask(self, model: str) -> list[cmd.Command]:
        return self.send(ev.RequestArrived(self.now, f"r-{model}", model, 0))

    def load(self, model: str) -> list[cmd.Command]:
        """By a request that is answered at once."""
        orders = self.ask(model)
        self.held[model] = self.sizes[model].on(self.machine.gpus[0].id)
        self.send(ev.InstanceReady(self.now, model, self.scheduler.state.records[model].generation))
        self.send(ev.LeaseReturned(self.now, f"r-{model}", served=True))
        return orders

    def ready(self) -> set[str]:
        return {m for m, r in self.scheduler.state.records.items() if r.state.value == "ready"}


@pytest.mark.parametrize("order", [("qwen36-35b", "qwen3-4b"), ("qwen3-4b", "qwen36-35b")])
def test_host_l_holds_its_duo_with_532_mib_left(order: tuple[str, str]) -> None:
    laptop = Laptop()
    for model in order:
        assert any(isinstance(o, cmd.StartInstance) and o.model == model for o in laptop.load(model))
    assert laptop.ready() == {"qwen3-4b", "qwen36-35b"}
    total = json.loads((PROFILES / "host-l.sim.json").read_text())["gpus"][0]["total_mib"]
    assert total - sum(laptop.held.values()) // MIB == 532


def test_host_l_unloads_the_whole_duo_for_any_other_model() -> None:
    laptop = Laptop()
    laptop.load("qwen36-35b")
    laptop.load("qwen3-4b")
    laptop.now += 60  # past every linger
    orders = laptop.ask("gpt-oss-20b")
    assert {o.model for o in orders if isinstance(o, cmd.StopInstance)} == {"qwen3-4b", "qwen36-35b"}

"""Which heads are looked at: fewer than all, and none too few."""

from __future__ import annotations

import random

import pytest

from swapd.bench.simulation import Engine, Simulation
from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.line import NOWHERE, Line
from swapd.core.records import Record, Waiter
from swapd.core.scheduler import Scheduler
from swapd.core.spec import RAM, Catalog, DeviceId, Footprint, Group, ModelSpec, Policy
from swapd.units import GIB

GPUS = ["GPU-0", "GPU-1", "GPU-2"]


class Told(Scheduler):
    """Keeps what it ordered, event by event."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.orders: list[list[str]] = []

    def handle(self, event: ev.Event) -> list[cmd.Command]:
        orders = super().handle(event)
        self.orders.append([repr(order) for order in orders])
        return orders


def crowded(seed: int) -> list[list[str]]:
    """What is ordered while far more models are asked for than there is room, and whatever else happens to them."""
    rng = random.Random(seed)
    names = [f"m{i}" for i in range(40)]
    specs = {m: ModelSpec(m, priority=rng.choice([0, 0, 1]), concurrency=rng.choice([0, 1])) for m in names}
    groups = {f"g{i}": Group(f"g{i}", tuple(names[i * 5 : i * 5 + 5]), exclusive=False) for i in range(4)}
    sizes = {m: {g: rng.randint(3, 16) * GIB for g in rng.sample(GPUS, rng.choice([1, 1, 2]))} for m in names}
    sizes[names[-1]] = {}
    engines = {m: Engine(rng.uniform(0.5, 4), 0.2, rng.choice([0.0, 1.0]), idle_bytes=sizes[m]) for m in names}
    scheduler = Told(Catalog(specs, groups, Policy(max_wait_s=rng.choice([5.0, 60.0]))))
    sim = Simulation(scheduler, engines, dict.fromkeys(GPUS, 24 * GIB) | {RAM: 64 * GIB})
    for model, size in sizes.items():
        sim.send(ev.FootprintLearned(0.0, model, Footprint(size), engines[model].load_s))
    sim.run(0.1)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        sim.request(f"r{asked}", rng.choice(names), rng.randint(10, 9000))

    def granted(rid: str, model: str) -> None:
        sim.after(rng.uniform(0.2, 4), lambda: (sim.finish(rid), ask())[0])

    def disturb() -> None:
        model, rid = rng.choice(names), f"r{rng.randint(1, asked)}"
        match rng.choice(["leave", "leave", "unload", "die", "resize", "preload"]):
            case "leave":
                sim.send(ev.RequestWithdrawn(sim.now, rid))
            case "unload":
                sim.send(ev.UnloadRequested(sim.now, model))
            case "die":
                sim.die(model)
            case "resize":
                sim.send(ev.FootprintLearned(sim.now, model, Footprint(rng.choice(list(sizes.values()))), 1.0))
            case "preload":
                sim.send(ev.LoadRequested(sim.now, f"p{sim.now}", model, preload=True))
        sim.after(rng.uniform(0.5, 5), disturb)

    sim.on_grant = granted
    for _ in range(80):
        ask()
    disturb()
    while len(scheduler.orders) < 900 and sim.step():
        pass
    return scheduler.orders


@pytest.mark.parametrize("seed", range(6))
def test_looking_at_every_head_would_decide_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = crowded(seed)

    def every_head(line: Line, _device: DeviceId, _more_than: int, _up_to: int) -> list[Waiter]:
        return line.came_between(float("-inf"), float("inf"))

    monkeypatch.setattr(Line, "needing", every_head)
    assert orders == crowded(seed)


def waiting(line: Line, name: str, seq: int, need: dict[DeviceId, int]) -> Record:
    record = Record(ModelSpec(name))
    line.resize(record, Footprint(need))
    line.add(Waiter(f"r{seq}", record, float(seq), seq))
    return record


def needing(line: Line, device: DeviceId, more_than: int, up_to: int) -> list[str]:
    return [waiter.record.id for waiter in line.needing(device, more_than, up_to)]


def test_heads_are_found_by_what_they_need_of_a_device() -> None:
    line = Line()
    for seq, (name, need) in enumerate({"a": {"x": 3}, "b": {"x": 5, "y": 1}, "c": {"y": 4}, "d": {}}.items()):
        waiting(line, name, seq, need)
    assert needing(line, "x", 3, 5) == ["b"]
    assert needing(line, "x", -1, 5) == ["a", "b"]
    assert needing(line, "y", 0, 3) == ["b"]
    assert needing(line, "y", 4, 4) == []
    assert needing(line, NOWHERE, -1, 0) == ["d"]


def test_a_head_whose_model_is_sized_anew_is_found_by_its_new_needs_alone() -> None:
    line = Line()
    record = waiting(line, "a", 1, {"x": 3})
    line.resize(record, Footprint({"y": 7}))
    assert needing(line, "x", -1, 100) == []
    assert needing(line, "y", 6, 7) == ["a"]
    line.remove("r1")
    assert needing(line, "y", 6, 7) == []

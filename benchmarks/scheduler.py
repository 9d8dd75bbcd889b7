"""One scheduler event with 1,000 configured models, 2,000 waiting requests and 8 GPUs: how long it is decided."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from swapd.bench.simulation import Engine, Simulation
from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.scheduler import Scheduler
from swapd.core.spec import RAM, Catalog, DeviceId, Footprint, Group, ModelSpec, Policy
from swapd.units import GIB

GPUS = [f"GPU-{i}" for i in range(8)]
GOAL_P99_S = 0.001


@dataclass(frozen=True)
class Timings:
    """Seconds for each event, all of them."""

    events: list[float]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.events, n=100)[98]

    @property
    def median(self) -> float:
        return statistics.median(self.events)


class Timed(Scheduler):
    """Takes the time of every event while ``measuring``."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.timings: list[float] = []
        self.measuring = False

    def handle(self, event: ev.Event) -> list[cmd.Command]:
        started = time.thread_time()
        orders = super().handle(event)
        if self.measuring:
            self.timings.append(time.thread_time() - started)
        return orders


def measure(seed: int = 0, models: int = 1000, waiting: int = 2000, events: int = 6000) -> Timings:
    """Keep ``waiting`` requests waiting, spread over all models, and time every event of the traffic."""
    rng = random.Random(seed)
    names = [f"m{i}" for i in range(models)]
    groups = {f"g{i}": Group(f"g{i}", tuple(names[i * 10 : i * 10 + 10]), exclusive=False) for i in range(20)}
    specs = {m: ModelSpec(m, priority=rng.choice([0, 0, 0, 1])) for m in names}
    scheduler = Timed(Catalog(specs, groups, Policy(queue_limit=10**6)))
    sizes: dict[str, dict[DeviceId, int]] = {
        m: {g: rng.randint(3, 16) * GIB for g in rng.sample(GPUS, rng.choice([1, 1, 2]))} for m in names
    }
    engines = {m: Engine(rng.uniform(1, 8), 0.2, idle_bytes=size) for m, size in sizes.items()}
    sim = Simulation(scheduler, engines, dict.fromkeys(GPUS, 24 * GIB) | {RAM: 512 * GIB})
    for m, size in sizes.items():
        sim.send(ev.FootprintLearned(0.0, m, Footprint(size), engines[m].load_s))
    sim.run(0.1)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        sim.request(f"r{asked}", rng.choice(names), rng.randint(100, 20_000))

    def granted(rid: str, model: str) -> None:
        sim.after(rng.uniform(0.2, 5), lambda: (sim.finish(rid, prefill_tps=1000.0), ask())[0])

    sim.on_grant = granted
    for _ in range(waiting):
        ask()
    sim.run(sim.now + 30)
    scheduler.measuring = True
    while len(scheduler.timings) < events and sim.step():
        pass
    return Timings(scheduler.timings)


def main() -> None:
    for seed in range(3):
        timings = measure(seed)
        print(
            f"seed {seed}: median {timings.median * 1e6:,.0f} us, p99 {timings.p99 * 1e6:,.0f} us, "
            f"max {max(timings.events) * 1e6:,.0f} us over {len(timings.events)} events (goal: p99 < 1,000 us)"
        )


if __name__ == "__main__":
    main()

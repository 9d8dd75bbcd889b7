"""``python -m benchmarks.agents``: weighted stall of swapd's scheduler beside a plain policy, in simulated time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.agents.plain import PlainPolicy
from benchmarks.agents.replay import Replay, Result, lower_bound
from benchmarks.agents.traces import KINDS
from swapd.bench.simulation import Decider
from swapd.core.scheduler import Scheduler
from swapd.core.spec import Catalog

SEEDS = range(5)
GOALS = {"T1": (34, 0.30), "T2": (240, 0.30), "T3": (80, 0.45)}


def replay(kind: str, seed: int, make: Callable[[Catalog], Decider], *, knobs: bool) -> Result:
    return Replay(KINDS[kind](random.Random(seed)), make, knobs=knobs).run()


def main() -> None:
    table = Table(title="Weighted stall, seconds of the simulated machine (mean of five seeds, min-max)")
    for column in ("trace", "swapd", "plain", "ratio", "goal", "bound", "longest wait", "plain's", "loads", "plain's"):
        table.add_column(column, justify="right")
    for kind, (goal, ratio) in GOALS.items():
        ours = [replay(kind, seed, Scheduler, knobs=kind == "T3") for seed in SEEDS]
        plain = [replay(kind, seed, PlainPolicy, knobs=False) for seed in SEEDS]
        bound = statistics.mean(lower_bound(KINDS[kind](random.Random(seed))) for seed in SEEDS)
        mean, base = _mean(ours), _mean(plain)
        spread = f"{min(r.weighted_stall_s for r in ours):.0f}-{max(r.weighted_stall_s for r in ours):.0f}"
        table.add_row(
            kind, f"{mean:.1f} ({spread})", f"{base:.1f}", f"{mean / base:.2f}", f"<= {goal}, <= {ratio}",
            f"{bound:.1f}", f"{max(r.longest_wait_s for r in ours):.1f}", f"{max(r.longest_wait_s for r in plain):.1f}",
            f"{statistics.mean(r.loads for r in ours):.1f}", f"{statistics.mean(r.loads for r in plain):.1f}",
        )  # fmt: skip
    Console(width=140).print(table)


def _mean(results: list[Result]) -> float:
    return statistics.mean(r.weighted_stall_s for r in results)


if __name__ == "__main__":
    main()

"""What swapd adds to a swap, beside the engines' own stop and load: three gaps, summed.

request -> the old model's stop begun; its process gone -> the new one's exec done; the new engine ready -> the
request forwarded. Real supervisor, launcher and child processes (fake engines, which tell when they were ready).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
import uvloop
from tests.fakes import fake_llama_server

from benchmarks.real import ReadyLauncher
from swapd.core import events as ev
from swapd.core.commands import Command
from swapd.core.endpoint import Upstream
from swapd.core.scheduler import Scheduler
from swapd.core.spec import BinarySpec, Catalog, Group, LaunchSpec, ModelSpec
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.proxy.calm import settle
from swapd.supervisor.pool import Supervisor

GOAL_MS = 25
SWAPS = 12


class Watched(Scheduler):
    """Notes when a process was seen gone."""

    exited_at = 0.0

    def handle(self, event: ev.Event) -> list[Command]:
        if isinstance(event, ev.InstanceExited):
            Watched.exited_at = time.monotonic()
        return super().handle(event)


async def measure(folder: Path) -> list[tuple[float, float, float]]:
    """Milliseconds of the three gaps for each swap."""
    log = folder / "log"
    binary = BinarySpec("fake", fake_llama_server.install(folder))
    env = {"FAKE_LOG": str(log), "SPEAK_ROUTER": "1"}
    specs = {m: LaunchSpec(m, gguf=str(folder / "m.gguf"), binary=binary, gpus=(), env=env) for m in ("a", "b")}
    launcher = LlamaLauncher(specs, Surroundings(folder, dict(os.environ)), resolve_gpus=lambda _: ())
    world = ReadyLauncher(Upstream())
    catalog = Catalog({m: ModelSpec(m, linger=0.0) for m in specs}, {"g": Group("g", tuple(specs))})
    supervisor = Supervisor(catalog, launcher=launcher, monitor=world, store=world, info=world, clock=world)
    supervisor.scheduler = Watched(catalog)
    stopped: list[float] = []
    started: list[float] = []
    supervisor.add_retire_listener(lambda *_: stopped.append(time.monotonic()))
    start = launcher.start

    async def timed_start(*args: Any) -> Any:
        instance = await start(*args)
        started.append(time.monotonic())
        return instance

    launcher.start = timed_start  # type: ignore[method-assign]
    gaps = []
    settle()  # as a swapd that serves has done
    async with supervisor.running():
        for number in range(SWAPS + 1):
            asked = time.monotonic()
            ticket = supervisor.request("ab"[number % 2], rid=str(number))
            await ticket.wait()
            granted = time.monotonic()
            ticket.close(served=True)
            ready = [json.loads(line)["t"] for line in log.read_text().splitlines() if '"ready"' in line][-1]
            if number:
                gaps.append((stopped[-1] - asked, started[-1] - Watched.exited_at, granted - ready))
            await asyncio.sleep(0.2)
    launcher.close()
    return [(1000 * a, 1000 * b, 1000 * c) for a, b, c in gaps]


def main() -> float:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        gaps = uvloop.run(measure(Path(folder)))
    parts = [statistics.median(column) for column in zip(*gaps, strict=True)]
    whole = statistics.median(sum(row) for row in gaps)
    names = ("request to stop", "exit to exec", "ready to forwarded")
    gaps_text = ", ".join(f"{name} {ms:.1f} ms" for name, ms in zip(names, parts, strict=True))
    worst = max(sum(row) for row in gaps)
    print(f"swap: {gaps_text}; summed {whole:.1f} ms, worst {worst:.1f} ms of {len(gaps)} (goal: at most {GOAL_MS} ms)")
    return whole


if __name__ == "__main__":
    main()

"""The same traces with real processes: real supervisor and launcher, fake engines that load as long as the trace says.

``python -m benchmarks.agents.real [SEED]``: all three at once, in real time (about five minutes).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog
import uvloop
from tests.fakes import fake_llama_server

from benchmarks.agents.__main__ import replay
from benchmarks.agents.replay import Result, Slots
from benchmarks.agents.traces import GPU, KINDS, TOTALS, Actor, Ask, Spawn, Think, Trace
from benchmarks.real import ReadyLauncher
from swapd.core.endpoint import Upstream
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.scheduler import Scheduler
from swapd.core.spec import RAM, BinarySpec, Catalog, DeviceId, Footprint, LaunchSpec, ModelId, ModelSpec
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.supervisor.pool import Supervisor


class Card(ReadyLauncher):
    """The simulated card, and what each model of the trace takes."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(Upstream())
        self.trace = trace

    async def sample(self, pids: object) -> tuple[MachineSample, Mapping[ModelId, Mapping[DeviceId, int]]]:
        gpu = DeviceSample(GPU, TOTALS[GPU], TOTALS[GPU], 0, "simulated")
        return MachineSample((gpu,), DeviceSample(RAM, TOTALS[RAM], TOTALS[RAM])), {}

    def footprint(self, model: ModelId, sample: MachineSample) -> Footprint:
        return Footprint({GPU: self.trace.models[model].vram_mib << 20})

    def estimated_load_s(self, model: ModelId) -> float:
        return self.trace.models[model].load_s


class RealReplay:
    """One trace in real time; the service times are slept through while the lease is held."""

    def __init__(self, trace: Trace, supervisor: Supervisor) -> None:
        self.trace, self.supervisor, self.result = trace, supervisor, Result()
        self.slots: dict[tuple[str, int], tuple[Slots, asyncio.Semaphore]] = {}

    async def run(self) -> Result:
        async with asyncio.TaskGroup() as group:
            for actor in self.trace.actors:
                group.create_task(self.act(actor, group))
        return self.result

    async def act(self, actor: Actor, group: asyncio.TaskGroup) -> None:
        for step in actor:
            match step:
                case Think(seconds):
                    await asyncio.sleep(seconds)
                case Ask():
                    await self.ask(step)
                case Spawn(actors, join):
                    tasks = [group.create_task(self.act(a, group)) for a in actors]
                    if join:
                        await asyncio.gather(*tasks)

    async def ask(self, ask: Ask) -> None:
        loop, model = asyncio.get_running_loop(), self.trace.models[ask.model]
        self.result.requests += 1
        asked_at = loop.time()
        ticket = self.supervisor.request(ask.model, rid=f"r{self.result.requests}", prompt_tokens=ask.prompt)
        await ticket.wait()
        new = Slots(model.slots), asyncio.Semaphore(model.slots)
        slots, free = self.slots.setdefault((ask.model, ticket.generation), new)
        async with free:
            read = ask.new if ask.conversation in slots.kept else ask.prompt
            slots.remember(ask.conversation)
            await asyncio.sleep(read / model.prefill_tps + ask.answer / model.decode_tps)
        stall = loop.time() - asked_at - ask.new / model.prefill_tps - ask.answer / model.decode_tps
        ticket.close(served=True, prefill_tps=model.prefill_tps)
        self.result.weighted_stall_s += ask.weight * max(0.0, stall)
        self.result.longest_wait_s = max(self.result.longest_wait_s, stall)


async def replayed(trace: Trace, folder: Path) -> Result:
    folder.mkdir()
    binary = BinarySpec("fake", fake_llama_server.install(folder))
    specs = {
        m: LaunchSpec(m, gguf="m.gguf", binary=binary, gpus=(), env={"LOAD_S": str(model.load_s), "SPEAK_ROUTER": "1"})
        for m, model in trace.models.items()
    }
    launcher = LlamaLauncher(specs, Surroundings(folder, dict(os.environ)), resolve_gpus=lambda _: ())
    card = Card(trace)
    knobs = trace.specs if trace.name == "T3" else {}
    catalog = Catalog({m: ModelSpec(m) for m in trace.models} | knobs)
    supervisor = Supervisor(catalog, launcher=launcher, monitor=card, store=card, info=card, clock=card)
    async with supervisor.running():
        result = await RealReplay(trace, supervisor).run()
        result.loads = sum(r.loads for r in supervisor.scheduler.state.records.values())
    launcher.close()
    return result


async def all_traces(seed: int, folder: Path) -> list[Result]:
    runs = [replayed(make(random.Random(seed)), folder / name) for name, make in KINDS.items()]
    return list(await asyncio.gather(*runs))


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        real = uvloop.run(all_traces(seed, Path(folder)))
    for kind, result in zip(KINDS, real, strict=True):
        pure = replay(kind, seed, Scheduler, knobs=kind == "T3")
        off = 100 * (result.weighted_stall_s / pure.weighted_stall_s - 1)
        print(
            f"{kind} seed {seed}: real processes {result.weighted_stall_s:.1f} s ({result.loads} loads, longest wait "
            f"{result.longest_wait_s:.1f} s), simulated {pure.weighted_stall_s:.1f} s: {off:+.0f} % (goal: within 25 %)"
        )


if __name__ == "__main__":
    main()

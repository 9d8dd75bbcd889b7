"""Replays a trace in simulated time and measures stall: what a request took beyond its own tokens."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.agents.traces import GPU, TOTALS, Actor, Ask, Spawn, Think, Trace
from swapd.bench.simulation import Decider, Engine, Simulation
from swapd.core import events as ev
from swapd.core.spec import Catalog, Footprint, ModelSpec, Policy
from swapd.units import MIB

CONTEXT_SLOTS_LOST_ON_UNLOAD = True


@dataclass
class Result:
    weighted_stall_s: float = 0.0
    longest_wait_s: float = 0.0
    loads: int = 0
    requests: int = 0


class Slots:
    """A loaded engine's slots: requests beyond them wait inside; conversations are kept, least recent lost."""

    def __init__(self, count: int) -> None:
        self.count, self.busy = count, 0
        self.waiting: deque[Callable[[], None]] = deque()
        self.kept: OrderedDict[str, None] = OrderedDict()

    def remember(self, conversation: str) -> None:
        self.kept[conversation] = None
        self.kept.move_to_end(conversation)
        while len(self.kept) > self.count:
            self.kept.popitem(last=False)


class Replay:
    """One trace against one decider."""

    def __init__(self, trace: Trace, make: Callable[[Catalog], Decider], *, knobs: bool) -> None:
        specs = {m: ModelSpec(m) for m in trace.models} | (trace.specs if knobs else {})
        catalog = Catalog(specs, policy=Policy())
        engines = {
            m: Engine(model.load_s, 0.2, idle_bytes={GPU: model.vram_mib * MIB}) for m, model in trace.models.items()
        }
        self.trace, self.result = trace, Result()
        self.sim = Simulation(make(catalog), engines, TOTALS)
        self.sim.on_grant, self.sim.on_refuse = self._granted, self._refused
        self.slots: dict[tuple[str, int], Slots] = {}
        self.open: dict[str, tuple[Ask, float, Callable[[], None]]] = {}

    def run(self) -> Result:
        for model, engine in self.sim.engines.items():
            self.sim.send(ev.FootprintLearned(0.0, model, Footprint(engine.idle_bytes), engine.load_s))
        self.sim.run(0.01)
        for actor in self.trace.actors:
            self._go_on(actor, lambda: None)
        while self.open or self.sim.now < 1:
            if not self.sim.step() or self.sim.now > 50_000:
                raise RuntimeError(f"{self.trace.name} did not end: {len(self.open)} requests are open")
        self.result.loads = len(self.sim.starts)
        return self.result

    def _go_on(self, actor: Actor, done: Callable[[], None]) -> None:
        try:
            step = next(actor)
        except StopIteration:
            done()
            return
        match step:
            case Think(seconds):
                self._pending(seconds, lambda: self._go_on(actor, done))
            case Ask():
                self._ask(step, lambda: self._go_on(actor, done))
            case Spawn(actors, join):
                self._spawn(actors, join, lambda: self._go_on(actor, done))

    def _pending(self, seconds: float, do: Callable[[], None]) -> None:
        key = f"think{len(self.open)}-{self.sim.now}-{seconds}"
        self.open[key] = (Ask("", "", 0, 0, 0), 0.0, do)

        def go() -> None:
            del self.open[key]
            do()

        self.sim.after(seconds, go)

    def _spawn(self, actors: tuple[Actor, ...], join: bool, go_on: Callable[[], None]) -> None:
        left = [len(actors)]

        def one_done() -> None:
            left[0] -= 1
            if join and not left[0]:
                go_on()

        for actor in actors:
            self._go_on(actor, one_done)
        if not join:
            go_on()

    def _ask(self, ask: Ask, then: Callable[[], None]) -> None:
        self.result.requests += 1
        rid = f"r{self.result.requests}"
        self.open[rid] = (ask, self.sim.now, then)
        self.sim.request(rid, ask.model, ask.prompt)

    def _granted(self, rid: str, model: str) -> None:
        process = self.sim.running_on(rid)
        assert process is not None
        slots = self.slots.setdefault((model, process.generation), Slots(self.trace.models[model].slots))
        if slots.busy < slots.count:
            self._serve(rid, slots)
        else:
            slots.waiting.append(lambda: self._serve(rid, slots))

    def _serve(self, rid: str, slots: Slots) -> None:
        slots.busy += 1
        ask = self.open[rid][0]
        model = self.trace.models[ask.model]
        read = ask.new if ask.conversation in slots.kept else ask.prompt
        slots.remember(ask.conversation)
        seconds = read / model.prefill_tps + ask.answer / model.decode_tps
        self.sim.after(seconds, lambda: self._served(rid, slots))

    def _served(self, rid: str, slots: Slots) -> None:
        ask, asked_at, then = self.open.pop(rid)
        model = self.trace.models[ask.model]
        slots.busy -= 1
        if slots.waiting:
            slots.waiting.popleft()()
        took = self.sim.now - asked_at
        stall = took - ask.new / model.prefill_tps - ask.answer / model.decode_tps
        self.result.weighted_stall_s += ask.weight * max(0.0, stall)
        self.result.longest_wait_s = max(self.result.longest_wait_s, stall)
        self.sim.finish(rid, prefill_tps=model.prefill_tps)
        then()

    def _refused(self, rid: str, error: object) -> None:
        raise RuntimeError(f"{rid} was refused: {error}")


def lower_bound(trace: Trace) -> float:
    """No policy on demand does better: the first request to each model waits for that model's load."""
    used = {ask.model: ask.weight for ask in _all_asks(trace)}
    return sum(trace.models[m].load_s * weight for m, weight in used.items())


def _all_asks(trace: Trace) -> list[Ask]:
    asks: list[Ask] = []
    actors = list(trace.actors)
    while actors:
        for step in actors.pop():
            if isinstance(step, Ask):
                asks.append(step)
            elif isinstance(step, Spawn):
                actors.extend(step.actors)
    return asks

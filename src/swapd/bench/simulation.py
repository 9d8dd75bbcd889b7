"""The real ``Scheduler`` in simulated time: a machine, processes that load and stop, and clients as callbacks.

No process, no sleep: a heap of moments. The benchmarks replay traces on it, and
the random-world tests judge the scheduler by what this machine really holds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, DeviceId, ModelId
from swapd.errors import SwapdError


class Decider(Protocol):
    """What is simulated: swapd's scheduler, or another policy with the same face."""

    def handle(self, event: ev.Event) -> list[cmd.Command]: ...


@dataclass(slots=True)
class Engine:
    """How a model's process behaves; seconds and bytes. ``outcomes``: of the next starts ("ok", else a cause).

    ``idle_by_args``: what it takes when it is started with these arguments.
    """

    load_s: float
    stop_s: float = 0.2
    release_s: float = 0.0
    idle_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    growth_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    outcomes: deque[str] = field(default_factory=deque)
    unkillable: bool = False
    idle_by_args: Mapping[tuple[str, ...], Mapping[DeviceId, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Process:
    """A simulated child."""

    model: ModelId
    generation: int
    held: dict[DeviceId, int]
    idle: Mapping[DeviceId, int]
    ready: bool = False
    ending: bool = False
    running: set[str] = field(default_factory=set)


class Simulation:
    """Time, memory and processes; ``on_grant`` and ``on_refuse`` are the clients.

    ``tells_held``: the driver tells what single processes hold (bare metal), or not (most containers).
    """

    def __init__(
        self,
        decider: Decider,
        engines: Mapping[ModelId, Engine],
        totals: Mapping[DeviceId, int],
        foreign: Mapping[DeviceId, int] | None = None,
        *,
        sample_s: float = 0.001,
        tells_held: bool = True,
    ) -> None:
        self.decider = decider
        self.engines = engines
        self.totals = dict(totals)
        self.foreign = dict(foreign or {})
        self.gpus_known = True
        self.now = 0.0
        self.processes: dict[ModelId, Process] = {}
        self.lingering: dict[DeviceId, int] = dict.fromkeys(totals, 0)
        self.gave_back_at = float("-inf")
        self.starts: list[tuple[float, ModelId]] = []
        self.on_grant: Callable[[str, ModelId], None] = lambda rid, model: None
        self.on_refuse: Callable[[str, SwapdError], None] = lambda rid, error: None
        self.on_start: Callable[[ModelId], None] = lambda model: None
        self.on_cut: Callable[[str], None] = lambda rid: None
        self._sample_s = sample_s
        self._tells_held = tells_held
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._events: deque[ev.Event] = deque()
        self._sending = False
        self._seq = 0
        self._wake = 0
        self._leases: dict[str, Process] = {}
        self._loads: set[str] = set()

    # ---- time

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do something at a moment."""
        self._seq += 1
        heapq.heappush(self._heap, (max(when, self.now), self._seq, do))

    def after(self, delay: float, do: Callable[[], None]) -> None:
        """Do something a while from now."""
        self.at(self.now + delay, do)

    def step(self) -> bool:
        """Go to the next moment; False if nothing is left."""
        if not self._heap:
            return False
        self.now, _, do = heapq.heappop(self._heap)
        do()
        return True

    def run(self, until: float) -> None:
        """Go on until a time (or the end)."""
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = max(self.now, until)

    def send(self, event: ev.Event) -> None:
        """Give the decider a fact and carry out its orders, as the supervisor's dispatch does."""
        self._events.append(event)
        if self._sending:
            return
        self._sending = True
        try:
            while self._events:
                for command in self.decider.handle(self._events.popleft()):
                    self._carry_out(command)
        finally:
            self._sending = False

    # ---- clients

    def request(self, rid: str, model: ModelId, prompt_tokens: int = 0) -> None:
        """A request arrives now."""
        self.send(ev.RequestArrived(self.now, rid, model, prompt_tokens))

    def load(self, rid: str, model: ModelId) -> None:
        """An operator's load arrives now; its grant is no lease."""
        self._loads.add(rid)
        self.send(ev.LoadRequested(self.now, rid, model))

    def finish(self, rid: str, *, served: bool = True, prefill_tps: float = 0.0) -> None:
        """A granted request ends now; one that was cut, or whose process died, has ended already."""
        process = self._leases.pop(rid, None)
        if process is not None:
            process.running.discard(rid)
            if served:
                self._grow(process)
            self.send(ev.LeaseReturned(self.now, rid, served, prefill_tps))

    def running_on(self, rid: str) -> Process | None:
        """The process that serves a granted request."""
        return self._leases.get(rid)

    # ---- memory

    def used(self, device: DeviceId) -> int:
        """What the device really holds: other programs, our processes, and what is not given back yet."""
        ours = sum(p.held.get(device, 0) for p in self.processes.values())
        return self.foreign.get(device, 0) + ours + self.lingering[device]

    def sample(self) -> MachineSample:
        """A reading."""
        gpus = [d for d in self.totals if d != RAM]
        devices = tuple(self._device(d, i) for i, d in enumerate(gpus)) if self.gpus_known else ()
        problem = "" if self.gpus_known else "simulated failure"
        return MachineSample(devices, self._device(RAM, 0), self.gpus_known, problem)

    def _device(self, device: DeviceId, index: int) -> DeviceSample:
        total = self.totals[device]
        return DeviceSample(device, total, max(0, total - self.used(device)), index, device)

    def _grow(self, process: Process) -> None:
        engine = self.engines[process.model]
        for device, idle in process.idle.items():
            process.held[device] = idle + engine.growth_bytes.get(device, 0)

    # ---- orders

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartInstance(model, generation, _, args):
                self._start(model, generation, args)
            case cmd.StopInstance(model, generation, _, _):
                self._stop(model, generation)
            case cmd.GrantLease(rid, model, _):
                self._grant(rid, model)
            case cmd.RefuseRequest(rid, error):
                self.after(0, lambda: self.on_refuse(rid, error))
            case cmd.SampleDevices():
                self._read()
            case cmd.WakeAt(at):
                self._wake += 1
                if at is not None:
                    self._wake_at(at, self._wake)
            case cmd.PrepareInstance() | cmd.StoreFootprint():
                pass

    def _wake_at(self, at: float, serial: int) -> None:
        def wake() -> None:
            if serial == self._wake:
                self.send(ev.DeadlinePassed(self.now))

        self.at(at, wake)

    def _read(self) -> None:
        taken_at, sample = self.now, self.sample()
        held = {m: dict(p.held) for m, p in self.processes.items()} if self._tells_held else {}
        self.after(self._sample_s, lambda: self.send(ev.DeviceSampled(taken_at, sample, held)))

    def _grant(self, rid: str, model: ModelId) -> None:
        process = self.processes[model]
        if rid not in self._loads and not rid.startswith("restart:"):
            self._leases[rid] = process
            process.running.add(rid)
        self.after(0, lambda: self.on_grant(rid, model))

    def _start(self, model: ModelId, generation: int, args: tuple[str, ...]) -> None:
        assert model not in self.processes, f"{model} started twice"
        engine = self.engines[model]
        self.starts.append((self.now, model))
        idle = engine.idle_by_args.get(args, engine.idle_bytes)
        process = self.processes[model] = Process(model, generation, dict(idle), idle)
        self.on_start(model)
        outcome = engine.outcomes.popleft() if engine.outcomes else "ok"
        if outcome == "ok":
            self.after(engine.load_s, lambda: self._ready(process))
        else:
            self.after(engine.load_s / 2, lambda: self._fail(process, outcome))

    def _ready(self, process: Process) -> None:
        if not process.ending and self.processes.get(process.model) is process:
            process.ready = True
            self.send(ev.InstanceReady(self.now, process.model, process.generation))

    def _fail(self, process: Process, cause: str) -> None:
        if not process.ending and self.processes.get(process.model) is process:
            self._end(process)
            self.send(ev.StartFailed(self.now, process.model, process.generation, f"exit code 1: {cause}", cause))

    def _stop(self, model: ModelId, generation: int) -> None:
        process = self.processes[model]
        assert process.generation == generation
        process.ending = True
        for rid in list(process.running):
            self.on_cut(rid)
            self.finish(rid, served=False)
        if self.engines[model].unkillable:
            self.after(40, lambda: self.send(ev.InstanceLost(self.now, model, generation, "SIGKILL did not end it")))
        else:
            self.after(self.engines[model].stop_s, lambda: self._exit(process))

    def die(self, model: ModelId) -> None:
        """A ready process ends by itself."""
        process = self.processes.get(model)
        if process is not None and process.ready and not process.ending:
            self._exit(process, "signal SIGABRT")

    def _exit(self, process: Process, message: str = "") -> None:
        if self.processes.get(process.model) is not process:
            return
        running = list(process.running)
        self._end(process)
        self.send(ev.InstanceExited(self.now, process.model, process.generation, message))
        for rid in running:
            self._leases.pop(rid, None)
            self.on_cut(rid)
            self.send(ev.LeaseReturned(self.now, rid, served=False))

    def _end(self, process: Process) -> None:
        """The process is gone; its memory comes back ``release_s`` later."""
        del self.processes[process.model]
        lag = self.engines[process.model].release_s
        if lag:
            for device, size in process.held.items():
                self.lingering[device] += size
            self.after(lag, lambda: self._give_back(process.held))

    def _give_back(self, held: Mapping[DeviceId, int]) -> None:
        for device, size in held.items():
            self.lingering[device] -= size
        self.gave_back_at = self.now

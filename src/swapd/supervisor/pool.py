"""The one owner of ``Scheduler``: events in, commands out, children and leases in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import structlog

from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.ledger import MachineSample
from swapd.core.lifecycle import InstanceState
from swapd.core.scheduler import Scheduler
from swapd.core.spec import Catalog, ModelId
from swapd.errors import InstanceDied, SwapdError, UnknownModel
from swapd.supervisor import status
from swapd.supervisor.children import Children, died
from swapd.supervisor.listeners import Listeners
from swapd.supervisor.ports import Clock, DeviceMonitor, FootprintStore, Launcher, ModelInfo
from swapd.supervisor.readings import Readings
from swapd.supervisor.tickets import Ticket

RetireListener: TypeAlias = Callable[[ModelId, int, SwapdError | None], None]
"""Called with (model, generation, error) right before a process is stopped: close every upstream
connection to it; requests still running on it end with ``error`` (there are none if it is None)."""

log = structlog.get_logger(__name__)


class Supervisor:
    """Owns the scheduler, the instances and the tickets; lives inside ``running()``.

    ``dispatch`` is the arbiter: synchronous, it never awaits and needs no lock.
    Slow orders become tasks of one task group and come back as events.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        launcher: Launcher,
        monitor: DeviceMonitor,
        store: FootprintStore,
        info: ModelInfo,
        clock: Clock,
    ) -> None:
        self.catalog = catalog
        self.scheduler = Scheduler(catalog)
        self._launcher, self._store, self._info, self._clock = launcher, store, info, clock
        self._events: deque[ev.Event] = deque()
        self._dispatching = False
        self._tickets: dict[str, Ticket] = {}
        self._children = Children(launcher, self.dispatch, clock, self._read_devices)
        self._readings = Readings(monitor, clock, self._children.pids)
        self._unread: ev.DeviceSampled | None = None
        self._retire_listeners: list[RetireListener] = []
        self._listeners = Listeners()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._sized: set[ModelId] = set()
        self._all_gone = asyncio.Event()

    # ---- life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Supervisor]:
        """Start (sweep, first reading, preload) and, at the end, stop every child, whatever happens."""
        for line in await self._launcher.sweep():
            log.warning("orphan ended", child=line)
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            try:
                await self._read_devices()
                self._preload(list(self.catalog.models))
                yield self
            finally:
                await asyncio.shield(self.shutdown())
                if self._wake is not None:
                    self._wake.cancel()
                self._group = None
                for task in self._tasks:
                    task.cancel()

    def _preload(self, among: Sequence[ModelId]) -> None:
        wanted = self.catalog.preloaded()
        for model in [m for m in among if m in wanted]:
            self.load(model, rid=f"preload:{model}", preload=True)

    async def shutdown(self) -> None:
        """Stop admitting, drain, stop every child; bounded by ``drain`` and each child's own stop ladder."""
        self.dispatch(ev.ShutdownRequested(self._clock.now()))
        if self._any_process():
            self._all_gone.clear()
            await self._all_gone.wait()

    def shutdown_now(self) -> None:
        """A second signal: no more drain, SIGKILL."""
        self.dispatch(ev.ShutdownRequested(self._clock.now(), force=True))
        self._children.kill_all(self._spawn)

    def _any_process(self) -> bool:
        gone = (InstanceState.RELEASING, InstanceState.LOST)
        return any(r.state not in gone for r in self.scheduler.state.live.values())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is None:
            work.close()
            return
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the arbiter

    def dispatch(self, event: ev.Event) -> None:
        """Give the scheduler a fact and carry out its orders; events that come of them wait their turn."""
        self._catch_up()
        self._events.append(event)
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._events:
                current = self._events.popleft()
                for command in self.scheduler.handle(current):
                    self._carry_out(command)
                if self.scheduler.state.stepped:
                    self._publish()
                elif isinstance(current, ev.LoadProgressed) and self._listeners:
                    self._listeners.tell(status.change(self.scheduler.state.records[current.model]))
        finally:
            self._dispatching = False

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.GrantLease(rid, model, generation):
                ticket = self._tickets.pop(rid, None)
                if ticket is not None:
                    ticket.grant(self._children.upstream(model), generation)
            case cmd.WakeAt(at):
                self._wake_at(at)
            case cmd.RefuseRequest(rid, error):
                log.info("request refused", rid=rid, code=error.code, reason=error.message)
                ticket = self._tickets.pop(rid, None)
                if ticket is not None:
                    ticket.refuse(error)
            case cmd.SampleDevices(reason):
                log.debug("sample devices", reason=reason)
                if self._group is not None:
                    asyncio.get_running_loop().call_soon(self._look)
            case _:
                self._carry_out_slow(command)

    def _carry_out_slow(self, command: cmd.Command) -> None:
        match command:
            case cmd.PrepareInstance(model):
                self._spawn(self._children.prepare(model))
            case cmd.StartInstance(model, generation, reason, args):
                log.info("start", model=model, generation=generation, reason=reason)
                spec = self.catalog.models[model]
                self._spawn(self._children.run(model, generation, args, sample_first=spec.expect_gpu))
            case cmd.StopInstance(model, generation, reason, cut):
                log.info("stop", model=model, generation=generation, reason=reason, cut=cut is not None)
                for listener in self._retire_listeners:
                    listener(model, generation, cut)
                self._spawn(self._children.stop(model, generation, reason))
            case cmd.StoreFootprint(model, generation, idle, peak, load_s, worked, args):
                if self._store.record(model, generation, idle, peak, load_s, worked, args):
                    self._sized.clear()
                self._size(model)

    def _wake_at(self, at: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if at is not None and self._group is not None:
            delay = min(max(0.0, at - self._clock.now()), 86_400.0)  # never is a day: no timer takes infinity
            self._wake = asyncio.get_running_loop().call_later(delay, self._woken)

    def _woken(self) -> None:
        self._wake = None
        if self.scheduler.is_calm(self._clock.now()):
            self._look()
        else:
            self.dispatch(ev.DeadlinePassed(self._clock.now()))

    # ---- devices and sizes

    def _look(self) -> None:
        """Read the devices: here and now where that takes no time, in a task where a driver has to be asked."""
        reading = self._readings.glance()
        if reading is None:
            self._wake_at(self.scheduler.due_at)  # nothing that falls due waits for a driver
            self._spawn(self._read_devices())
        elif self._group is not None:
            self._take_reading(reading)

    async def _read_devices(self) -> None:
        self._take_reading(await self._readings.read())

    def take_in(self, sample: MachineSample) -> None:
        """Use a reading that somebody else took (``explain`` without a running swapd)."""
        self._take_reading(ev.DeviceSampled(self._clock.now(), sample))

    def _take_reading(self, reading: ev.DeviceSampled) -> None:
        """One that leads to nothing waits for the next event, or for the next reading in its place.

        Other devices than before: every model is sized anew when it is next asked for.
        """
        if self._readings.keep(reading.sample):
            self._sized.clear()
        again = self.scheduler.next_reading_after(reading)
        self._unread = reading if again is not None else None
        if again is None:
            self.dispatch(reading)
        else:
            self._wake_at(again)

    def _catch_up(self) -> None:
        """Have the reading that waits handled: somebody looks."""
        if self._unread is not None:
            reading, self._unread = self._unread, None
            self.dispatch(reading)

    def _size(self, model: ModelId) -> None:
        """Tell the scheduler what a model takes on the devices there are; nothing of one that a reload removed."""
        if model not in self.catalog.models:
            return
        self._sized.add(model)
        self._catch_up()
        footprint = self._info.footprint(model, self.scheduler.state.ledger.without_ours(self._readings.last))
        self.dispatch(ev.FootprintLearned(self._clock.now(), model, footprint, self._info.estimated_load_s(model)))

    # ---- requests and operators

    def replace(self, catalog: Catalog, changed: frozenset[ModelId]) -> None:
        """Another configuration: see ``ConfigReplaced``. New models that are to be preloaded are loaded."""
        new = [m for m in catalog.models if m not in self.catalog.models]
        self.catalog = catalog
        self.dispatch(ev.ConfigReplaced(self._clock.now(), catalog, changed))
        self._sized.clear()
        for model in changed:
            self._size(model)
        self._preload(new)

    def request(self, model: ModelId, *, rid: str, prompt_tokens: int = 0) -> Ticket:
        """Ask for a model; the ticket may be granted or refused already. Synchronous, never suspends."""
        ticket = self._ticket(rid, model, self._close_request)
        self.dispatch(ev.RequestArrived(self._clock.now(), rid, model, prompt_tokens))
        return ticket

    def load(self, model: ModelId, *, rid: str, preload: bool = False) -> Ticket:
        """Ask that a model be loaded; granted when it is ready, holds no lease; withdrawing it stops nothing."""
        ticket = self._ticket(rid, model, _close_nothing)
        self.dispatch(ev.LoadRequested(self._clock.now(), rid, model, preload))
        return ticket

    def _ticket(self, rid: str, model: ModelId, close: Callable[[Ticket, bool, float], None]) -> Ticket:
        if model not in self.catalog.models:
            raise UnknownModel(f"{model!r} is no longer configured")
        ticket = self._tickets[rid] = Ticket(rid, model, close)
        if model not in self._sized:
            self._size(model)
        return ticket

    def _close_request(self, ticket: Ticket, served: bool, prefill_tps: float) -> None:
        now = self._clock.now()
        if ticket.upstream is not None:
            self.dispatch(ev.LeaseReturned(now, ticket.rid, served, prefill_tps))
        else:
            self._tickets.pop(ticket.rid, None)
            self.dispatch(ev.RequestWithdrawn(now, ticket.rid))

    async def unload(self, model: ModelId, *, force: bool = False, wait: bool = True) -> None:
        """Unload a model; returns when its process is gone (at once with ``wait=False``).

        Raises:
            InstanceDied: if even SIGKILL does not end it.
        """
        generation = self.scheduler.state.records[model].generation
        self.dispatch(ev.UnloadRequested(self._clock.now(), model, force))
        if wait and not await self._children.gone(model, generation):
            raise InstanceDied(f"the process of {model!r} cannot be killed; its memory stays counted", cause="lost")

    def peek(self, model: ModelId) -> Ticket | None:
        """A ticket for a look-up on a running instance: never loads, never counts as use; None if it is not ready."""
        record = self.scheduler.state.records[model]
        if record.state not in (InstanceState.READY, InstanceState.DRAINING):
            return None
        ticket = Ticket(f"peek:{model}", model, _close_nothing)
        ticket.grant(self._children.upstream(model), record.generation)
        return ticket

    async def death(self, model: ModelId, generation: int) -> InstanceDied:
        """Why a process that broke a connection ended; waits at most half a second for its exit."""
        report = await self._children.exit_report(model, generation, bound_s=0.5)
        if report is None:
            return InstanceDied(f"the process of {model!r} closed the connection", cause="connection_closed")
        return died(model, report)

    def add_retire_listener(self, listener: RetireListener) -> None:
        """Register the proxy's hook that closes upstream connections."""
        self._retire_listeners.append(listener)

    # ---- for display

    def status(self) -> dict[str, Any]:
        """``devices``, ``ram`` and ``models`` of ``GET /api/status``, JSON-ready, and whether devices are ``known``."""
        self._catch_up()
        errors = {m: self._info.prediction_errors(m) for m in self.scheduler.state.records}
        return status.report(self.scheduler, self._readings.last, self._children, errors, self._clock.now())

    def explain(self, model: ModelId) -> Mapping[str, Any]:
        """What a request for the model would do now, and why; JSON-ready."""
        self._catch_up()
        if model not in self._sized:
            self._size(model)
        return status.explanation(self.scheduler, model, self._clock.now())

    def state_of(self, model: ModelId) -> str:
        """The word that ``status`` shows for one model; one that a reload removed is stopped."""
        record = self.scheduler.state.records.get(model)
        return "stopped" if record is None else status.word(record)

    def has_place(self, model: ModelId) -> bool:
        """Whether a request would be forwarded at once: the model is ready, with a place by ``concurrency``."""
        record = self.scheduler.state.records[model]
        return record.state is InstanceState.READY and not record.queue and record.has_room()

    def outlook(self, model: ModelId, rid: str) -> str:
        """What a request that waits for a model may be told: state, progress, place."""
        return status.outlook(self.scheduler.state.records[model], rid)

    def load_span(self, model: ModelId) -> tuple[float, float]:
        """When the model's last load began and ended, in monotonic seconds; (0, 0) if it never was loaded."""
        record = self.scheduler.state.records.get(model)
        return (0.0, 0.0) if record is None else status.load_span(record, self._clock.now())

    def models(self) -> Sequence[ModelId]:
        """All ids, in file order."""
        return tuple(self.catalog.models)

    @property
    def sample(self) -> MachineSample:
        """The last reading."""
        return self._readings.last

    def is_anything_loaded(self) -> bool:
        """Whether any process lives or is about to."""
        state = self.scheduler.state
        return bool(state.live or state.plans or len(state.line))

    def size_anew(self, model: ModelId) -> None:
        """More is known of a model than when it was last sized."""
        self._sized.discard(model)

    def devices_known(self) -> bool:
        """False while the GPUs cannot be read."""
        return self._readings.last.gpus_known

    def n_ctx(self, model: ModelId) -> int:
        """The context in tokens that the loaded instance told; 0 if not loaded or not told."""
        return self._children.n_ctx(model)

    def log(self, model: ModelId) -> bytes:
        """The model's output so far (a bounded ring)."""
        return self._launcher.log(model)

    def follow(self, model: ModelId) -> AsyncIterator[bytes]:
        """The model's output so far, then as it comes."""
        return self._launcher.follow(model)

    def changes(self) -> AsyncIterator[Mapping[str, Any]]:
        """``{"model", "state", "reason", …}`` when a state or a load's progress changes, until closed."""
        return self._listeners.follow()

    def _publish(self) -> None:
        if not self._any_process():
            self._all_gone.set()
        for record in dict.fromkeys(self.scheduler.state.stepped):  # two steps in one event are one change
            change = status.change(record)
            log.info("state", **{key: value for key, value in change.items() if key != "progress"})
            self._listeners.tell(change)


def _close_nothing(ticket: Ticket, served: bool, prefill_tps: float) -> None:
    """A load or a look-up holds no lease."""

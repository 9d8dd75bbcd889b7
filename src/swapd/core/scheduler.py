"""The scheduler: facts in, orders out, no clock and no I/O of its own.

``handle`` takes one event, notes the fact, and then ``_reconcile`` draws every
conclusion there is: it is the only place where something is promised room, times
out or goes. What it does is done by ``Moves``, which owns the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from swapd.core import events as ev
from swapd.core import preloads, replacing
from swapd.core.admission import lost, turned_away
from swapd.core.commands import Command, RefuseRequest, WakeAt
from swapd.core.lifecycle import InstanceState as S
from swapd.core.lifecycle import Step
from swapd.core.line import head
from swapd.core.memory import MemoryKeeper
from swapd.core.moves import Moves
from swapd.core.placement import Claim, Evict, Fits, NeverFits, Refuse, Resident, Verdict, Wait, place
from swapd.core.records import LONG_PROMPT_TOKENS, Record, Waiter
from swapd.core.spec import PAGE_CACHE, RAM, Catalog, DeviceId, ModelId
from swapd.errors import (
    InstanceDied,
    ShuttingDown,
    StartFailed,
    StartTimeout,
    SwapdError,
    Unloaded,
    WaitedTooLong,
)
from swapd.units import MIB, format_duration

ROUNDING_S: Final = 1e-6
CALM_EVENTS: Final = (ev.RequestArrived, ev.LeaseReturned, ev.DeviceSampled)
"""Those that leave nothing to conclude while nobody waits and nothing is under way or due."""
EXPECTED_ON_GPU: Final = 32 * MIB
"""A load that takes less VRAM than this did not go to the GPU."""


class Scheduler:
    """Owns every decision; fed by one writer, read by anyone for display."""

    def __init__(self, catalog: Catalog) -> None:
        self._do = Moves(catalog)
        self._memory = MemoryKeeper(self._do)
        self._wake_at: float | None = None
        self.due_at = float("-inf")  # when there is something to conclude, readings apart
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.RequestArrived: self._request_arrived,
            ev.RequestWithdrawn: self._request_withdrawn,
            ev.LeaseReturned: self._lease_returned,
            ev.InstanceReady: self._instance_ready,
            ev.StartFailed: self._start_failed,
            ev.InstanceExited: self._instance_exited,
            ev.InstanceLost: self._instance_lost,
            ev.LoadProgressed: self._load_progressed,
            ev.FootprintLearned: self._footprint_learned,
            ev.DeviceSampled: self._device_sampled,
            ev.DeadlinePassed: self._deadline_passed,
            ev.LoadRequested: self._load_requested,
            ev.UnloadRequested: self._unload_requested,
            ev.ConfigReplaced: self._config_replaced,
            ev.ShutdownRequested: self._shutdown_requested,
        }

    def handle(self, event: ev.Event) -> list[Command]:
        """Take in one fact; the orders that follow from it, in the order in which they must be carried out."""
        self._do.now = max(self._do.now, event.at)
        self._do.out = []
        self._do.stepped = []
        self._handlers[type(event)](event)
        if not isinstance(event, CALM_EVENTS) or self._do.stepped or not self.is_calm(self._do.now):
            self._reconcile()
        elif isinstance(event, ev.DeviceSampled):
            self._wake()
        return self._do.out

    def _deadline_passed(self, _event: ev.DeadlinePassed) -> None:
        """The timer has gone off, a hair early perhaps: whatever is due next has to be asked for again."""
        self._wake_at = None

    def _device_sampled(self, event: ev.DeviceSampled) -> None:
        """Readings come by the timer too, a hair early perhaps: it has to be set again."""
        self._wake_at = None
        self._memory.take_in(event)

    # ---- requests

    def _request_arrived(self, event: ev.RequestArrived) -> None:
        record = self._do.records[event.model]
        refusal = turned_away(self._do, record)
        if refusal is not None:
            self._do.out.append(RefuseRequest(event.rid, refusal))
            return
        record.note_arrival(self._do.now, event.prompt_tokens)
        self._do.enqueue(record, event.rid, event.prompt_tokens, "request")

    def _request_withdrawn(self, event: ev.RequestWithdrawn) -> None:
        self._do.leave(event.rid)

    def _lease_returned(self, event: ev.LeaseReturned) -> None:
        waiter = self._do.leases.pop(event.rid, None)
        if waiter is None:
            return
        record = waiter.record
        if event.served:
            record.forgive()
            record.prefill_tps = event.prefill_tps or record.prefill_tps
            record.worked = record.worked or waiter.prompt_tokens > LONG_PROMPT_TOKENS
        if waiter.generation != record.generation or event.rid not in record.leases:
            return
        record.leases.discard(event.rid)
        if record.queue:
            self._do.grant(record)
        if not record.leases:
            self._do.survey.changed()
            record.idle_since = self._do.now
            record.last_answer_at = None if record.queue else self._do.now
            if self._idle_deadline(record) < self.due_at:
                self.due_at = self._do.now

    # ---- processes

    def _current(self, event: Any) -> Record | None:
        record = self._do.records[event.model]
        return record if record.generation == event.generation else None

    def _instance_ready(self, event: ev.InstanceReady) -> None:
        record = self._current(event)
        if record is None or record.state is not S.STARTING:
            return
        grown = self._do.ledger.grew_on_load(event.model) if record.spec.expect_gpu else None
        if grown is not None and grown < EXPECTED_ON_GPU:
            error = StartFailed(f"{event.model!r} loaded without taking VRAM (expect_gpu)", cause="no_gpu")
            self._do.fail(record, error)
            self._do.stop(record, "it did not load onto the GPU")
            return
        self._do.step(record, Step.READY, None)
        record.ready_at = self._do.now
        record.load_s = self._do.now - record.started_at
        record.loads += 1
        record.last_error, record.oom_retried = None, False
        record.idle_since, record.worked = self._do.now, False
        record.live_tokens = max((w.prompt_tokens for w in record.queue.values()), default=0)
        self._do.grant(record)
        self._do.ask_sample(f"{event.model!r} was loaded")

    def _start_failed(self, event: ev.StartFailed) -> None:
        record = self._current(event)
        if record is None or (event.still_there and record.state is not S.STARTING):
            return  # the stop that is under way tells that it is lost
        if record.state is S.STARTING:
            kind = StartTimeout if event.timed_out else StartFailed
            error = kind(event.message, cause=event.cause, exit_status=event.exit_status, stderr_tail=event.stderr_tail)
            if event.still_there:
                self._do.fail(record, error)
                self._do.step(record, Step.STOP, event.message)
                self._lose(record, event.message)
                return
            out_of_memory = event.cause == "out_of_memory"
            if not (out_of_memory and (self._do.shrink(record) or self._retry_with_more_room(record))):
                self._do.fail(record, error)
        self._do.gone(record, f"start failed: {event.message.splitlines()[0] if event.message else event.cause}")

    def _retry_with_more_room(self, record: Record) -> bool:
        """Once after an out-of-memory exit: everything on its devices that may go makes room; False if nothing may."""
        waiter = head(record)
        if record.oom_retried or waiter is None:
            return False
        others = [r for r in self._do.live.values() if r is not record and r.claimed_by is None]
        world = self._do.builder.build(others, self._do.plans.values(), self._do.now, fresh=False)
        devices = [d for d in record.footprint.need_bytes if d not in (RAM, PAGE_CACHE)]
        victims = [r.spec.id for r in world.residents if self._may_make_room(record, r, devices)]
        if not victims:
            return False
        record.oom_retried = True
        self._do.commit(record, waiter, victims, "the engine ran out of memory; retried once")
        return True

    def _may_make_room(self, record: Record, resident: Resident, devices: Iterable[DeviceId]) -> bool:
        return (
            resident.claim is Claim.FREE
            and resident.spec.on_conflict == "swap"
            and not self._do.rules.protects(record.spec.id, resident.spec.id)
            and any(resident.need.on(d) for d in devices)
        )

    def _instance_exited(self, event: ev.InstanceExited) -> None:
        record = self._current(event)
        if record is None or record.state in (S.STOPPED, S.RELEASING):
            return
        if record.state in (S.READY, S.DRAINING, S.STARTING):
            error = InstanceDied(
                event.message, cause=event.cause, exit_status=event.exit_status, stderr_tail=event.stderr_tail
            )
            if record.state is S.STARTING:
                self._do.fail(record, error)
            else:
                record.failed(error, self._do.now, self._do.policy.backoff_s)
        self._do.gone(record, None)

    def _instance_lost(self, event: ev.InstanceLost) -> None:
        record = self._current(event)
        if record is not None and record.state is S.STOPPING:
            self._lose(record, event.message)

    def _lose(self, record: Record, why: str) -> None:
        """Even SIGKILL did not end its process: its memory stays counted."""
        record.leases.clear()
        if record.claimed_by is not None:
            self._do.cancel(record.claimed_by)
        self._do.refuse_all(record, lost(record))
        self._do.step(record, Step.LOSE, why)

    def _load_progressed(self, event: ev.LoadProgressed) -> None:
        record = self._current(event)
        if record is not None and record.state is S.STARTING:
            record.progress, record.stage = event.progress, event.stage

    def _footprint_learned(self, event: ev.FootprintLearned) -> None:
        record = self._do.records[event.model]
        self._do.resize(record, event.footprint)
        if record.loads == 0:
            record.load_s = event.load_s

    # ---- operators

    def _load_requested(self, event: ev.LoadRequested) -> None:
        record = self._do.records[event.model]
        if not event.preload:
            record.forgive()
        refusal = turned_away(self._do, record)
        if refusal is not None:
            self._do.out.append(RefuseRequest(event.rid, refusal))
            return
        self._do.enqueue(record, event.rid, 0, "preload" if event.preload else "load")

    def _unload_requested(self, event: ev.UnloadRequested) -> None:
        self._do.stale.discard(event.model)  # it does not come back with its new configuration by itself
        self._do.to_restart.discard(event.model)
        self._unload(self._do.records[event.model], "unloaded by an operator", force=event.force)

    def _unload(self, record: Record, reason: str, *, force: bool) -> None:
        if record.state in (S.READY, S.DRAINING):
            until = self._do.now + (0 if force else self._do.policy.drain_s)
            if record.state is S.READY:
                self._do.drain(record, reason)
            record.drain_until = min(until, record.drain_until or until)
            record.reason = reason
            return
        self._do.refuse_all(record, Unloaded(f"{record.spec.id!r} was unloaded by an operator", retry_after_s=1))
        if record.state is S.STARTING:
            self._do.stop(record, reason)

    def _config_replaced(self, event: ev.ConfigReplaced) -> None:
        replacing.take_in(self._do, event)

    def _shutdown_requested(self, event: ev.ShutdownRequested) -> None:
        self._do.stops_at = self._do.now if event.force else self._do.now + self._do.policy.drain_s
        for rid in list(self._do.line.waiters):
            self._do.refuse(rid, ShuttingDown("swapd is shutting down", retry_after_s=10))
        for record in list(self._do.live.values()):
            self._unload(record, "swapd is shutting down", force=event.force)

    # ---- the one place where conclusions are drawn

    def _reconcile(self) -> None:
        replacing.replace_changed(self._do)
        self._time_out()
        self._do.finish_drains()
        self._place_heads()
        while not self._memory.unmeasured and (waiter := preloads.due(self._do)) is not None:
            self._place(waiter, or_never=True)
        self._memory.sample_if_due()
        self.due_at = min(self._deadlines(), default=float("inf"))
        self._wake()

    def is_calm(self, now: float) -> bool:
        """Nobody waits, nothing is under way and nothing is due but a reading."""
        do = self._do
        return now < self.due_at and not (do.moving or do.plans or do.line.waiters or do.stale or do.to_restart)

    def next_reading_after(self, event: ev.DeviceSampled) -> float | None:
        """When to read again if this reading leads to nothing: then it need not be handled before the next event.

        ``None``: it has to be handled. Later readings replace one that waits.
        """
        if not self.is_calm(event.at) or not self._memory.leads_to_nothing(event):
            return None
        return min(self.due_at, event.at + self._memory.interval_s())

    def _time_out(self) -> None:
        now, limit = self._do.now, self._do.now - self._do.policy.queue_timeout_s + ROUNDING_S
        while (waiter := self._do.line.oldest()) is not None and waiter.arrived_at <= limit:
            bound = format_duration(self._do.policy.queue_timeout_s)
            text = f"{waiter.record.spec.id!r} was not ready within {bound} (queue_timeout)"
            self._do.refuse(waiter.rid, WaitedTooLong(text, retry_after_s=30))
        for record in list(self._do.live.values()):
            if record.state is S.READY and self._idle_deadline(record) <= now:
                self._do.drain(record, f"idle for {format_duration(record.spec.idle_timeout_s)} (idle_timeout)")
            elif record.state is S.RELEASING and record.state_since + self._do.policy.release_timeout_s <= now:
                self._do.write_off(record)

    def _idle_deadline(self, record: Record) -> float:
        if record.idle_since is None or record.spec.idle_timeout_s <= 0:
            return float("inf")
        return record.idle_since + record.spec.idle_timeout_s

    def _place_heads(self) -> None:
        """Ask for each head in the contract's order what it may do; only those with a chance are placed in full."""
        if not self._do.line or self._do.stops_at is not None:
            return
        for waiter, overdue in self._do.survey.heads(self._do.line, self._do.now, self._overdue_before()):
            record = waiter.record
            if record.state is S.STOPPED and record.plan is None and waiter.rid in record.queue:
                self._place(waiter, overdue=overdue)

    def _place(self, waiter: Waiter, *, overdue: bool = False, or_never: bool = False) -> None:
        """Do what a head may do now; ``or_never``: a preload that may not go now is given up."""
        record = waiter.record
        world, need = self._do.world(), self._do.chosen_footprint(record)
        verdict = place(record.spec, need, world, overdue=overdue, arrived_at=waiter.arrived_at)
        self._do.survey.placed(record, verdict, overdue=overdue)
        if waiter.kind != "preload" or not preloads.is_in_vain(verdict, or_never=or_never):
            self._apply(record, waiter, verdict)
            return
        preloads.give_up(self._do, waiter, verdict.reason)
        if (behind := head(record)) is not None:
            self._place(behind, overdue=behind.arrived_at <= self._overdue_before())

    def _overdue_before(self) -> float:
        """Who came until then has waited ``max_wait``; a hair more, so that rounding wakes nobody in vain."""
        return self._do.now - self._do.policy.max_wait_s + ROUNDING_S

    def _apply(self, record: Record, waiter: Waiter, verdict: Verdict) -> None:
        match verdict:
            case Fits(reason):
                self._do.commit(record, waiter, (), reason)
            case Evict(victims, reason):
                self._do.commit(record, waiter, victims, reason)
            case Wait(_, reason):
                record.waits_for = reason
                self._memory.unmeasured = self._memory.unmeasured or verdict.unmeasured
            case Refuse(error) | NeverFits(error):
                self._do.refuse_all(record, error)

    def _wake(self) -> None:
        due = min(self.due_at, self._memory.next_due())
        at = due if due < float("inf") else None
        if at != self._wake_at:
            self._wake_at = at
            self._do.out.append(WakeAt(at))

    def _deadlines(self) -> Iterable[float]:
        line = self._do.line
        oldest = line.oldest()
        if oldest is not None:
            yield oldest.arrived_at + self._do.policy.queue_timeout_s
            if (came := line.next_after(self._overdue_before())) is not None:
                yield came + self._do.policy.max_wait_s
        for record in self._do.live.values():
            yield from self._deadlines_of(record, somebody_waits=oldest is not None)

    def _deadlines_of(self, record: Record, *, somebody_waits: bool) -> Iterable[float]:
        if record.state is S.RELEASING:
            yield record.state_since + self._do.policy.release_timeout_s
        elif record.state is S.DRAINING and record.drain_until is not None:
            yield record.drain_until
        elif record.state is S.READY and record.idle_since is not None:
            if (idle := self._idle_deadline(record)) < float("inf"):
                yield idle
            if somebody_waits and (held := record.held_until(self._do.policy)) > self._do.now:
                yield held

    # ---- for display

    @property
    def state(self) -> Moves:
        """The records, waiters, commitments and the ledger, to read."""
        return self._do

    def explain(self, model: ModelId, now: float) -> Verdict | SwapdError | None:
        """What a request for the model would get now; ``None``: it is loaded or loading, and would be served."""
        record = self._do.records[model]
        if record.state in (S.READY, S.STARTING):
            return None
        self._do.now = max(self._do.now, now)
        refusal = turned_away(self._do, record)
        if refusal is not None:
            return refusal
        if record.plan is not None:
            victims = tuple(victim.id for victim in record.plan.victims)
            return Wait(victims, f"room is made for it already: {record.plan.reason}")
        if record.state is not S.STOPPED:
            why = f" ({record.reason})" if record.reason else ""
            return Wait((), f"it is {record.state.value}{why}, and is loaded again after that")
        return place(record.spec, self._do.chosen_footprint(record), self._do.world())

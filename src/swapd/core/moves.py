"""Every single move the scheduler can make: each keeps records, line, plans and ledger consistent.

No move decides anything; ``Scheduler`` does. All mutable state of the core lives here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from swapd.core.commands import (
    Command,
    GrantLease,
    PrepareInstance,
    RefuseRequest,
    SampleDevices,
    StartInstance,
    StopInstance,
)
from swapd.core.groups import GroupRules
from swapd.core.ledger import MemoryLedger
from swapd.core.lifecycle import HOLDING, Step
from swapd.core.lifecycle import InstanceState as S
from swapd.core.line import Line, head
from swapd.core.placement import World
from swapd.core.records import Plan, Record, Waiter, WaiterKind
from swapd.core.spec import Catalog, Footprint, ModelId
from swapd.core.survey import Survey
from swapd.core.world import WorldBuilder
from swapd.errors import ShuttingDown, SwapdError, Unloaded
from swapd.units import format_size


class Moves:
    """The state and the moves. ``out`` collects the orders of the event at hand, ``stepped`` whose state changed."""

    def __init__(self, catalog: Catalog) -> None:
        self.policy = catalog.policy
        self.rules = GroupRules(catalog)
        self.records: dict[ModelId, Record] = {m: Record(spec) for m, spec in catalog.models.items()}
        self.ledger = MemoryLedger(catalog.policy)
        self.line = Line()
        self.leases: dict[str, Waiter] = {}
        self.plans: dict[ModelId, Plan] = {}
        self.preloads: dict[str, Waiter] = {}
        self.live: dict[ModelId, Record] = {}
        self.builder = WorldBuilder(self.rules, self.ledger, self.policy)
        self.survey = Survey(self._draw, lambda: self.builder.room(self.live.values(), self.plans.values()))
        self.moving: set[ModelId] = set()
        self.leaving: set[ModelId] = set()
        self.to_restart: set[ModelId] = set()
        self.stale: set[ModelId] = set()
        self.worked: set[ModelId] = set()
        self.now = float("-inf")
        self.unsettled_at = float("-inf")
        self.sample_asked_at: float | None = None
        self.stops_at: float | None = None
        self.out: list[Command] = []
        self.stepped: list[Record] = []
        self._seq = 0

    def use(self, catalog: Catalog) -> None:
        """Another configuration: its policy, groups and models; those it lacks stay until they are gone."""
        self.policy, self.rules = catalog.policy, GroupRules(catalog)
        self.ledger.use(catalog.policy)
        self.builder = WorldBuilder(self.rules, self.ledger, self.policy)
        known = self.records
        self.records = {m: known.get(m) or Record(spec) for m, spec in catalog.models.items()}
        self.leaving = {m for m, r in known.items() if m not in catalog.models and r.state is not S.STOPPED}
        self.records |= {m: known[m] for m in self.leaving}
        for model, spec in catalog.models.items():
            self.records[model].respec(spec)
        self.line.reorder()
        self.survey.changed()
        for record in self.records.values():
            if record.queue:
                self.survey.new_head(record)
        self.ask_sample("the configuration changed", since=self.now)

    def enqueue(self, record: Record, rid: str, prompt_tokens: int, kind: WaiterKind) -> None:
        """Put a waiter in line; it is granted at once if its model is ready, has room, and nobody is before it."""
        self._seq += 1
        waiter = Waiter(rid, record, self.now, self._seq, prompt_tokens, kind)
        if record.state is S.READY and not record.queue and (record.has_room() or kind != "request"):
            self._let_through(record, waiter)
            return
        self.line.add(waiter)
        if kind == "preload":
            self.preloads[rid] = waiter
        self.survey.new_head(record)
        if record.state is S.STARTING:
            self.survey.changed()
        self.grant(record)

    def resize(self, record: Record, footprint: Footprint) -> None:
        """A model's next load is expected to take this much."""
        self.line.resize(record, footprint)
        self.survey.unseen(record)
        self.survey.changed()

    def leave(self, rid: str) -> Waiter | None:
        """Take a waiter out of the line.

        A commitment made for it ends, unless victims already stop and another waiter of the model inherits it.
        """
        waiter = self.line.remove(rid)
        if waiter is None:
            return None
        self.preloads.pop(rid, None)
        record = waiter.record
        self.survey.new_head(record)
        self.survey.unseen(record)
        if not record.queue:
            record.waits_for = None
            self.survey.changed()
        plan = record.plan
        if plan is not None and plan.head is waiter:
            heir = head(record)
            begun = any(v.state is not S.DRAINING for v in plan.victims) or not plan.victims
            if heir is not None and begun:
                plan.head = heir
            else:
                self.cancel(plan)
        return waiter

    def grant(self, record: Record) -> None:
        """Let waiters through: all while ready; while it makes room for another, only those older than that one."""
        limit = self._grants_before(record)
        while record.queue:
            waiter = next(iter(record.queue.values()))
            if waiter.seq >= limit or not (record.has_room() or waiter.kind != "request"):
                return
            self.line.remove(waiter.rid)
            self.preloads.pop(waiter.rid, None)
            self._let_through(record, waiter)

    def _let_through(self, record: Record, waiter: Waiter) -> None:
        waiter.generation = record.generation
        if waiter.kind == "request":
            if not record.leases:
                self.survey.changed()
            record.leases.add(waiter.rid)
            record.idle_since = None
            self.leases[waiter.rid] = waiter
            self.worked.add(record.id)
        self.out.append(GrantLease(waiter.rid, record.id, record.generation))

    def _grants_before(self, record: Record) -> float:
        if record.state is S.READY:
            return float("inf")
        if record.state is S.DRAINING and record.claimed_by is not None and record.drain_until is None:
            return record.claimed_by.head.seq
        return 0

    def refuse_all(self, record: Record, error: SwapdError) -> None:
        """End every waiter of a model with an error."""
        for rid in list(record.queue):
            self.refuse(rid, error)

    def refuse(self, rid: str, error: SwapdError) -> None:
        """End one waiter with an error; nothing happens if it does not wait."""
        if self.leave(rid) is not None:
            self.out.append(RefuseRequest(rid, error))

    def step(self, record: Record, step: Step, reason: str | None) -> None:
        """Take one row of the transition table, and note when."""
        record.step(step, self.now, reason)
        if step not in (Step.DRAIN, Step.KEEP, Step.FREED):
            self.unsettled_at = self.now
        self.stepped.append(record)
        if record.state is S.READY or record.state is S.STOPPED:
            self.moving.discard(record.id)
        else:
            self.moving.add(record.id)
        self.survey.changed()
        if record.state is S.STOPPED:
            self.live.pop(record.spec.id, None)
            self.ledger.ended(record.spec.id)
            record.claimed_by, record.drain_until = None, None
            self.survey.unseen(record)
            if record.id in self.leaving:
                for ids in (self.leaving, self.stale, self.to_restart):
                    ids.discard(record.id)
                self.records.pop(record.id, None)
            elif record.id in self.stale:
                self.stale.discard(record.id)
                self.to_restart.add(record.id)
        else:
            self.live[record.spec.id] = record

    def fail(self, record: Record, error: SwapdError) -> None:
        """Refuse the waiters before the state changes, else the queue would start it again."""
        record.failed(error, self.now, self.policy.backoff_s)
        self.refuse_all(record, error)

    def gone(self, record: Record, reason: str | None) -> None:
        """The process is reaped; its memory is not yet seen free."""
        record.leases.clear()
        record.idle_since, record.drain_until = None, None
        self.step(record, Step.EXIT, reason or record.reason)
        if record.retry_at is not None and record.retry_at > self.now and record.queue:
            assert record.last_error is not None
            self.refuse_all(record, record.last_error)
        self.ask_sample(f"{record.spec.id!r} is gone")

    def ask_sample(self, reason: str, *, since: float = float("-inf")) -> None:
        """Order a reading, unless one is on its way that was begun since (and since anything came or went)."""
        if self.sample_asked_at is None or self.sample_asked_at < max(since, self.unsettled_at):
            self.sample_asked_at = self.now
            self.out.append(SampleDevices(reason))

    def released(self, record: Record) -> None:
        """Its memory is free, or counts as foreign from the next reading on."""
        plan = record.claimed_by
        self.step(record, Step.FREED, record.reason)
        if plan is not None:
            plan.victims.remove(record)

    def write_off(self, record: Record, *, in_time: bool = False) -> None:
        """What of its memory has not come back is foreign; if that took too long, the next load is placed anew."""
        if record.claimed_by is not None and not in_time:
            record.claimed_by.since = self.now
        coming = [m for m, r in self.live.items() if r.state in (S.STOPPING, S.RELEASING)]
        self.ledger.write_off(record.spec.id, coming)
        self.released(record)

    def drain(self, record: Record, reason: str) -> None:
        """Take no new requests; the process ends when the running ones have."""
        self.step(record, Step.DRAIN, reason)

    def finish_drains(self) -> None:
        """Stop every process whose drain is over."""
        for record in list(self.live.values()):
            if record.state is not S.DRAINING:
                continue
            self.grant(record)
            over = record.drain_until is not None and record.drain_until <= self.now
            if over or not record.leases:
                self.stop(record, record.reason or "drained")

    def stop(self, record: Record, reason: str) -> None:
        """Order the end of a process.

        Requests that still run on it are cut: only the end of ``drain`` or force lets it come to that.
        """
        cut: SwapdError | None = None
        if record.leases:
            kind = ShuttingDown if self.stops_at is not None else Unloaded
            cut = kind(f"{record.spec.id!r} was stopped while it answered: {reason}", retry_after_s=1)
        self.step(record, Step.STOP, reason)
        record.leases.clear()
        if record.claimed_by is not None:
            self.out.append(PrepareInstance(record.claimed_by.target.spec.id))
        self.out.append(StopInstance(record.spec.id, record.generation, reason, cut))

    def world(self) -> World:
        """The picture of this moment."""
        return self.survey.world(self.now)

    def _draw(self) -> World:
        fresh = self.ledger.foreign_at >= self.unsettled_at
        return self.builder.build(self.live.values(), self.plans.values(), self.now, fresh=fresh)

    def commit(self, record: Record, waiter: Waiter, victims: Iterable[ModelId], reason: str) -> None:
        """Promise the room: the victims drain or stop, and nobody else gets their memory."""
        plan = Plan(record, waiter, [self.records[v] for v in victims], self.now, reason)
        record.plan = self.plans[record.spec.id] = plan
        record.waits_for = reason
        self.survey.changed()
        why = f"makes room for {record.spec.id!r}"
        for victim in plan.victims:
            victim.claimed_by = plan
            if victim.state is S.READY:
                self.drain(victim, why)
            elif victim.state is S.STARTING:
                self.stop(victim, why)
        self.finish_drains()
        if not plan.victims:
            self.out.append(PrepareInstance(record.spec.id))

    def cancel(self, plan: Plan) -> None:
        """Undo a commitment: victims that only drain return to ready, those that stop go on stopping."""
        del self.plans[plan.target.spec.id]
        plan.target.plan = None
        self.survey.changed()
        self.survey.new_head(plan.target)
        for victim in plan.victims:
            victim.claimed_by = None
            if victim.state is S.DRAINING and victim.drain_until is None and victim.id not in self.leaving:
                self.step(victim, Step.KEEP, None)
                self.grant(victim)

    def start(self, record: Record, reason: str) -> None:
        """Start a process, the best way there is room for, and reserve its footprint."""
        chosen = self.chosen_footprint(record)
        record.warning = self._page_cache_warning(chosen)
        record.generation += 1
        record.started_at = self.now
        self.stale.discard(record.id)
        self.to_restart.discard(record.id)
        self.ledger.began(record.spec.id, chosen)
        words = "; ".join(word for word in (reason, " ".join(chosen.args), record.warning) if word)
        self.step(record, Step.START, words)
        self.out.append(StartInstance(record.spec.id, record.generation, words, chosen.args))

    def _page_cache_warning(self, chosen: Footprint) -> str:
        """Law L1: weights that do not fit the page cache are read from the disk again at every token."""
        short = self.ledger.page_cache_short(chosen) if self.policy.page_cache == "warn" else None
        if short is None:
            return ""
        needed, room = (format_size(size) for size in short)
        return f"page cache: {needed} of weights are read through it, {room} are left for them: decoding collapses (L1)"

    def chosen_footprint(self, record: Record) -> Footprint:
        """What a start now would take: nothing is evicted for more than the least, but what is free is used.

        A larger way must also fit the raw reading: memory of a process that has just gone may not be back yet.
        """
        least = record.footprint
        if not least.larger:
            return least
        room = self.survey.room()
        others = [m for m, r in self.live.items() if r.state in HOLDING and r is not record]
        fitting = (way for way in least.larger if way.fits(room) and self.ledger.back(others, way.need_bytes))
        return next(fitting, least)

    def shrink(self, record: Record) -> bool:
        """The way that was just tried ran out of memory: only smaller ones are left; False if there is none."""
        tried = self.ledger.holdings[record.id].reserved.args
        ways = record.footprint.larger
        position = next((i for i, way in enumerate(ways) if way.args == tried), None)
        if position is None:
            return False
        self.resize(record, replace(record.footprint, larger=ways[position + 1 :]))
        return True

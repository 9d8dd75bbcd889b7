"""What every reading of the devices leads to: releases, starts, learned footprints, and the headroom rule."""

from __future__ import annotations

from typing import Final

from swapd.core import events as ev
from swapd.core.commands import StoreFootprint
from swapd.core.lifecycle import HOLDING
from swapd.core.lifecycle import InstanceState as S
from swapd.core.moves import Moves
from swapd.core.records import Plan, Record
from swapd.core.spec import DeviceId

RELEASE_POLL_S: Final = 0.05
RECHECK_S: Final = 1.0
"""After a first reading below headroom the next follows this soon; two in a row evict."""
NEWS_BYTES: Final = 4 << 20
IDLE_SAMPLE_FACTOR: Final = 15
"""With nothing loaded the devices are sampled this much more seldom."""
SETTLED_STATES: Final = frozenset({S.READY, S.DRAINING, S.LOST})


def _is_news(seen: tuple[dict[DeviceId, int], bool], stored: tuple[dict[DeviceId, int], bool] | None) -> bool:
    """Whether a peak is worth storing again: it grew by more than a process breathes, or requests ran since."""
    if stored is None or seen[1] != stored[1]:
        return True
    return any(size > stored[0].get(device, 0) + NEWS_BYTES for device, size in seen[0].items())


class MemoryKeeper:
    """The part of the scheduler that listens to the devices."""

    def __init__(self, moves: Moves) -> None:
        self._do = moves
        self.unmeasured = False
        self._low_readings = 0
        self._next_sample_at = float("-inf")

    def take_in(self, event: ev.DeviceSampled) -> None:
        """Handle a reading; what it says of foreign memory counts only if nothing was under way since it was taken."""
        do = self._do
        do.sample_asked_at = None
        if do.moving:
            do.ledger.observe(event.at, event.sample, event.held, settled=False, busy=())
            self._release_what_is_free(event)
        settled = event.at >= do.unsettled_at and all(r.state in SETTLED_STATES for r in do.live.values())
        worked, do.worked = do.worked, {m for m, r in do.live.items() if r.leases}
        do.ledger.observe(event.at, event.sample, event.held, settled=settled, busy=worked)
        do.survey.reread()
        self._next_sample_at = do.now + self.interval_s()
        if settled:
            for record in do.live.values():
                if record.state is S.READY:
                    self._learn(record)
        self._start_planned()
        if settled:
            self._keep_headroom()

    def interval_s(self) -> float:
        """Between two readings."""
        return self._do.policy.sample_interval_s * (1 if self._do.live else IDLE_SAMPLE_FACTOR)

    def leads_to_nothing(self, event: ev.DeviceSampled) -> bool:
        """Nobody asked for this reading, nobody worked since the last one, and it says what that said."""
        do = self._do
        asked = do.sample_asked_at is not None or do.ledger.foreign_at < do.unsettled_at
        return not (asked or do.worked or self._low_readings) and do.ledger.agrees(event.sample, event.held, NEWS_BYTES)

    def _release_what_is_free(self, event: ev.DeviceSampled) -> None:
        """RELEASING ends when there is room for the next load; if there is none, as soon as nothing else is under way.

        What is still missing then counts as foreign in this very reading.
        """
        live = self._do.live
        quiet = event.at >= self._do.unsettled_at
        quiet = quiet and all(r.state in SETTLED_STATES or r.state is S.RELEASING for r in live.values())
        for record in [r for r in live.values() if r.state is S.RELEASING and event.at >= r.state_since]:
            plan = record.claimed_by or record.plan
            if quiet if plan is None else self._has_room_for(plan):
                self._do.write_off(record, in_time=True)

    def _has_room_for(self, plan: Plan) -> bool:
        others = [m for m, r in self._do.live.items() if r not in plan.victims and r.state in HOLDING]
        return self._do.ledger.back(others, plan.target.footprint.need_bytes)

    def _learn(self, record: Record) -> None:
        """Reserve what was measured instead of what was predicted, and have it stored when it is news."""
        holding = self._do.ledger.holdings[record.spec.id]
        news = (dict(holding.peak), record.worked)
        holding.worked = record.worked
        if not holding.idle or not _is_news(news, holding.stored):
            return
        learned = holding.learned()
        if learned is not None:
            holding.reserved = learned
        holding.stored = news
        self._do.out.append(
            StoreFootprint(
                record.spec.id,
                record.generation,
                dict(holding.idle),
                dict(holding.peak),
                record.load_s,
                record.worked,
                holding.reserved.args,
            )
        )

    def _keep_headroom(self) -> None:
        """Two readings in a row below headroom: other programs grew, and one idle model goes."""
        short = self._do.ledger.short_of_headroom()
        if not short:
            self._low_readings = 0
            return
        self._low_readings += 1
        self._next_sample_at = self._do.now + RECHECK_S
        if self._low_readings < 2:
            return
        idle = [r for r in self._do.live.values() if r.state is S.READY and not r.leases and not r.spec.persistent]
        idle = [
            r for r in idle if any(self._do.builder.need(r).on(d) for d in short) and not self._in_persistent_group(r)
        ]
        if idle:
            victim = min(idle, key=lambda r: r.bring_back_s())
            self._do.drain(victim, f"other programs took the headroom of {', '.join(short)}")
            self._low_readings = 0

    def _in_persistent_group(self, record: Record) -> bool:
        group = self._do.rules.group_of(record.spec.id)
        return group is not None and group.persistent

    def sample_if_due(self) -> None:
        """Read again at the interval, while memory is awaited, and when a waiter is to be judged by a stale figure."""
        now, states = self._do.now, {r.state for r in self._do.live.values()}
        for plan in self._do.plans.values():
            if not plan.victims and plan.target.state is S.STOPPED:
                self._do.ask_sample(f"before the start of {plan.target.spec.id!r}", since=plan.since)
        polls = S.RELEASING in states and self._do.ledger.sampled_at + RELEASE_POLL_S <= now
        stale, self.unmeasured = self.unmeasured and states <= SETTLED_STATES, False
        if polls or stale or self._next_sample_at <= now:
            self._do.ask_sample("memory is awaited" if polls or stale else "interval")

    def _start_planned(self) -> None:
        """Start every committed target whose victims have gone, if the fresh reading has room; else place it anew."""
        for plan in list(self._do.plans.values()):
            target = plan.target
            if plan.victims or target.state is not S.STOPPED or self._do.ledger.sampled_at < plan.since:
                continue
            self._do.cancel(plan)
            room = self._do.survey.room()
            need = self._do.chosen_footprint(target).need_bytes
            if all(d in room and size <= room[d] for d, size in need.items()):
                self._do.start(target, plan.reason)

    def next_due(self) -> float:
        """When the next reading is due; never while one is on its way."""
        do = self._do
        if do.sample_asked_at is not None:
            return float("inf")
        due = max(self._next_sample_at, do.now)
        if do.moving and any(r.state is S.RELEASING for r in do.live.values()):
            due = min(due, do.ledger.sampled_at + RELEASE_POLL_S)
        return due

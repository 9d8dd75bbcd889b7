"""The picture of the world that ``place`` decides on, drawn from records and ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Final

from swapd.core.groups import GroupRules
from swapd.core.ledger import MemoryLedger
from swapd.core.lifecycle import InstanceState as S
from swapd.core.placement import Claim, Resident, World
from swapd.core.records import Plan, Record
from swapd.core.spec import DeviceId, Footprint, Policy

STOPPED, STARTING, READY, LOST = S.STOPPED, S.STARTING, S.READY, S.LOST
GOING: Final = Claim.GOING
"""Named once, since Python takes longer to look up an enum's member than to compare with it."""


class WorldBuilder:
    """Draws ``World`` pictures; owns nothing that changes."""

    def __init__(self, rules: GroupRules, ledger: MemoryLedger, policy: Policy) -> None:
        self._rules, self._ledger, self._policy = rules, ledger, policy

    def build(self, live: Collection[Record], plans: Iterable[Plan], now: float, *, fresh: bool) -> World:
        """The world at ``now``; ``fresh``: no process came or went since foreign memory was measured."""
        ledger = self._ledger
        plans = list(plans)
        held = {r.id: until for r in live if (until := self._held_until(r)) > now}
        residents = [self._resident(r, now, held.get(r.id, now)) for r in live]
        residents += [self._pending(p) for p in plans if p.target.state is STOPPED]
        return World(
            rules=self._rules,
            capacity=ledger.capacity,
            foreign=ledger.foreign,
            room=self.room(live, plans),
            residents=residents,
            gpus_known=ledger.gpus_known,
            problem=ledger.problem,
            foreign_at=ledger.foreign_at if fresh else float("-inf"),
            next_release_at=min(held.values(), default=inf),
        )

    def room(self, live: Iterable[Record], plans: Collection[Plan]) -> dict[DeviceId, int]:
        """``available`` by device: each commitment counts as the larger of what still goes and what comes."""
        foreign = self._ledger.foreign
        room = {d: size - foreign[d] for d, size in self._ledger.capacity.items()}
        committed = {id(r) for p in plans for r in p.victims}
        for record in live:
            if id(record) not in committed:
                _subtract(room, self.need(record).need_bytes)
        for plan in plans:
            _subtract(room, self._claim_of(plan))
        return room

    def _claim_of(self, plan: Plan) -> Mapping[DeviceId, int]:
        incoming = plan.target.footprint.need_bytes if plan.target.state is STOPPED else {}
        if not plan.victims:
            return incoming
        going: dict[DeviceId, int] = {}
        for record in plan.victims:
            for device, size in self.need(record).need_bytes.items():
                going[device] = going.get(device, 0) + size
        return {**incoming, **{d: size for d, size in going.items() if size > incoming.get(d, 0)}}

    def need(self, record: Record) -> Footprint:
        """What a record's instance has reserved, else what its model would take."""
        holding = self._ledger.holdings.get(record.spec.id)
        return holding.reserved if holding else record.footprint

    def _pending(self, plan: Plan) -> Resident:
        record = plan.target
        return Resident(record.spec, record.footprint, Claim.LOADING, "waits for room to load", record.bring_back_s())

    def _resident(self, record: Record, now: float, held_until: float) -> Resident:
        claim, why = self._claim(record, now, held_until)
        cost = 0.0 if claim is GOING else record.bring_back_s()
        return Resident(record.spec, self.need(record), claim, why, cost)

    def _held_until(self, record: Record) -> float:
        idle = record.state is READY and not record.leases and not record.queue
        return record.held_until(self._policy) if idle else 0.0

    def _claim(self, record: Record, now: float, held_until: float) -> tuple[Claim, str]:
        state = record.state
        if state is LOST:
            return Claim.LOST, "cannot be killed"
        if state is STARTING:
            return (Claim.LOADING, "is loading") if record.queue else (Claim.FREE, "loads for nobody")
        if state is not READY:
            if record.claimed_by is not None:
                return Claim.TAKEN, f"makes room for {record.claimed_by.target.spec.id!r}"
            return Claim.GOING, "is being unloaded"
        if record.leases or record.queue:
            return Claim.BUSY, "serves requests"
        if held_until > now:
            return Claim.HELD, f"is held for its next turn ({held_until - now:.1f} s more)"
        return Claim.FREE, "is idle"


def _subtract(room: dict[DeviceId, int], sizes: Mapping[DeviceId, int]) -> None:
    for device, size in sizes.items():
        if device in room:
            room[device] -= size

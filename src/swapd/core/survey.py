"""What is worth asking again: keeps a reconcile cheap with thousands of waiters.

A head that had to wait is placed again in full only if something changed that
could help it: by bytes (the room left beside commitments plus what may go), or
because its group's table no longer stands in its way. Everything here is derived
and can be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from swapd.core.line import Line
from swapd.core.placement import Claim, Verdict, Wait, World
from swapd.core.records import Record, Waiter
from swapd.core.spec import DeviceId

FULLY_PLACED: Final = 4
"""So many heads are placed in full at each reconcile whatever the bytes say: a refusal that became due is found."""

_GO_NOW: Final = frozenset({Claim.GOING, Claim.FREE})
_GO_LATE: Final = frozenset({Claim.GOING, Claim.FREE, Claim.HELD, Claim.BUSY})


class Survey:
    """The caches of one scheduler's reconcile."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._new: set[int] = set()
        self._full = 0
        self._most_now: Mapping[DeviceId, int] = {}
        self._most_late: Mapping[DeviceId, int] = {}
        self._lowest_priority = 0
        self._stuck: set[tuple[str, int, bool]] = set()

    def begin(self) -> None:
        """A reconcile begins: time has passed, so holds may have ended."""
        self._full = 0
        self.changed()

    def changed(self) -> None:
        """A process, a commitment or a reading changed."""
        self._world = None
        self._stuck.clear()

    def new_head(self, record: Record) -> None:
        """A model's head is new and must be placed in full once."""
        self._new.add(id(record))

    def world(self, build: Callable[[], World]) -> World:
        """The picture of this moment, drawn once."""
        if self._world is None:
            self._world = world = build()
            self._most_now = _most(world, _GO_NOW)
            self._most_late = _most(world, _GO_LATE)
            self._lowest_priority = min((r.spec.priority for r in world.residents), default=0)
        return self._world

    def order(self, line: Line, overdue_before: float) -> Iterator[tuple[Waiter, bool]]:
        """Heads in the contract's order, each with whether it is overdue. The line may change meanwhile."""
        overdue = list(line.overdue(overdue_before))
        for waiter in overdue:
            yield waiter, True
        for waiter in list(line.by_rank()):
            if waiter.arrived_at > overdue_before:
                yield waiter, False

    def hopeless(self, record: Record, world: Callable[[], World], *, overdue: bool) -> bool:
        """Whether placing it in full would only say "wait" again."""
        if id(record) in self._new:
            return False
        if self._full < FULLY_PLACED:
            self._full += 1
            return False
        world()
        if self._stuck and (self._group(record), record.spec.priority, overdue) in self._stuck:
            return True
        outranks = record.spec.priority > self._lowest_priority
        most = self._most_late if overdue or outranks else self._most_now
        return any(size > most.get(device, 0) for device, size in record.footprint.need_bytes.items())

    def placed(self, record: Record, verdict: Verdict, *, overdue: bool) -> None:
        """Remember what a full placing said."""
        self._new.discard(id(record))
        if isinstance(verdict, Wait) and verdict.by_table:
            self._stuck.add((self._group(record), record.spec.priority, overdue))

    def next_overdue(self, line: Line, now: float, max_wait_s: float) -> Iterator[float]:
        """When the next head becomes overdue."""
        for waiter in line.by_age():
            at = waiter.arrived_at + max_wait_s
            if at > now:
                yield at
                return

    def _group(self, record: Record) -> str:
        assert self._world is not None
        group = self._world.rules.group_of(record.spec.id)
        return group.id if group else ""


def _most(world: World, claims: frozenset[Claim]) -> dict[DeviceId, int]:
    most = dict(world.room)
    for resident in world.residents:
        if resident.claim in claims:
            for device, size in resident.need.need_bytes.items():
                if device in most:
                    most[device] += size
    return most

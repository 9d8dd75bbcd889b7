"""Which heads are worth placing: keeps a reconcile cheap with thousands of waiters.

A head that had to wait is placed again only if something changed since that may
help it: more bytes could be had on some device than when it was last looked at
(the room left beside commitments plus everything that may go for it), or a model
that the group table had put in its way is no longer there. So every head that is
neither new nor held up, and whose model is stopped, needs more than ``_seen`` of some
device; only those that this no longer keeps out are looked at. Everything here is
derived and can be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from swapd.core.line import NOWHERE, Line, head
from swapd.core.placement import GOING_OR_FREE, HELD_OR_BUSY, Resident, Verdict, Wait, World
from swapd.core.records import Record, Waiter
from swapd.core.spec import DeviceId

REREAD_HEADS: Final = 1
"""After each reading the oldest and the highest head are placed whatever the bytes say: a refusal may be due."""

Most: TypeAlias = Mapping[DeviceId, int]
Rank: TypeAlias = int | None
"""The priority of a waiter that is not overdue; ``None``: overdue."""


class Survey:
    """The caches of one scheduler's reconcile. ``build`` draws the picture of this moment, ``room`` that part alone."""

    def __init__(self, build: Callable[[], World], room: Callable[[], Mapping[DeviceId, int]]) -> None:
        self._build, self._room = build, room
        self._world: World | None = None
        self._most: dict[Rank, Most] = {}
        self._for_anyone: Most = {}
        self._for_some: list[Resident] = []
        self._most_before: dict[Rank, Most] = {}
        self._seen: dict[Rank, dict[DeviceId, int]] = {}
        self._overdue_until = float("-inf")
        self._reread = False
        self._new: dict[str, Record] = {}
        self._held_up: dict[str, Record] = {}
        self._stuck: set[tuple[str, Rank]] = set()

    def changed(self) -> None:
        """A process, a commitment, a size or a model's being busy changed."""
        self._world = None

    def reread(self) -> None:
        """The devices were read."""
        self.changed()
        self._reread = True

    def new_head(self, record: Record) -> None:
        """A model's head is new and must be placed once, whatever the bytes say."""
        self._new[record.id] = record

    def unseen(self, record: Record) -> None:
        """A model's head was not compared with what could be had of late: it may fit into what the others have seen."""
        for device, size in record.needs:
            for seen in self._seen.values():
                seen[device] = min(size - 1, seen.get(device, -1))

    def world(self, now: float) -> World:
        """The picture of this moment, drawn anew only if it changed or a hold has ended."""
        if self._world is None or now >= self._world.next_release_at:
            self._world = self._build()
            self._most = {}
            self._stuck.clear()
        return self._world

    def room(self) -> Mapping[DeviceId, int]:
        """The picture's ``room``, for a moment that needs no more of it."""
        return self._world.room if self._world is not None else self._room()

    def heads(self, line: Line, now: float, before: float) -> Iterator[tuple[Waiter, bool]]:
        """Heads that may have a chance, in the contract's order, each with whether it is overdue.

        Overdue are those that came until ``before``. The line and the world may change
        while this is iterated.
        """
        self.world(now)
        if self._reread:
            self._reread = False
            self._new |= {w.record.id: w.record for w in line.first(REREAD_HEADS)}
        again = [*self._held_up.values(), *self._new.values()]
        self._held_up.clear()
        overdue = self._overdue_heads(line, again, now, before)
        for waiter in self._with_a_chance(overdue, now, overdue=True):
            yield waiter, True
        others = self._other_heads(line, again, now, before)
        for waiter in self._with_a_chance(others, now, overdue=False):
            yield waiter, False
        self._new.clear()
        self._overdue_until = before

    def _overdue_heads(self, line: Line, again: list[Record], now: float, before: float) -> list[Waiter]:
        """Those that became overdue since, those held up, and if more could be had than before, all it may help."""
        late = [*_heads(again), *(self._helped(line, [None]) if self._has_grown(None, now, 0) else ())]
        late = [w for w in late if w.arrived_at <= before] + line.came_between(self._overdue_until, before)
        return sorted({w.seq: w for w in late}.values(), key=lambda w: w.seq)

    def _other_heads(self, line: Line, again: list[Record], now: float, before: float) -> list[Waiter]:
        """The new ones, those held up, and if more could be had than before by any priority, all it may help."""
        ranks = line.priorities()
        grown = [self._has_grown(priority, now, priority) for priority in ranks]
        others = [*_heads(again), *(self._helped(line, ranks) if any(grown) else ())]
        unique = {w.seq: w for w in others if w.arrived_at > before}
        return sorted(unique.values(), key=lambda w: (-w.record.priority, w.seq))

    def _has_grown(self, rank: Rank, now: float, priority: int) -> bool:
        """Whether more could be had by waiters of this rank than when it was last asked."""
        most, before = self._draw_most(now, rank, priority), self._most_before.get(rank)
        self._most_before[rank] = most
        return before is None or any(size > before.get(device, -1) for device, size in most.items())

    def _helped(self, line: Line, ranks: Iterable[Rank]) -> Iterator[Waiter]:
        """Heads that what came since they were last looked at may help, and those that need no device."""
        yield from line.needing(NOWHERE, -1, 0)
        for rank in ranks:
            most, seen = self._most[rank], self._seen[rank]
            self._seen[rank] = dict(most)
            for device, size in most.items():
                yield from line.needing(device, seen.get(device, -1), size)

    def _with_a_chance(self, waiters: Iterable[Waiter], now: float, *, overdue: bool) -> Iterator[Waiter]:
        """Those that could fit by bytes, or are due for a look. The hot loop of an event."""
        drawn, new = None, self._new
        rank: Rank = None
        most: Most = {}
        for waiter in waiters:
            record = waiter.record
            if drawn is not self._most or (rank != record.priority and not overdue):
                rank = None if overdue else record.priority
                most = self._draw_most(now, rank, record.priority)
                drawn = self._most
            for device, size in record.needs:
                if size > most.get(device, -1):
                    if record.id in new:
                        yield waiter
                    break
            else:
                if record.id in new or not self._stuck or (self._group(record), rank) not in self._stuck:
                    yield waiter
                else:
                    self._held_up[record.id] = record

    def _draw_most(self, now: float, rank: Rank, priority: int) -> Most:
        """By device: the room left plus what may go for a waiter of this rank."""
        world = self.world(now)
        if rank in self._most:
            return self._most[rank]
        if not self._most:
            self._for_anyone = _with(world.room, (r for r in world.residents if r.claim in GOING_OR_FREE))
            self._for_some = [r for r in world.residents if r.claim in HELD_OR_BUSY]
        late = (r for r in self._for_some if rank is None or r.spec.priority < priority)
        most = self._most[rank] = _with(self._for_anyone, late)
        seen = self._seen.get(rank, {})
        self._seen[rank] = {d: min(size, seen[d]) for d, size in most.items() if d in seen}
        return most

    def placed(self, record: Record, verdict: Verdict, *, overdue: bool) -> None:
        """Remember who has to be asked again, and that the group table stands in the way of a whole group."""
        if isinstance(verdict, Wait):
            self._held_up[record.id] = record
            if verdict.by_table and self._world is not None:
                self._stuck.add((self._group(record), None if overdue else record.priority))

    def _group(self, record: Record) -> str:
        group = self._world.rules.group_of(record.id) if self._world is not None else None
        return group.id if group else ""


def _heads(records: Iterable[Record]) -> Iterator[Waiter]:
    return (waiter for record in records if (waiter := head(record)) is not None)


def _with(room: Most, going: Iterable[Resident]) -> Most:
    """What could be had by device if these went as well."""
    sizes = dict(room)
    for resident in going:
        for device, size in resident.need.need_bytes.items():
            if device in sizes:
                sizes[device] += size
    return sizes

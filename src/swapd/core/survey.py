"""Which heads are worth placing: keeps a reconcile cheap with thousands of waiters.

A head that had to wait is placed again only if something changed since that may
help it: more bytes could be had on some device than when it was last looked at
(the room left beside commitments plus everything that may go for it), or a model
that the group table had put in its way is no longer there. Everything here is
derived and can be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from swapd.core.line import Line, head
from swapd.core.placement import Claim, Verdict, Wait, World
from swapd.core.records import Record, Waiter
from swapd.core.spec import DeviceId

REREAD_HEADS: Final = 1
"""After each reading the oldest and the highest head are placed whatever the bytes say: a refusal may be due."""

Most: TypeAlias = Mapping[DeviceId, int]
Rank: TypeAlias = int | None
"""The priority of a waiter that is not overdue; ``None``: overdue."""


class Survey:
    """The caches of one scheduler's reconcile. ``build`` draws the picture of this moment."""

    def __init__(self, build: Callable[[], World]) -> None:
        self._build = build
        self._world: World | None = None
        self._most: dict[Rank, Most] = {}
        self._most_before: dict[Rank, Most] = {}
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

    def world(self, now: float) -> World:
        """The picture of this moment, drawn anew only if it changed or a hold has ended."""
        if self._world is None or now >= self._world.next_release_at:
            self._world = self._build()
            self._most = {}
            self._stuck.clear()
        return self._world

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
        """All of them if more could be had than before, else those that became overdue since and those held up."""
        if self._grown(None, now, 0):
            return line.came_between(float("-inf"), before)
        late = {w.seq: w for w in line.came_between(self._overdue_until, before)}
        late |= {w.seq: w for w in _heads(again) if w.arrived_at <= before}
        return [late[seq] for seq in sorted(late)]

    def _other_heads(self, line: Line, again: list[Record], now: float, before: float) -> list[Waiter]:
        """All of them if more could be had than before by any priority, else the new ones and those held up."""
        grown = [self._grown(priority, now, priority) for priority in line.priorities()]
        if any(grown):
            return line.by_rank(before)
        return sorted((w for w in _heads(again) if w.arrived_at > before), key=lambda w: (-w.record.priority, w.seq))

    def _grown(self, rank: Rank, now: float, priority: int) -> bool:
        """Whether more could be had by waiters of this rank than when all of them were last looked at."""
        most, before = self._draw_most(now, rank, priority), self._most_before.get(rank)
        self._most_before[rank] = most
        return before is None or any(size > before.get(device, -1) for device, size in most.items())

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
        most = dict(world.room)
        for resident in world.residents:
            late = rank is None or resident.spec.priority < priority
            free = resident.claim is Claim.GOING or resident.claim is Claim.FREE
            if free or (late and resident.claim in (Claim.HELD, Claim.BUSY)):
                for device, size in resident.need.need_bytes.items():
                    if device in most:
                        most[device] += size
        self._most[rank] = most
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

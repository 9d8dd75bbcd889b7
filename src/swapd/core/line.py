"""Who waits, in which order: overdue first and oldest first, then by priority, then by age."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection
from typing import Final

from swapd.core.records import Record, Waiter
from swapd.core.spec import DeviceId, Footprint

NOWHERE: Final[DeviceId] = ""
"""Stands for the devices of a model that needs none, or whose needs are not known."""


class Line:
    """All waiters by arrival, and each model's oldest (its head) in the contract's order.

    Only heads are ever looked at, and the orders are kept, not sorted anew: an event
    costs O(log models), not O(waiters). Heads also stand by what they need of each device.
    """

    def __init__(self) -> None:
        self.waiters: dict[str, Waiter] = {}
        self._by_age: list[tuple[int, Waiter]] = []
        self._by_size: dict[DeviceId, list[tuple[int, int, Waiter]]] = {}
        self._by_rank: list[tuple[int, int, Waiter]] = []
        self._priorities: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.waiters)

    def add(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its model's queue."""
        queue = waiter.record.queue
        self.waiters[waiter.rid] = waiter
        queue[waiter.rid] = waiter
        if len(queue) == 1:
            self._insert(waiter)

    def remove(self, rid: str) -> Waiter | None:
        """Take a waiter out, wherever it stands; ``None`` if it does not wait."""
        waiter = self.waiters.pop(rid, None)
        if waiter is None:
            return None
        queue = waiter.record.queue
        was_head = next(iter(queue.values())) is waiter
        del queue[rid]
        if was_head:
            self._delete(waiter)
            if queue:
                self._insert(next(iter(queue.values())))
        return waiter

    def reorder(self) -> None:
        """Priorities have changed."""
        self._by_rank = sorted((-w.record.priority, seq, w) for seq, w in self._by_age)
        self._priorities = Counter(w.record.priority for _, w in self._by_age)

    def oldest(self) -> Waiter | None:
        """The one that came first of all."""
        return next(iter(self.waiters.values()), None)

    def resize(self, record: Record, footprint: Footprint) -> None:
        """A model is expected to take this much, on other devices perhaps."""
        first = head(record)
        if first is not None:
            self._delete(first)
        record.size(footprint)
        if first is not None:
            self._insert(first)

    def came_between(self, after: float, until: float) -> list[Waiter]:
        """Heads that came later than ``after`` and not later than ``until``, oldest first."""
        first = bisect_right(self._by_age, after, key=_arrival)
        last = bisect_right(self._by_age, until, lo=first, key=_arrival)
        return [entry[1] for entry in self._by_age[first:last]]

    def needing(self, device: DeviceId, more_than: int, up_to: int) -> list[Waiter]:
        """Heads that need so many bytes of a device, the smallest need first."""
        if more_than >= up_to:
            return []
        sizes = self._by_size.get(device, [])
        first = bisect_left(sizes, (more_than + 1,))
        return [entry[2] for entry in sizes[first : bisect_left(sizes, (up_to + 1,), lo=first)]]

    def next_after(self, time: float) -> float | None:
        """When the first head came that came later than this."""
        position = bisect_right(self._by_age, time, key=_arrival)
        return self._by_age[position][1].arrived_at if position < len(self._by_age) else None

    def first(self, count: int) -> list[Waiter]:
        """The oldest heads, and those of the highest priority."""
        return [e[1] for e in self._by_age[:count]] + [e[2] for e in self._by_rank[:count]]

    def priorities(self) -> Collection[int]:
        """The priorities of all heads."""
        return self._priorities.keys()

    def _insert(self, waiter: Waiter) -> None:
        insort(self._by_age, (waiter.seq, waiter), key=lambda e: e[0])
        for device, size in waiter.record.needs or ((NOWHERE, 0),):
            insort(self._by_size.setdefault(device, []), (size, waiter.seq, waiter))
        self._priorities[waiter.record.priority] += 1
        insort(self._by_rank, (-waiter.record.priority, waiter.seq, waiter), key=lambda e: e[:2])

    def _delete(self, waiter: Waiter) -> None:
        del self._by_age[bisect_left(self._by_age, waiter.seq, key=lambda e: e[0])]
        for device, size in waiter.record.needs or ((NOWHERE, 0),):
            sizes = self._by_size[device]
            del sizes[bisect_left(sizes, (size, waiter.seq))]
        priority = waiter.record.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        rank = (-priority, waiter.seq)
        del self._by_rank[bisect_left(self._by_rank, rank, key=lambda e: e[:2])]


def _arrival(entry: tuple[int, Waiter]) -> float:
    return entry[1].arrived_at


def head(record: Record) -> Waiter | None:
    """A model's oldest waiter."""
    return next(iter(record.queue.values()), None)

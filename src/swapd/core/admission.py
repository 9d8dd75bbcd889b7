"""Whether a newcomer may wait for a model at all."""

from __future__ import annotations

from swapd.core.lifecycle import InstanceState as S
from swapd.core.moves import Moves
from swapd.core.records import Record
from swapd.errors import BackingOff, MemoryHeldByOthers, QueueFull, ShuttingDown, SwapdError
from swapd.units import format_duration


def turned_away(do: Moves, record: Record) -> SwapdError | None:
    """Why a request (or an operator's load) is refused at once; ``None``: it may wait, or be granted."""
    if do.stops_at is not None:
        return ShuttingDown("swapd is shutting down", retry_after_s=10)
    if record.state is S.LOST:
        return lost(record)
    if record.retry_at is not None and record.retry_at > do.now and record.state not in (S.READY, S.STARTING):
        left = record.retry_at - do.now
        name, pause = record.spec.id, format_duration(left)
        text = f"{name!r} failed {record.failures} times in a row and is not tried for {pause}"
        return BackingOff(f"{text}; last error: {record.last_error}", retry_after_s=max(1, round(left)))
    waits = record.state is not S.READY or not record.has_room()
    if waits and len(do.line) >= do.policy.queue_limit:
        return QueueFull(f"{do.policy.queue_limit} requests wait already (queue_limit)", retry_after_s=5)
    return None


def lost(record: Record) -> MemoryHeldByOthers:
    """The error of a model whose last process outlived SIGKILL."""
    text = f"the last process of {record.spec.id!r} cannot be killed and still holds its memory"
    return MemoryHeldByOthers(text, retry_after_s=60)

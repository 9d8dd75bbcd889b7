"""Preloads never evict; they wait for loads, stops and readings that are under way, and for nobody else."""

from __future__ import annotations

from swapd.core.lifecycle import InstanceState as S
from swapd.core.moves import Moves
from swapd.core.records import Waiter
from swapd.errors import Unloaded


def settle(do: Moves) -> None:
    """End those that still wait when nothing is under way that could make room."""
    moving = (model for model in do.moving if do.records[model].state is not S.LOST)
    if do.sample_asked_at is not None or do.plans or any(moving):
        return
    for waiter in [w for w in do.preloads.values() if w.record.state is S.STOPPED]:
        give_up(do, waiter, waiter.record.waits_for or "there is no room")


def give_up(do: Moves, waiter: Waiter, why: str) -> None:
    """End one."""
    text = f"{waiter.record.spec.id!r} is not preloaded, which never evicts: {why}"
    do.refuse(waiter.rid, Unloaded(text, retry_after_s=1))

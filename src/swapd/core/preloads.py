"""Preloads never evict; they wait for loads, stops and readings that are under way, and for nobody else."""

from __future__ import annotations

from typing import TypeGuard

from swapd.core.lifecycle import InstanceState as S
from swapd.core.line import head
from swapd.core.moves import Moves
from swapd.core.placement import Evict, Verdict, Wait
from swapd.core.records import Waiter
from swapd.errors import Unloaded


def due(do: Moves) -> Waiter | None:
    """One that still waits although nothing is under way that could make room: now or never."""
    if not do.preloads or do.sample_asked_at is not None or do.plans:
        return None
    if any(do.records[model].state is not S.LOST for model in do.moving):
        return None
    return next((w for w in do.preloads.values() if w.record.state is S.STOPPED and head(w.record) is w), None)


def is_in_vain(verdict: Verdict, *, or_never: bool) -> TypeGuard[Evict | Wait]:
    """Whether a preload with this verdict is given up: another would have to go, or it would wait for nothing."""
    return isinstance(verdict, Evict) or (or_never and isinstance(verdict, Wait) and not verdict.unmeasured)


def give_up(do: Moves, waiter: Waiter, why: str) -> None:
    """End one."""
    text = f"{waiter.record.spec.id!r} is not preloaded, which never evicts: {why}"
    do.refuse(waiter.rid, Unloaded(text, retry_after_s=1))

"""What users see of the scheduler: ``/api/status``, ``explain`` and state changes, JSON-ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from swapd.core.ledger import DeviceSample, Holding, MachineSample
from swapd.core.lifecycle import WITH_PROCESS, InstanceState
from swapd.core.placement import Evict, Fits, NeverFits, Refuse, Wait
from swapd.core.records import Record
from swapd.core.scheduler import Scheduler
from swapd.core.spec import PAGE_CACHE, RAM, DeviceId, ModelId
from swapd.errors import InstanceError, SwapdError
from swapd.units import MIB, mib


class Instances(Protocol):
    """What is shown of the processes."""

    def pids(self) -> Mapping[ModelId, int]: ...

    def n_ctx(self, model: ModelId) -> int: ...

    def degraded(self, model: ModelId) -> str: ...


def word(record: Record) -> str:
    """The state as users see it: a stopped model whose last start or run ended in error is ``failed``."""
    if record.state is InstanceState.STOPPED and record.last_error is not None:
        return "failed"
    return record.state.value


def load_span(record: Record, now: float) -> tuple[float, float]:
    """When its last load began and ended (``now``: it has not), in monotonic seconds."""
    if record.ready_at >= record.started_at:
        return record.started_at, record.ready_at
    return record.started_at, now if record.state is InstanceState.STARTING else record.state_since


def change(record: Record) -> dict[str, Any]:
    """One change of state, or of a load's progress (0 to 1, else None)."""
    return {
        "model": record.spec.id,
        "state": word(record),
        "reason": record.reason,
        "generation": record.generation,
        "progress": record.progress,
    }


def report(
    scheduler: Scheduler,
    sample: MachineSample,
    instances: Instances,
    errors: Mapping[ModelId, Mapping[DeviceId, int]],
    now: float,
) -> dict[str, Any]:
    """``devices``, ``ram``, ``models`` and ``known``; ``errors``: measured less predicted bytes."""
    pids = instances.pids()
    models = [
        _model(scheduler, r, instances, pids, now) | {"prediction_error_mib": _signed(errors[m])}
        for m, r in scheduler.state.records.items()
    ]
    return {
        "known": sample.gpus_known,
        "problem": sample.problem or None,
        "devices": [_device(scheduler, d) for d in sample.gpus],
        "ram": _ram(scheduler, sample.ram),
        "queued": len(scheduler.state.line),
        "models": models,
    }


def _device(scheduler: Scheduler, device: DeviceSample) -> dict[str, Any]:
    return {
        "id": device.id,
        "index": device.index,
        "name": device.name,
        "total_mib": device.total_bytes // MIB,
        "free_mib": None if device.free_bytes is None else device.free_bytes // MIB,
        "headroom_mib": mib(scheduler.state.ledger.headroom.get(device.id, 0)),
        "foreign_mib": scheduler.state.ledger.foreign.get(device.id, 0) // MIB,
    }


def _ram(scheduler: Scheduler, ram: DeviceSample) -> dict[str, Any]:
    return {
        "total_mib": ram.total_bytes // MIB,
        "available_mib": None if ram.free_bytes is None else ram.free_bytes // MIB,
        "headroom_mib": mib(scheduler.state.ledger.headroom.get(RAM, 0)),
    }


def outlook(record: Record, rid: str) -> str:
    """What a waiting request is told: its model's state, how far its load is, and its place in the model's queue."""
    if record.state is InstanceState.STARTING:
        stage = f" ({record.stage})" if record.stage else ""
        return "loading" if record.progress is None else f"loading, {record.progress:.0%}{stage}"
    places = list(record.queue)
    place = f"place {places.index(rid) + 1} of {len(places)}" if rid in record.queue else "next"
    return f"waiting ({'not loaded' if record.state is InstanceState.STOPPED else record.state.value}), {place}"


def _model(
    scheduler: Scheduler, record: Record, instances: Instances, pids: Mapping[ModelId, int], now: float
) -> dict[str, Any]:
    model = record.spec.id
    holding = scheduler.state.ledger.holdings.get(model)
    group = scheduler.state.rules.group_of(model)
    loaded = record.state in (InstanceState.READY, InstanceState.DRAINING)
    reserved = holding.reserved.need_bytes if holding else record.footprint.need_bytes
    current = holding.current if holding else {}
    return {
        "id": model,
        "state": word(record),
        "reason": _reason(record, holding, instances),
        "pid": pids.get(model) if record.state in WITH_PROCESS else None,
        "progress": record.progress,
        "stage": record.stage or None,
        "active": len(record.leases),
        "queued": len(record.queue),
        "idle_s": _since(record.idle_since, now) if loaded else None,
        "loaded_s": _since(record.ready_at, now) if loaded else None,
        "group": group.id if group else None,
        "reserved_mib": _gpus(reserved),
        "measured_mib": _gpus(current),
        "ram_mib": mib(current.get(RAM, 0) or (reserved.get(RAM, 0) if holding else 0)),
        "last_error": _last_error(record),
        "loads": record.loads,
        "load_s": round(record.load_s, 3) if record.loads else None,
        "context_saved": False,
        "n_ctx": instances.n_ctx(model) or None,
        "args": list(holding.reserved.args) if holding else [],
    }


def _reason(record: Record, holding: Holding | None, instances: Instances) -> str | None:
    degraded = instances.degraded(record.spec.id)
    loaded = record.state is InstanceState.READY
    if degraded:
        return f"degraded: {degraded}"
    if holding is not None and holding.reserved.fixed and loaded:
        over = {d: p for d, p in holding.peak.items() if p > holding.reserved.on(d) > 0}
        if over:
            seen = ", ".join(f"{d} {mib(p)} MiB" for d, p in over.items())
            return f"the configured size is too small: measured {seen}"
    if record.warning and loaded:
        return record.warning
    return record.waits_for or record.reason


def _last_error(record: Record) -> str | None:
    """The error and, of a process, the last line it wrote."""
    error = record.last_error
    if error is None:
        return None
    words = error.stderr_tail.strip().splitlines()[-1:] if isinstance(error, InstanceError) else []
    return ": ".join([error.message, *(w for w in words if w not in error.message)])


def _gpus(sizes: Mapping[DeviceId, int]) -> dict[DeviceId, int]:
    return {d: mib(size) for d, size in sizes.items() if d not in (RAM, PAGE_CACHE)}


def _signed(sizes: Mapping[DeviceId, int]) -> dict[DeviceId, float]:
    return {d: round(size / MIB, 1) for d, size in sizes.items()}


def _since(then: float | None, now: float) -> float | None:
    return None if then is None else round(max(0.0, now - then), 3)


def explanation(scheduler: Scheduler, model: ModelId, now: float) -> dict[str, Any]:
    """What a request would do now: ``action`` (serve, start, evict, wait, refuse), ``evicts``, ``why``; MiB."""
    record = scheduler.state.records[model]
    verdict = scheduler.explain(model, now)
    room = scheduler.state.world().room
    holding = scheduler.state.ledger.holdings.get(model)
    chosen = holding.reserved if holding else scheduler.state.chosen_footprint(record)
    result: dict[str, Any] = {
        "model": model,
        "state": word(record),
        "action": "serve",
        "evicts": [],
        "why": "it is loaded" if record.state is InstanceState.READY else f"it is {record.state.value}",
        "needed_mib": {d: mib(n) for d, n in chosen.need_bytes.items()},
        "available_mib": {d: max(0, room.get(d, 0)) // MIB for d in chosen.need_bytes},
        "args": list(chosen.args),
    }
    match verdict:
        case Fits(reason):
            result |= {"action": "start", "why": reason}
        case Evict(victims, reason):
            result |= {"action": "evict", "evicts": list(victims), "why": reason}
        case Wait(victims, reason):
            result |= {"action": "wait", "evicts": list(victims), "why": reason}
        case Refuse(error) | NeverFits(error):
            result |= {"action": "refuse", "why": error.message, "code": error.code}
        case SwapdError() as error:
            result |= {"action": "refuse", "why": error.message, "code": error.code}
    return result

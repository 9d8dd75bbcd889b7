"""Where a model may go, and who makes room: one pure function over a picture of the world.

"Who unloads whom" and "Who makes room" of the contract. ``place`` is asked by
the scheduler after every event and by ``explain``; the tree stands nowhere else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import sub
from typing import Final, TypeAlias

from swapd.core.groups import GroupRules
from swapd.core.spec import PAGE_CACHE, RAM, DeviceId, Footprint, ModelId, ModelSpec
from swapd.errors import DevicesUnknown, InsufficientMemory, MemoryHeldByOthers, Refused, SwapdError
from swapd.units import MIB, mib

SEARCH_LIMIT: Final = 2000
"""Sets of victims looked at in order of cost; beyond, a greedy set is taken."""


class Claim(Enum):
    """What stands between a resident and its eviction for an ordinary newcomer."""

    GOING = "going already"
    FREE = "idle"
    HELD = "held"
    BUSY = "busy"
    LOADING = "loading"
    TAKEN = "making room for another"
    LOST = "lost"


GOING_OR_FREE: Final = (Claim.GOING, Claim.FREE)
HELD_OR_BUSY: Final = (Claim.HELD, Claim.BUSY)
LOST_OR_TAKEN: Final = (Claim.LOST, Claim.TAKEN)
"""Named once, since Python takes longer to look up an enum's member than to compare with it."""


@dataclass(slots=True, eq=False)
class Resident:
    """A model whose memory is not free: loaded, on its way, or promised memory by a commitment."""

    spec: ModelSpec
    need: Footprint
    claim: Claim
    why: str
    cost_s: float


@dataclass(slots=True)
class Table:
    """The group table for the models of one group: who is unloaded and who is protected, each with the reason."""

    unloaded: list[tuple[Resident, str]] = field(default_factory=list)
    protected: list[tuple[Resident, str]] = field(default_factory=list)


@dataclass(slots=True)
class World:
    """All that placing needs to know. Bytes by device; ``room`` is ``available`` after all commitments."""

    rules: GroupRules
    capacity: Mapping[DeviceId, int]
    foreign: Mapping[DeviceId, int]
    room: Mapping[DeviceId, int]
    residents: Sequence[Resident]
    gpus_known: bool = True
    problem: str = ""
    foreign_at: float = 0.0
    """When ``foreign`` was measured; minus infinity while something that came or went since makes it stale."""
    next_release_at: float = float("inf")
    """When the first hold ends, and this picture with it."""
    _tables: dict[str | None, Table] = field(default_factory=dict)
    _by_device: dict[DeviceId, dict[ModelId, Resident]] = field(default_factory=dict)

    @property
    def somebody_loads_alone(self) -> bool:
        """Whether a model of unknown size is loading."""
        return any(r.need.alone_on and r.claim is Claim.LOADING for r in self.residents)

    def residents_on(self, device: DeviceId) -> Mapping[ModelId, Resident]:
        """Those that hold memory of a device and may give it to somebody: neither lost nor promised."""
        found = self._by_device.get(device)
        if found is None:
            there = (r for r in self.residents if r.need.need_bytes.get(device))
            able = {r.spec.id: r for r in there if r.claim not in LOST_OR_TAKEN}
            found = self._by_device[device] = able
        return found

    def table_for(self, target: ModelId) -> Table:
        """What the group table says for a target, the same for all models of its group."""
        group = self.rules.group_of(target)
        key = group.id if group else None
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._draw_table(target)
        return table

    def _draw_table(self, target: ModelId) -> Table:
        table, rows = Table(), self.rules.rows_for(target)
        for resident in self.residents:
            protection, why = rows[resident.spec.id]
            if not (protection or why) or resident.claim is Claim.LOST:
                continue
            if protection and resident.claim is not Claim.GOING:
                table.protected.append((resident, protection))
            elif why:
                table.unloaded.append((resident, why))
        return table


@dataclass(frozen=True, slots=True)
class Fits:
    """It fits beside all that is there."""

    reason: str = "it fits beside all that is loaded"


@dataclass(frozen=True, slots=True)
class Evict:
    """It fits once these have gone, and they may go now."""

    victims: tuple[ModelId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """It will fit, but not now: ``victims`` is the eviction set so far.

    ``by_table``: a model that the group table unloads holds it up, whatever its size.
    ``unmeasured``: whether other programs are in the way is not known by a reading young enough.
    """

    victims: tuple[ModelId, ...]
    reason: str
    by_table: bool = False
    unmeasured: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is refused now; a later request may do better."""

    error: SwapdError


@dataclass(frozen=True, slots=True)
class NeverFits:
    """No eviction makes room on this machine."""

    error: InsufficientMemory


Verdict: TypeAlias = Fits | Evict | Wait | Refuse | NeverFits


@dataclass(slots=True)
class _Case:
    """One target's view of the world while it is being placed."""

    target: ModelSpec
    need: Footprint
    world: World
    overdue: bool
    arrived_at: float
    forced: dict[ModelId, str] = field(default_factory=dict)
    blocked_by: list[str] = field(default_factory=list)
    protected: list[Resident] = field(default_factory=list)

    def may_go(self, resident: Resident) -> bool:
        """Whether the resident could be evicted for this waiter at this moment."""
        if resident.claim in GOING_OR_FREE:
            return True
        if resident.claim in HELD_OR_BUSY:
            return self.overdue or self.target.priority > resident.spec.priority
        return False


def place(
    target: ModelSpec, need: Footprint, world: World, *, overdue: bool = False, arrived_at: float = 0.0
) -> Verdict:
    """Decide what a request for a stopped model may do now.

    ``overdue``: it has waited ``max_wait``, so busy and held models drain for it.
    Only a reading taken after ``arrived_at`` may refuse it because of other programs.
    """
    refusal = unfit(target, need, world)
    if refusal is not None:
        return refusal
    case = _Case(target, need, world, overdue, arrived_at)
    barred = _apply_table(case)
    if barred is not None:
        return barred
    return _make_room(case)


def unfit(target: ModelSpec, need: Footprint, world: World) -> Refuse | NeverFits | None:
    """Refusals that no eviction changes: unknown devices, or larger than total minus headroom."""
    unknown = [d for d in need.need_bytes if d not in world.capacity]
    if unknown:
        return Refuse(DevicesUnknown(_unknown(target, unknown, world), retry_after_s=10))
    over = [d for d, size in need.need_bytes.items() if size > world.capacity[d]]
    if not over:
        return None
    available = {d: max(0, world.capacity[d]) for d in need.need_bytes}
    return NeverFits(_insufficient(target, need, available, over, "total minus headroom"))


def _unknown(target: ModelSpec, devices: Sequence[DeviceId], world: World) -> str:
    if world.problem or not world.gpus_known:
        why = world.problem or f"{', '.join(devices)} cannot be read"
        return f"{target.id!r} needs a GPU, and the GPUs cannot be read: {why}"
    there = ", ".join(d for d in world.capacity if d not in (RAM, PAGE_CACHE)) or "none"
    return f"{target.id!r} needs GPU {', '.join(devices)}, which this machine does not have; its GPUs: {there}"


def _insufficient(
    target: ModelSpec, need: Footprint, available: Mapping[DeviceId, int], over: Iterable[DeviceId], what: str
) -> InsufficientMemory:
    parts = [f"{_words(d)} needs {mib(need.on(d))} MiB of {available[d] // MIB} MiB ({what})" for d in over]
    return InsufficientMemory(
        f"{target.id!r} does not fit: {'; '.join(parts)}", needed=dict(need.need_bytes), available=available
    )


def _words(device: DeviceId) -> str:
    return "RAM with the weights read through the page cache (L1)" if device == PAGE_CACHE else device


def _apply_table(case: _Case) -> Verdict | None:
    """Fill ``forced`` by the group table and the wish to be alone; a verdict if that already decides."""
    world, target = case.world, case.target
    table = world.table_for(target.id)
    case.protected = [resident for resident, _ in table.protected]
    for resident, protection in table.protected:
        if world.rules.bars(target.id, resident.spec.id):
            return Refuse(_kept_out(target, protection))
    goes = table.unloaded
    if case.need.alone_on or world.somebody_loads_alone:
        known = {resident.spec.id for resident, _ in goes} | {r.spec.id for r in case.protected}
        rest = (r for r in world.residents if r.spec.id not in known and r.claim is not Claim.LOST)
        goes = [*goes, *((r, why) for r in rest if (why := _alone(case.need, r)))]
    for resident, why in goes:
        if resident.spec.on_conflict == "refuse":
            return Refuse(_on_conflict(target, resident))
        case.forced[resident.spec.id] = why
    return None


def _alone(need: Footprint, resident: Resident) -> str:
    devices = need.alone_on & resident.need.need_bytes.keys()
    if devices:
        return f"its size on {', '.join(sorted(devices))} is not known yet, so it loads alone there"
    if resident.claim is Claim.LOADING and resident.need.alone_on & need.need_bytes.keys():
        return "it is loading, and its size is not known yet"
    return ""


def _kept_out(target: ModelSpec, protection: str) -> InsufficientMemory:
    return InsufficientMemory(f"{target.id!r} cannot be loaded: {protection} and shares its swap group")


def _on_conflict(target: ModelSpec, resident: Resident) -> Refused:
    return Refused(f'{target.id!r} would unload {resident.spec.id!r}, whose on_conflict is "refuse"')


def _make_room(case: _Case) -> Verdict:
    """The memory part: the forced victims, plus the cheapest that still have to go."""
    residents = {r.spec.id: r for r in case.world.residents} if case.forced else {}
    forced = [residents[name] for name in case.forced]
    open_forced = [r for r in forced if r.claim is not Claim.TAKEN]
    short = _short(case, open_forced)
    if short:
        extra = _choose(case, short, exclude=case.forced)
        if isinstance(extra, Refuse | Wait):
            return extra
        forced += extra
    if not forced:
        return Fits()
    return _when(case, forced)


def _short(case: _Case, going: Iterable[Resident]) -> dict[DeviceId, int]:
    """Bytes missing by device once ``going`` have gone."""
    missing = {}
    for device, size in case.need.need_bytes.items():
        gap = size - case.world.room[device] - sum(r.need.on(device) for r in going)
        if gap > 0:
            missing[device] = gap
    return missing


def _when(case: _Case, victims: list[Resident]) -> Evict | Wait:
    names = tuple(r.spec.id for r in victims)
    holding_up = [r for r in victims if not case.may_go(r)]
    if holding_up:
        by_table = any(r.spec.id in case.forced and not case.need.alone_on for r in holding_up)
        return Wait(names, "; ".join(f"{r.spec.id!r} {r.why}" for r in holding_up), by_table)
    return Evict(names, "; ".join(f"{r.spec.id!r}: {case.forced.get(r.spec.id) or 'makes room'}" for r in victims))


def _choose(
    case: _Case, short: Mapping[DeviceId, int], exclude: Mapping[ModelId, str]
) -> list[Resident] | Wait | Refuse:
    """The cheapest further victims: among those that may go now, else among all, those that refuse last."""
    protected = {r.spec.id for r in case.protected}
    near: dict[ModelId, Resident] = {}
    for device in short:
        near |= case.world.residents_on(device)
    pool = [r for name, r in near.items() if name not in protected and name not in exclude]
    if not _covers(pool, short):
        return _nothing_helps(case, short)
    willing = [r for r in pool if r.spec.on_conflict != "refuse" or r.claim is Claim.GOING]
    now = [r for r in willing if case.may_go(r)]
    for candidates in (now, [r for r in willing if r.claim is not Claim.LOADING], willing):
        chosen = cheapest(candidates, short)
        if chosen is not None:
            return chosen
    chosen = cheapest(pool, short) or pool
    return Refuse(_on_conflict(case.target, next(r for r in chosen if r.spec.on_conflict == "refuse")))


def cheapest(candidates: Sequence[Resident], short: Mapping[DeviceId, int]) -> list[Resident] | None:
    """The set with the smallest sum of ``cost_s`` that frees ``short`` on every device; ``None`` if all do not."""
    if not _covers(candidates, short):
        return None
    order = sorted(candidates, key=lambda r: r.cost_s)
    frees = [tuple([r.need.need_bytes.get(d, 0) for d in short]) for r in order]
    looked_at = 0
    # cost, the last one picked, all picked, and what the others but the last leave missing by device
    queue: list[tuple[float, int, tuple[int, ...], tuple[int, ...]]] = [(order[0].cost_s, 0, (0,), (*short.values(),))]
    while queue and looked_at < SEARCH_LIMIT:
        cost, last, picked, before = heapq.heappop(queue)
        looked_at += 1
        missing = tuple(map(sub, before, frees[last]))
        if max(missing) <= 0:
            return [order[i] for i in picked]
        after = last + 1
        if after < len(order):
            step = order[after].cost_s
            heapq.heappush(queue, (cost + step, after, (*picked, after), missing))
            heapq.heappush(queue, (cost + step - order[last].cost_s, after, (*picked[:-1], after), before))
    return _greedy(order, short)


def _covers(chosen: Sequence[Resident], short: Mapping[DeviceId, int]) -> bool:
    return bool(chosen) and all(sum(r.need.on(d) for r in chosen) >= gap for d, gap in short.items())


def _greedy(order: Sequence[Resident], short: Mapping[DeviceId, int]) -> list[Resident]:
    """All of them, less those that turn out not to be needed, the dearest first."""
    chosen = list(order)
    for resident in reversed(order):
        fewer = [r for r in chosen if r is not resident]
        if _covers(fewer, short):
            chosen = fewer
    return chosen


def _nothing_helps(case: _Case, short: Mapping[DeviceId, int]) -> Wait | Refuse:
    """No eviction makes room now: wait for commitments and loads, or say who holds the memory for good."""
    world, need = case.world, case.need
    kept = {d: sum(r.need.on(d) for r in case.protected) for d in short}
    lost = {d: sum(r.need.on(d) for r in world.residents if r.claim is Claim.LOST) for d in short}
    room = {d: world.capacity[d] - kept[d] for d in short}
    if any(need.on(d) > room[d] for d in short):
        by = ", ".join(repr(r.spec.id) for r in case.protected)
        over = [d for d in short if need.on(d) > room[d]]
        return Refuse(_insufficient(case.target, need, _all(case, room), over, f"beside {by}, which is kept loaded"))
    for held, by in ((lost, "a process that cannot be killed"), (world.foreign, "other programs")):
        room = {d: room[d] - held.get(d, 0) for d in short}
        if any(need.on(d) > room[d] for d in short):
            return _held_by(case, room, by)
    return Wait((), "memory is promised to others or still loading")


def _held_by(case: _Case, room: Mapping[DeviceId, int], by: str) -> Wait | Refuse:
    if case.world.foreign_at < case.arrived_at:
        return Wait((), "memory is being measured", unmeasured=True)
    parts = [
        f"{_words(d)} needs {mib(case.need.on(d))} MiB, {max(0, left) // MIB} MiB could be free"
        for d, left in room.items()
    ]
    text = f"{case.target.id!r} does not fit now, memory is held by {by}: {'; '.join(parts)}"
    return Refuse(MemoryHeldByOthers(text, retry_after_s=10))


def _all(case: _Case, room: Mapping[DeviceId, int]) -> dict[DeviceId, int]:
    return {d: max(0, room.get(d, case.world.room[d])) for d in case.need.need_bytes}

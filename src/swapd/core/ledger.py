"""The headroom rule: what of each device's memory may still be given away.

``available(d) = total − foreign − Σ reserved(every instance not STOPPED) − headroom(d)``
with ``foreign = total − free − Σ current``, measured only while nothing starts,
stops or releases. Host RAM is the device ``RAM``. Bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from swapd.core.spec import PAGE_CACHE, RAM, DeviceId, Footprint, ModelId, Policy


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one moment; ``free_bytes`` None = could not be read."""

    id: DeviceId
    total_bytes: int
    free_bytes: int | None
    index: int = 0
    name: str = ""
    pci_bus_id: str = ""
    unified: bool = False


@dataclass(frozen=True, slots=True)
class MachineSample:
    """All devices at one moment.

    ``gpus_known`` False: reading the GPUs failed (``problem`` says how); an empty
    ``gpus`` with ``gpus_known`` True is a machine without GPUs.
    """

    gpus: tuple[DeviceSample, ...] = ()
    ram: DeviceSample = field(default_factory=lambda: DeviceSample(RAM, 0, None))
    gpus_known: bool = True
    problem: str = ""

    def devices(self) -> tuple[DeviceSample, ...]:
        """GPUs in their order, then RAM."""
        return (*self.gpus, self.ram)


class MemoryLedger:
    """What each device has, what others hold, and what our instances hold now.

    ``observe`` is fed every sample; all else is arithmetic. An instance is known
    here from ``began`` (its start) to ``ended`` (its memory seen free).
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.total: dict[DeviceId, int] = {}
        self.free: dict[DeviceId, int] = {}
        self.headroom: dict[DeviceId, int] = {}
        self.capacity: dict[DeviceId, int] = {}
        self.foreign: dict[DeviceId, int] = {}
        self.holdings: dict[ModelId, Holding] = {}
        self._gpus: tuple[DeviceSample, ...] = ()
        self.gpus_known = False
        self.problem = "the devices were not read yet"
        self.sampled_at = float("-inf")
        self.foreign_at = float("-inf")

    def observe(
        self,
        at: float,
        sample: MachineSample,
        held: Mapping[ModelId, Mapping[DeviceId, int]],
        *,
        settled: bool,
        busy: Iterable[ModelId],
    ) -> None:
        """Take in a sample. ``settled``: nothing starts, stops or releases; ``busy`` worked since the last sample."""
        self.read(at, sample)
        for model in held.keys() & self.holdings.keys():
            self.holdings[model].current.update(held[model])
        if not settled:
            return
        for device in self.total:
            if device in self.free and device != PAGE_CACHE:
                self._attribute(device, held, list(busy))
        self._mirror_page_cache()
        for holding in self.holdings.values():
            holding.settle()
        self.foreign_at = at

    def use(self, policy: Policy) -> None:
        """Another policy holds; the next reading is judged by it."""
        self._policy = policy

    def read(self, at: float, sample: MachineSample) -> None:
        """Take in the raw figures alone."""
        self.sampled_at = at
        self.gpus_known, self.problem = sample.gpus_known, sample.problem
        self._gpus = sample.gpus if sample.gpus_known else tuple(replace(g, free_bytes=None) for g in self._gpus)
        devices = (*self._gpus, sample.ram)
        self.total = {d.id: d.total_bytes for d in devices}
        self.free = {d.id: d.free_bytes for d in devices if d.free_bytes is not None}
        self.headroom = {d.id: self._policy.headroom(d.id, str(d.index), d.pci_bus_id) for d in devices}
        self.capacity = {d.id: d.total_bytes - self.headroom[d.id] for d in devices if d.id in self.free}
        first_seen = {d: self.total[d] - self.free[d] for d in self.free}
        self.foreign = first_seen | self.foreign  # what was known before a device could not be read still holds
        self._mirror_page_cache()

    def agrees(self, sample: MachineSample, held: Mapping[ModelId, Mapping[DeviceId, int]], within: int) -> bool:
        """Whether a reading differs from the last one by no more than ``within``, host RAM by what it likes.

        False also if anything is below its headroom or cannot be read.
        """
        if not (sample.gpus_known and self.gpus_known) or len(sample.gpus) != len(self._gpus):
            return False
        for device in sample.devices():
            free, before = device.free_bytes, self.free.get(device.id)
            if free is None or before is None or device.total_bytes != self.total[device.id]:
                return False
            if free < self.headroom[device.id] or (device.id != RAM and abs(free - before) > within):
                return False
        for model, sizes in held.items():
            current = self.holdings[model].current if model in self.holdings else {}
            if any(abs(size - current.get(device, 0)) > within for device, size in sizes.items()):
                return False
        return True

    def _mirror_page_cache(self) -> None:
        """RAM under its other name: what is foreign there is foreign here."""
        if self._policy.page_cache == "refuse" and RAM in self.free:
            for table in (self.total, self.free, self.foreign):
                table[PAGE_CACHE] = table[RAM]
            self.headroom[PAGE_CACHE], self.capacity[PAGE_CACHE] = 0, self.total[RAM]

    def _attribute(self, device: DeviceId, held: Mapping[ModelId, Mapping[DeviceId, int]], busy: list[ModelId]) -> None:
        used = self.total[device] - self.free[device]
        told = {m: h[device] for m, h in held.items() if device in h and m in self.holdings}
        for model, size in told.items():
            self.holdings[model].see(device, size)
        others = [h for m, h in self.holdings.items() if m not in told and h.may_hold(device)]
        unexplained = used - self.foreign[device] - sum(told.values()) - sum(h.current.get(device, 0) for h in others)
        new = [h for h in others if not h.measured]
        if new:
            whole = sum(h.reserved.on(device) for h in new)
            for holding in new:
                part, of = (holding.reserved.on(device), whole) if whole else (1, len(new))
                holding.see(device, max(0, unexplained) * part // of)
        elif unexplained > 0 and len(busy) == 1 and (only := self.holdings.get(busy[0])) in others:
            assert only is not None
            only.see(device, min(only.current.get(device, 0) + unexplained, only.reserved.on(device)))
        ours = sum(told.values()) + sum(h.seen.get(device, h.current.get(device, 0)) for h in others)
        self.foreign[device] = max(0, used - ours)

    def began(self, model: ModelId, reserved: Footprint) -> None:
        """An instance starts: its footprint is reserved, nothing is measured yet."""
        self.holdings[model] = Holding(reserved, dict(self.free))

    def ended(self, model: ModelId) -> None:
        """An instance's memory is free again, or counts as foreign from now on."""
        self.holdings.pop(model, None)

    def write_off(self, model: ModelId, coming: Collection[ModelId]) -> None:
        """An instance is gone and its memory did not come back: what is missing is foreign.

        ``coming``: instances that stop or release; they, and those not measured yet, may hold up to their footprint.
        """
        self.holdings.pop(model, None)
        explained = dict.fromkeys(self.free, 0)
        for other, holding in self.holdings.items():
            for device, size in holding.may_explain(gone=other in coming).items():
                if device in explained:
                    explained[device] += size
        for device, free in self.free.items():
            self.foreign[device] += max(0, self.total[device] - free - self.foreign[device] - explained[device])

    def grew_on_load(self, model: ModelId) -> int | None:
        """Bytes by which free GPU memory fell since the start; ``None`` where that cannot be told."""
        holding = self.holdings[model]
        gpus = [d for d in holding.reserved.need_bytes if d not in (RAM, PAGE_CACHE)]
        if not gpus or any(d not in self.free or d not in holding.free_before for d in gpus):
            return None
        return sum(holding.free_before[d] - self.free[d] for d in gpus)

    def back(self, others: Iterable[ModelId], need: Mapping[DeviceId, int]) -> bool:
        """Whether the last raw reading has room for ``need``: free - headroom - (reserved - current) of ``others``.

        ``others`` run or load; processes that are gone count with whatever they still seem to hold.
        """
        for device, size in need.items():
            if device not in self.free:
                return False
            room = self.free[device] - self.headroom[device]
            for model in others:
                holding = self.holdings[model]
                current = holding.current.get(RAM if device == PAGE_CACHE else device, 0)
                room -= max(0, holding.reserved.on(device) - current)
            if room < size:
                return False
        return True

    def without_ours(self, sample: MachineSample) -> MachineSample:
        """The machine as other programs leave it: what a model may count on if everything of ours goes."""
        known = self.foreign
        gpus = (
            replace(g, free_bytes=g.total_bytes - known[g.id]) if g.free_bytes is not None and g.id in known else g
            for g in sample.gpus
        )
        return replace(sample, gpus=tuple(gpus))

    def page_cache_short(self, extra: Footprint) -> tuple[int, int] | None:
        """Bytes that all and ``extra`` read through the page cache, and the RAM left for that, if it is too little."""
        if RAM not in self.foreign or not extra.cached_bytes:
            return None
        everybody = [extra, *(h.reserved for h in self.holdings.values())]
        needed = sum(f.cached_bytes for f in everybody)
        room = max(0, self.total[RAM] - self.foreign[RAM] - sum(f.on(RAM) for f in everybody))
        return (needed, room) if needed > room else None

    def short_of_headroom(self) -> list[DeviceId]:
        """Devices whose last reading is below their headroom."""
        return [d for d, free in self.free.items() if free < self.headroom[d]]


class Holding:
    """What one instance has reserved, holds now, and was seen to hold at idle and at most."""

    __slots__ = ("current", "free_before", "idle", "measured", "peak", "reserved", "seen", "stored", "worked")

    def __init__(self, reserved: Footprint, free_before: dict[DeviceId, int]) -> None:
        self.reserved = reserved
        self.free_before = free_before
        self.current: dict[DeviceId, int] = {}
        self.idle: dict[DeviceId, int] = {}
        self.peak: dict[DeviceId, int] = {}
        self.seen: dict[DeviceId, int] = {}
        self.measured = False
        self.worked = False
        self.stored: tuple[dict[DeviceId, int], bool] | None = None

    def may_hold(self, device: DeviceId) -> bool:
        """Whether what is used on a device may be the instance's: it reserved some, or nobody knew how much."""
        return self.reserved.on(device) > 0 or device in self.reserved.alone_on

    def may_explain(self, *, gone: bool) -> Mapping[DeviceId, int]:
        """What of the used memory may be its own: its footprint if it is ``gone``, or where nothing was measured."""
        if gone:
            return self.reserved.need_bytes
        known = self.current | {PAGE_CACHE: self.current[RAM]} if RAM in self.current else self.current
        return known if self.measured else {**self.reserved.need_bytes, **known}

    def see(self, device: DeviceId, size: int) -> None:
        """A new figure for what the instance holds on a device."""
        self.seen[device] = size

    def settle(self) -> None:
        """Make the figures of one sample current; the first non-zero ones are the idle use."""
        self.current.update(self.seen)
        self.seen.clear()
        if not self.measured and any(self.current.get(d) for d in self.reserved.need_bytes):
            self.idle = dict(self.current)
        self.measured = True
        for device, size in self.current.items():
            self.peak[device] = max(size, self.peak.get(device, 0))

    def learned(self) -> Footprint | None:
        """The footprint measured so far: idle plus the larger of growth seen and growth predicted; ``None`` = nothing.

        Devices on which nothing was seen keep their reservation.
        """
        if self.reserved.fixed or not self.idle:
            return None
        need = dict(self.reserved.need_bytes)
        for device, idle in self.idle.items():
            if idle:
                predicted = 0 if self.worked else self.reserved.growth_bytes.get(device, 0)
                need[device] = idle + max(self.peak[device] - idle, predicted)
        if PAGE_CACHE in need:
            need[PAGE_CACHE] = need.get(RAM, 0) + self.reserved.cached_bytes
        cached = self.reserved.cached_bytes
        return Footprint(need, self.reserved.growth_bytes, args=self.reserved.args, cached_bytes=cached)

"""The policy to compare with: first come first served, least recently used victim, evicted as soon as it is idle."""

from __future__ import annotations

from collections import OrderedDict

from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.spec import Catalog, DeviceId


class PlainPolicy:
    """Requests for a loaded model pass at once, until the oldest waiter has waited ``max_wait``."""

    def __init__(self, catalog: Catalog) -> None:
        self.policy = catalog.policy
        self.need: dict[str, dict[DeviceId, int]] = {}
        self.capacity: dict[DeviceId, int] = {}
        self.state: dict[str, str] = {}
        self.generation = dict.fromkeys(catalog.models, 0)
        self.active = dict.fromkeys(catalog.models, 0)
        self.used: OrderedDict[str, None] = OrderedDict()
        self.queue: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self.leases: dict[str, str] = {}
        self.target: str | None = None

    def handle(self, event: ev.Event) -> list[cmd.Command]:
        out: list[cmd.Command] = []
        match event:
            case ev.FootprintLearned(_, model, footprint, _):
                self.need[model] = dict(footprint.need_bytes)
                if not self.capacity:
                    out.append(cmd.SampleDevices("first"))
            case ev.DeviceSampled(_, sample, _):
                self.capacity = {d.id: d.total_bytes - self.policy.headroom(d.id) for d in sample.devices()}
            case ev.RequestArrived(at, rid, model, _):
                self.queue[rid] = (model, at)
            case ev.LeaseReturned(_, rid, _, _):
                self.active[self.leases.pop(rid)] -= 1
            case ev.InstanceReady(_, model, _):
                self.state[model] = "ready"
            case ev.InstanceExited(_, model, _):
                del self.state[model]
        self._go(event.at, out)
        return out

    def _go(self, now: float, out: list[cmd.Command]) -> None:
        waiting = [(rid, m, at) for rid, (m, at) in self.queue.items()]
        blocked = any(self.state.get(m) != "ready" and now - at >= self.policy.max_wait_s for _, m, at in waiting)
        for rid, model, at in waiting:
            fresh = blocked and now - at < self.policy.max_wait_s
            if self.state.get(model) == "ready" and not fresh:
                del self.queue[rid]
                self.leases[rid] = model
                self.active[model] += 1
                self.used[model] = None
                self.used.move_to_end(model)
                out.append(cmd.GrantLease(rid, model, self.generation[model]))
        heads = [m for m, _ in self.queue.values() if m not in self.state]
        if heads:
            self._make_room(heads[0], out)
        overdue = [at + self.policy.max_wait_s for _, at in self.queue.values() if at + self.policy.max_wait_s > now]
        out.append(cmd.WakeAt(min(overdue, default=None)))

    def _make_room(self, target: str, out: list[cmd.Command]) -> None:
        loaded = [m for m, s in self.state.items() if s != "stopping"]
        for device, capacity in self.capacity.items():
            held = sum(self.need[m].get(device, 0) for m in self.state)
            if held + self.need[target].get(device, 0) > capacity:
                order = [m for m in self.used if m in loaded]
                idle = [m for m in order if self.state[m] == "ready" and not self.active[m]]
                going = any(s == "stopping" for s in self.state.values())
                if idle and not going:
                    self.state[idle[0]] = "stopping"
                    out.append(cmd.StopInstance(idle[0], self.generation[idle[0]], "LRU"))
                return
        self.state[target] = "starting"
        self.generation[target] += 1
        out.append(cmd.StartInstance(target, self.generation[target], "fits"))

"""A scheduler with a machine at hand: tests read as a transcript of what happens and what is ordered."""

from __future__ import annotations

from collections.abc import Mapping

from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.placement import Verdict
from swapd.core.scheduler import Scheduler
from swapd.core.spec import RAM, Catalog, Footprint, Group, ModelSpec, Policy
from swapd.errors import SwapdError
from swapd.units import GIB

GPU = "GPU-0"


class Play:
    """Feeds events at ``now`` and keeps every order; readings come by themselves unless ``blind``."""

    def __init__(
        self,
        models: Mapping[str, ModelSpec] | list[str],
        *,
        sizes_gib: Mapping[str, float] | None = None,
        groups: Mapping[str, Group] | None = None,
        policy: Policy | None = None,
        total_gib: float = 24,
        load_s: float = 1.0,
        device: str = GPU,
    ) -> None:
        specs = models if isinstance(models, Mapping) else {m: ModelSpec(m, linger=0.0) for m in models}
        self.scheduler = Scheduler(Catalog(dict(specs), dict(groups or {}), policy or Policy()))
        self.now = 100.0
        self.total, self.device = int(total_gib * GIB), device
        self.foreign = 0
        self.held: dict[str, int] = {}
        self.sizes = {m: int((sizes_gib or {}).get(m, 10) * GIB) for m in specs}
        self.known, self.answers = True, True
        self.orders: list[cmd.Command] = []
        self.grants: list[str] = []
        self.refusals: dict[str, SwapdError] = {}
        for model, size in self.sizes.items():
            self.send(ev.FootprintLearned(self.now, model, Footprint({device: size}), load_s))
        self.read()

    # ---- events

    def send(self, event: ev.Event) -> list[cmd.Command]:
        orders = self.scheduler.handle(event)
        self.orders += orders
        for order in orders:
            match order:
                case cmd.GrantLease(rid, _, _):
                    self.grants.append(rid)
                case cmd.RefuseRequest(rid, error):
                    self.refusals[rid] = error
        if self.answers and any(isinstance(o, cmd.SampleDevices) for o in orders):
            self.read()
        return orders

    def read(self) -> None:
        free = max(0, self.total - self.foreign - sum(self.held.values()))
        gpus = (DeviceSample(self.device, self.total, free, 0, "test"),) if self.known else ()
        ram = DeviceSample(RAM, 64 * GIB, 60 * GIB)
        self.send(ev.DeviceSampled(self.now, MachineSample(gpus, ram, self.known, "" if self.known else "broken")))

    def wait(self, seconds: float) -> None:
        """Time passes; every deadline that was asked for is met."""
        end = self.now + seconds
        while (at := self.wake_at) is not None and at <= end:
            self.now = max(self.now, at)
            self.send(ev.DeadlinePassed(self.now))
        self.now = end

    @property
    def wake_at(self) -> float | None:
        return next((o.at for o in reversed(self.orders) if isinstance(o, cmd.WakeAt)), None)

    def ask(self, rid: str, model: str, tokens: int = 0) -> None:
        self.send(ev.RequestArrived(self.now, rid, model, tokens))

    def leave(self, rid: str) -> None:
        self.send(ev.RequestWithdrawn(self.now, rid))

    def answer(self, *rids: str, served: bool = True) -> None:
        for rid in rids:
            self.send(ev.LeaseReturned(self.now, rid, served))

    def ready(self, model: str) -> None:
        self.held[model] = self.sizes[model]
        self.send(ev.InstanceReady(self.now, model, self.generation(model)))

    def gone(self, model: str, *, memory_back: bool = True) -> None:
        if memory_back:
            self.held.pop(model, None)
        self.send(ev.InstanceExited(self.now, model, self.generation(model)))

    def fail(self, model: str, cause: str = "") -> None:
        self.send(ev.StartFailed(self.now, model, self.generation(model), f"exit code 1 {cause}", cause))

    def load(self, *models: str) -> None:
        """Load models by requests that are answered at once."""
        for model in models:
            rid = f"load-{model}-{self.now}"
            self.ask(rid, model)
            self.ready(model)
            self.answer(rid)

    # ---- what came of it

    def generation(self, model: str) -> int:
        return self.scheduler.state.records[model].generation

    def state(self, model: str) -> str:
        return self.scheduler.state.records[model].state.value

    def states(self) -> dict[str, str]:
        return {m: r.state.value for m, r in self.scheduler.state.records.items() if r.state.value != "stopped"}

    def explained(self, model: str) -> Verdict | SwapdError | None:
        return self.scheduler.explain(model, self.now)

    def starts(self) -> list[str]:
        return [o.model for o in self.orders if isinstance(o, cmd.StartInstance)]

    def stops(self) -> list[str]:
        return [o.model for o in self.orders if isinstance(o, cmd.StopInstance)]

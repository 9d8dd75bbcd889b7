"""A random world, and a judge that trusts only what the simulated machine really holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from swapd.bench.simulation import Engine, Simulation
from swapd.core import events as ev
from swapd.core.scheduler import Scheduler
from swapd.core.spec import RAM, Catalog, Footprint, Group, ModelSpec, Policy
from swapd.errors import MemoryHeldByOthers
from swapd.units import GIB, MIB

HEADROOM = 1 * GIB
LONGEST_SERVICE_S = 9.0


@dataclass
class Action:
    delay_s: float
    kind: str
    model: int
    service_s: float


@dataclass
class WorldSpec:
    catalog: Catalog
    engines: dict[str, Engine]
    footprints: dict[str, Footprint]
    totals: dict[str, int]
    actions: list[Action]
    tells_held: bool = True


@dataclass
class Asked:
    model: str
    at: float
    service_s: float
    outcomes: list[str] = field(default_factory=list)
    answered_at: float | None = None


class Judge:
    """Runs a world to its end and records every violated invariant."""

    def __init__(self, spec: WorldSpec, scheduler_class: type[Scheduler] = Scheduler) -> None:
        self.spec = spec
        self.scheduler = scheduler_class(spec.catalog)
        self.sim = Simulation(self.scheduler, spec.engines, spec.totals, tells_held=spec.tells_held)
        self.sim.on_grant, self.sim.on_refuse = self.granted, self.refused
        self.sim.on_start, self.sim.on_cut = self.started, self.cut
        self.asked: dict[str, Asked] = {}
        self.violations: list[str] = []
        self.may_cut: set[str] = set()
        self.removed: set[str] = set()
        self.disturbed_at = float("-inf")

    def run(self) -> list[str]:
        for model, footprint in self.spec.footprints.items():
            load_s = self.spec.engines[model].load_s
            self.sim.send(ev.FootprintLearned(0.0, model, footprint, load_s))
        self.sim.run(0.1)
        for number, action in enumerate(self.spec.actions):
            self.sim.run(self.sim.now + max(action.delay_s, 1e-6))
            self.act(number, action)
        self.run_to_the_end()
        self.check_end()
        return self.violations

    def run_to_the_end(self) -> None:
        """Until everybody has an answer and nothing is promised, or for longer than any wait may be."""
        end = self.sim.now + 4000
        while self.sim.now < end:
            self.sim.run(self.sim.now + 40)
            state = self.scheduler.state
            if all(a.outcomes for a in self.asked.values()) and not (state.leases or len(state.line) or state.plans):
                return

    # ---- what happens

    def act(self, number: int, action: Action) -> None:
        model = list(self.spec.catalog.models)[action.model % len(self.spec.catalog.models)]
        sim = self.sim
        if model in self.removed and action.kind in ("ask", "load", "unload", "force"):
            return
        match action.kind:
            case "ask":
                rid = f"r{number}"
                self.asked[rid] = Asked(model, sim.now, action.service_s)
                sim.request(rid, model, prompt_tokens=int(action.service_s * 300))
            case "leave":
                waiting = [r for r, a in self.asked.items() if a.model == model and not a.outcomes]
                if waiting:
                    self.asked[waiting[0]].outcomes.append("withdrawn")
                    sim.send(ev.RequestWithdrawn(sim.now, waiting[0]))
            case "unload" | "force":
                self.may_cut.add(model)
                sim.send(ev.UnloadRequested(sim.now, model, force=action.kind == "force"))
            case "load":
                sim.load(f"l{number}", model)
            case "die":
                sim.die(model)
            case "game":
                self.foreign(model, action)
            case "reload":
                self.reload(frozenset([model]))
            case "remove":
                self.removed ^= {model}
                self.reload(frozenset())
            case "blind":
                sim.gpus_known = not sim.gpus_known

    def reload(self, changed: frozenset[str]) -> None:
        """Another configuration: a model changed, or went, or came back."""
        catalog = self.spec.catalog
        models = {m: spec for m, spec in catalog.models.items() if m not in self.removed}
        kept = {n: replace(g, members=tuple(m for m in g.members if m in models)) for n, g in catalog.groups.items()}
        self.sim.send(ev.ConfigReplaced(self.sim.now, Catalog(models, kept, catalog.policy), changed))
        for back in models:
            self.sim.send(ev.FootprintLearned(self.sim.now, back, self.spec.footprints[back], 1.0))

    def foreign(self, model: str, action: Action) -> None:
        """Another program takes or leaves memory, at a moment when nothing is on its way."""
        state = self.scheduler.state
        quiet = not state.plans and state.sample_asked_at is None
        if quiet and all(p.ready and not p.ending for p in self.sim.processes.values()):
            device = next(iter(self.spec.totals))
            free = self.spec.totals[device] - self.sim.used(device) + self.sim.foreign.get(device, 0)
            self.sim.foreign[device] = max(0, min(free, int(action.service_s * 300) * MIB))
            self.disturbed_at = self.sim.now

    def granted(self, rid: str, model: str) -> None:
        if rid not in self.asked:
            return
        asked = self.asked[rid]
        asked.outcomes.append("granted")
        asked.answered_at = self.sim.now
        self.check_wait(rid, asked)
        if (process := self.sim.running_on(rid)) is None or not process.ready or process.ending:
            self.violations.append(f"{rid} was granted on a process that is not serving")
        self.sim.after(asked.service_s, lambda: self.sim.finish(rid, prefill_tps=1000.0))

    def refused(self, rid: str, error: object) -> None:
        if rid in self.asked:
            self.asked[rid].outcomes.append(f"refused {error}")
            self.check_refusal(rid, error)
            self.asked[rid].answered_at = self.sim.now

    # ---- what must hold

    def started(self, model: str) -> None:
        """At every start: what the world holds and will still grow to, plus headroom, fits every device."""
        for device, total in self.spec.totals.items():
            growth = sum(
                p.idle.get(device, 0) + self.spec.engines[p.model].growth_bytes.get(device, 0) - p.held.get(device, 0)
                for p in self.sim.processes.values()
            )
            touched = device in self.spec.footprints[model].need_bytes
            if touched and self.sim.used(device) + growth > total - HEADROOM:
                over = (self.sim.used(device) + growth - total + HEADROOM) // MIB
                self.violations.append(f"start of {model}: {device} is {over} MiB over")

    def cut(self, rid: str) -> None:
        asked = self.asked[rid]
        process = self.sim.running_on(rid)
        if asked.model not in self.may_cut and process is not None and process.ending:
            self.violations.append(f"{rid} on {asked.model} was stopped with a granted lease")

    def check_refusal(self, rid: str, error: object) -> None:
        """Memory is given as the reason only if other programs, lost and protected models really leave too little."""
        if not isinstance(error, MemoryHeldByOthers) or self.sim.now < self.disturbed_at + 60:
            return
        if any(e.unkillable for e in self.spec.engines.values()) or any(self.sim.lingering.values()):
            return
        if self.sim.now < self.sim.gave_back_at + 60:
            return  # memory that came back late looks like a program that left, and what loaded meanwhile like one
        need = self.spec.footprints[self.asked[rid].model].need_bytes
        models = self.spec.catalog.models
        protected = [m for m in self.sim.processes if self.scheduler.state.rules.protects(self.asked[rid].model, m)]
        for device, size in need.items():
            larger = {m: max(w.on(device) for w in (f, *f.larger)) for m, f in self.spec.footprints.items()}
            kept = sum(larger[m] for m in protected)
            if size + kept + self.sim.foreign.get(device, 0) > self.spec.totals[device] - HEADROOM:
                return
        self.violations.append(f"{rid} was refused though memory is there ({len(models)} models): {error}")

    def check_wait(self, rid: str, asked: Asked) -> None:
        spec = self.spec.catalog.models[asked.model]
        if spec.concurrency or self.spec.catalog.policy.queue_timeout_s < 1000:
            return
        slowest = max(e.load_s + e.stop_s + e.release_s for e in self.spec.engines.values())
        rounds = len(self.spec.engines) + 1
        longest = LONGEST_SERVICE_S + self.spec.catalog.policy.drain_s
        bound = self.spec.catalog.policy.max_wait_s + rounds * (slowest * 2 + longest) + 1
        if self.sim.now - asked.at > bound:
            self.violations.append(f"{rid} waited {self.sim.now - asked.at:.1f} s, bound {bound:.1f} s")

    def check_end(self) -> None:
        for rid, asked in self.asked.items():
            if len(asked.outcomes) != 1:
                self.violations.append(f"{rid} for {asked.model} ended {len(asked.outcomes)} times: {asked.outcomes}")
        state = self.scheduler.state
        if state.leases or len(state.line) or state.plans:
            self.violations.append(f"left over: {state.leases}, {list(state.line.waiters)}, {list(state.plans)}")


# ---- making worlds


def sizes(draw: st.DrawFn, devices: list[str], totals: dict[str, int]) -> dict[str, int]:
    used = draw(st.lists(st.sampled_from(devices), max_size=2, unique=True)) if devices else []
    need = {d: draw(st.integers(1, totals[d] // GIB + 1)) * GIB for d in used}
    if draw(st.booleans()) or not need:
        need[RAM] = draw(st.integers(1, 40)) * GIB
    return need


@st.composite
def worlds(draw: st.DrawFn) -> WorldSpec:
    gpus = [f"GPU-{i}" for i in range(draw(st.sampled_from([0, 1, 1, 2, 2, 8])))]
    totals = {d: draw(st.integers(4, 24)) * GIB for d in gpus} | {RAM: 64 * GIB}
    names = [f"m{i}" for i in range(draw(st.integers(1, 6)))]
    models, engines, footprints = {}, {}, {}
    for name in names:
        models[name] = ModelSpec(
            name,
            priority=draw(st.sampled_from([0, 0, 0, 1])),
            concurrency=draw(st.sampled_from([0, 0, 1, 2])),
            idle_timeout_s=draw(st.sampled_from([0.0, 0.0, 3.0])),
            linger=draw(st.sampled_from(["auto", "auto", 0.0, 2.0])),
            on_conflict=draw(st.sampled_from(["swap", "swap", "swap", "refuse"])),
            persistent=draw(st.sampled_from([False, False, False, True])),
        )
        need = sizes(draw, gpus, totals)
        growth = dict.fromkeys(need, 128 * MIB)
        alone = frozenset(d for d in need if d != RAM) if draw(st.integers(0, 9)) == 0 else frozenset()
        steps = sorted(draw(st.lists(st.integers(1, 6), max_size=3, unique=True)), reverse=True)
        bigger = {("--pool", f"{n}GiB"): {d: size + n * GIB for d, size in need.items() if d != RAM} for n in steps}
        larger = tuple(Footprint(need | more, growth, args=args) for args, more in bigger.items() if not alone)
        footprints[name] = Footprint(need, growth, alone, larger=larger)
        slack = draw(st.sampled_from([0, 0, 200])) * MIB
        engines[name] = Engine(
            load_s=draw(st.sampled_from([0.05, 1.0, 5.0])),
            stop_s=draw(st.sampled_from([0.05, 0.3, 2.0])),
            release_s=draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])),
            idle_bytes={d: n - growth[d] - slack for d, n in need.items()},
            growth_bytes=growth,
            outcomes=deque(draw(st.lists(st.sampled_from(["ok", "ok", "ok", "exit", "out_of_memory"]), max_size=4))),
            unkillable=draw(st.integers(0, 39)) == 0,
            idle_by_args={way.args: {d: n - growth[d] - slack for d, n in way.need_bytes.items()} for way in larger},
        )
    shuffled = draw(st.permutations(names))
    cuts = sorted({draw(st.integers(0, len(names))), draw(st.integers(0, len(names)))})
    groups = {}
    for i, (a, b) in enumerate(zip([0, *cuts], cuts, strict=False)):
        if b - a:
            flags = [draw(st.booleans()) for _ in range(3)]
            groups[f"g{i}"] = Group(f"g{i}", tuple(shuffled[a:b]), flags[0], flags[1], flags[2] and draw(st.booleans()))
    policy = Policy(
        max_wait_s=draw(st.sampled_from([0.0, 5.0, 20.0])),
        min_residency_s=draw(st.sampled_from([0.0, 0.0, 4.0])),
        queue_limit=draw(st.sampled_from([4096, 4096, 3])),
        queue_timeout_s=draw(st.sampled_from([3600.0, 3600.0, 30.0])),
        ungrouped=draw(st.sampled_from(["headroom", "headroom", "swap"])),
        drain_s=draw(st.sampled_from([0.0, 4.0])),
        sample_interval_s=20.0,
        vram_headroom_bytes=HEADROOM,
        ram_headroom_bytes=HEADROOM,
    )
    kinds = ["ask"] * 12 + ["leave", "leave", "unload", "force", "load", "die", "game", "blind", "reload", "remove"]
    actions = draw(
        st.lists(
            st.builds(
                Action,
                delay_s=st.sampled_from([0.0, 0.0, 0.05, 0.4, 2.5, 7.0]),
                kind=st.sampled_from(kinds),
                model=st.integers(0, 5),
                service_s=st.sampled_from([0.05, 0.5, 3.0, LONGEST_SERVICE_S]),
            ),
            min_size=1,
            max_size=40,
        )
    )
    return WorldSpec(Catalog(models, groups, policy), engines, footprints, totals, actions, draw(st.booleans()))

"""What the scheduler remembers of each model, waiter and commitment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from swapd.core.lifecycle import InstanceState, Step, advance
from swapd.core.linger import GAPS_KEPT, hold_s
from swapd.core.spec import DeviceId, Footprint, ModelId, ModelSpec, Policy
from swapd.errors import SwapdError

FAILURES_BEFORE_BACKOFF: Final = 3
LONG_PROMPT_TOKENS: Final = 512
"""A batch of more than one ubatch: after it a llama-server has grown as far as it will."""


WaiterKind: TypeAlias = Literal["request", "load", "preload"]
"""A request gets a lease; an operator's load only has its model loaded; a preload never evicts."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request (or an operator's load) that waits; ``seq`` is its place by age."""

    rid: str
    record: Record
    arrived_at: float
    seq: int
    prompt_tokens: int = 0
    kind: WaiterKind = "request"
    generation: int = 0


@dataclass(slots=True, eq=False)
class Plan:
    """A commitment: ``victims`` go, and their memory is the target's alone.

    ``since``: only a device sample taken later may start the target.
    """

    target: Record
    head: Waiter
    victims: list[Record]
    since: float
    reason: str


@dataclass(slots=True, eq=False)
class Record:
    """One model's life, as the scheduler knows it; times in monotonic seconds.

    ``id``, ``priority`` and ``needs`` repeat ``spec`` and ``footprint`` for the scan of a thousand heads.
    """

    spec: ModelSpec
    footprint: Footprint = field(default_factory=Footprint)
    needs: tuple[tuple[DeviceId, int], ...] = ()
    id: ModelId = ""
    priority: int = 0
    load_s: float = 0.0
    state: InstanceState = InstanceState.STOPPED
    state_since: float = 0.0
    started_at: float = 0.0
    ready_at: float = 0.0
    generation: int = 0
    queue: dict[str, Waiter] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    plan: Plan | None = None
    claimed_by: Plan | None = None
    drain_until: float | None = None
    idle_since: float | None = None
    last_answer_at: float | None = None
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_KEPT))
    live_tokens: int = 0
    prefill_tps: float = 0.0
    worked: bool = False
    failures: int = 0
    retry_at: float | None = None
    oom_retried: bool = False
    last_error: SwapdError | None = None
    reason: str | None = None
    waits_for: str | None = None
    warning: str = ""
    progress: float | None = None
    stage: str = ""
    loads: int = 0

    def __post_init__(self) -> None:
        self.id, self.priority = self.spec.id, self.spec.priority

    def respec(self, spec: ModelSpec) -> None:
        """The operator declared it anew."""
        self.spec, self.priority = spec, spec.priority

    def size(self, footprint: Footprint) -> None:
        """What the next load is expected to take; told by ``Line.resize`` alone, where heads stand by their size."""
        self.footprint = footprint
        ways = (footprint, *footprint.larger)
        self.needs = tuple((d, min(way.on(d) for way in ways)) for d in footprint.need_bytes)

    def step(self, step: Step, now: float, reason: str | None) -> None:
        """Take one row of the transition table."""
        self.state = advance(self.state, step)
        self.state_since, self.reason, self.waits_for = now, reason, None
        self.progress = None

    def bring_back_s(self) -> float:
        """What evicting it costs: its load, and reading its largest live conversation again."""
        reread = self.live_tokens / self.prefill_tps if self.prefill_tps > 0 else 0.0
        return self.load_s + reread

    def held_until(self, policy: Policy) -> float:
        """Until when an idle model is kept from conflicting requests of the same priority."""
        assert self.idle_since is not None
        until = self.ready_at + min(policy.min_residency_s, policy.max_wait_s) if policy.min_residency_s else 0.0
        if self.last_answer_at == self.idle_since:
            until = max(until, self.idle_since + hold_s(self.spec.linger, self.gaps_s, self.bring_back_s()))
        return until

    def note_arrival(self, now: float, prompt_tokens: int) -> None:
        """Learn the gap since the last answer, if nothing else ran or waited in between."""
        if self.last_answer_at is not None and not self.leases and not self.queue:
            self.gaps_s.append(now - self.last_answer_at)
            self.last_answer_at = None
        self.live_tokens = max(self.live_tokens, prompt_tokens)

    def has_room(self) -> bool:
        """Whether one more request may be forwarded now."""
        return self.spec.concurrency == 0 or len(self.leases) < self.spec.concurrency

    def failed(self, error: SwapdError, now: float, backoff_s: tuple[float, float]) -> None:
        """Keep the error; from the third in a row on, pause."""
        self.last_error = error
        self.failures += 1
        extra = self.failures - FAILURES_BEFORE_BACKOFF
        if extra >= 0:
            first, last = backoff_s
            self.retry_at = now + min(last, first * 2 ** min(extra, 30))

    def forgive(self) -> None:
        """A success, or an operator's load, ends the backoff."""
        self.failures, self.retry_at = 0, None

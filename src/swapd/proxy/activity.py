"""Requests for models, while they run and as they end: counted, timed, remembered, and cancelled by an operator."""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

import structlog
from prometheus_client.core import Metric

from swapd.core.activity import EndedRequest, Outcome
from swapd.core.naming import shown
from swapd.core.spec import ModelId
from swapd.errors import Cancelled, SwapdError
from swapd.proxy.answer import Answer
from swapd.proxy.asgi import HEADERS, RID
from swapd.proxy.exchange import CLIENT_GONE, Exchange, Phase
from swapd.proxy.histograms import RequestMetrics
from swapd.proxy.request import Trace
from swapd.proxy.tail import NOTHING_TOLD, told_by
from swapd.supervisor.pool import Supervisor
from swapd.supervisor.ports import ActivityLog

ANSWERS_KEPT: Final = 20
"""So many answers of a model make its speed."""
DONE_KEPT: Final = 256
DONE_S: Final = 1.0
"""So many that ended (9 KiB each at most) are digested at once, or those there are after so long."""
_STATES: Final = {Phase.WAITING: "queued", Phase.ASKED: "prefill"}
"""What a request does that is not there: it answers, or its client still takes the answer."""

log = structlog.get_logger(__name__)


class NoLog:
    """An ``ActivityLog`` that keeps nothing."""

    def record(self, ended: EndedRequest) -> None:
        """Forget it."""

    async def recent(self, *, limit: int, model: str = "", since: float = 0.0) -> Sequence[EndedRequest]:
        """None."""
        return ()


class _Done(NamedTuple):
    """A request that ended, as it is kept until somebody has time for it."""

    trace: Trace
    status: int
    phase: Phase
    at: float


class Activities:
    """Implements ``exchange.Observer``; owner of all that is known of requests. ``close`` it before its ``log``.

    What an answer's ends tell is read a little later and many at once: that costs less than half.
    """

    def __init__(self, supervisor: Supervisor, log: ActivityLog | None = None) -> None:
        self._log: ActivityLog = NoLog() if log is None else log
        self._supervisor, self._metrics = supervisor, RequestMetrics()
        self._running: dict[str, Exchange] = {}
        self._done: list[_Done] = []
        self._timer: asyncio.TimerHandle | None = None
        self._answers: dict[ModelId, deque[EndedRequest]] = {}
        self._counts: Tally[ModelId] = Tally()

    # for the relay

    def began(self, exchange: Exchange) -> None:
        """A request asks for its model."""
        self._running[exchange.trace.rid] = exchange

    def ended(self, exchange: Exchange) -> None:
        """It ended, somehow."""
        trace, done = exchange.trace, self._done
        self._running.pop(trace.rid, None)
        done.append(_Done(trace, exchange.answer.status or CLIENT_GONE, exchange.phase, time.monotonic()))
        if len(done) >= DONE_KEPT:
            self._digest()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DONE_S, self._digest)

    def _digest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, []
        now, wall = time.monotonic(), time.time()
        for one in done:
            try:
                row = row_of(*one, wall - now)
            except Exception:
                log.exception("the request is not remembered", rid=one.trace.rid)
                continue
            self._metrics.count(row.model, row.status)
            if not one.trace.look_up:
                self._note(row)

    def _note(self, row: EndedRequest) -> None:
        self._metrics.took(row)
        self._log.record(row)
        if row.completion_tokens is not None and row.outcome == "ok":
            self._counts[row.model] += 1
            answers = self._answers.get(row.model)
            if answers is None:
                answers = self._answers[row.model] = deque(maxlen=ANSWERS_KEPT)
            answers.append(row)

    def looked_up(self, model: ModelId, status: int) -> None:
        """A look-up that swapd answered itself."""
        self._metrics.count(model, status)

    def refused(self, answer: Answer, error: SwapdError) -> None:
        """A request that came to no model."""
        scope, status = answer.scope, answer.status
        self._metrics.count("", status)
        client = client_of(scope[HEADERS].get(b"user-agent", b""), _host(scope.get("client")))
        row = EndedRequest(
            scope[RID], round(time.time(), 3), "", shown(answer.asked), client, shown(scope["path"]),
            stream=False, status=status, outcome="error", error=error.code, total_s=0.0,
        )  # fmt: skip
        self._digest()  # those that ended before
        self._log.record(row)

    def close(self) -> None:
        """Hand the last rows to the log."""
        self._digest()

    # for operators

    def collect(self) -> Iterable[Metric]:
        """What ``/metrics`` shows of requests that ended."""
        self._digest()
        return self._metrics.collect()

    async def recent(self, *, limit: int, model: str = "", since: float = 0.0) -> Sequence[EndedRequest]:
        """As ``ActivityLog.recent``."""
        self._digest()
        return await self._log.recent(limit=limit, model=model, since=since)

    def cancel(self, rid: str) -> bool:
        """End a request with ``Cancelled``; False if none of that id runs."""
        exchange = self._running.get(rid)
        if exchange is None:
            return False
        exchange.cancel(Cancelled("this request was cancelled by an operator"))
        return True

    def running(self, model: ModelId = "") -> list[dict[str, Any]]:
        """The requests under way, oldest first; JSON-ready."""
        wall, now = time.time(), time.monotonic()
        ours = self._supervisor.models()
        rows = []
        for exchange in self._running.values():
            trace, state = exchange.trace, _STATES.get(exchange.phase, "answering")
            if model and trace.model != model:
                continue
            if state == "queued" and trace.model in ours and self._supervisor.state_of(trace.model) == "starting":
                state = "loading"
            age_s = now - trace.began
            facts = {"rid": trace.rid, "at": round(wall - age_s, 3), "model": trace.model}
            rows.append(facts | _who(trace)._asdict() | {"state": state, "age_s": round(age_s, 3)})
        return rows

    def speeds(self) -> dict[ModelId, dict[str, Any]]:
        """By model: answers since swapd's start, and of the last few the rates that the engine told; JSON-ready."""
        self._digest()
        return {model: {"answers": self._counts[model], **_speed(rows)} for model, rows in self._answers.items()}


def row_of(trace: Trace, status: int, phase: Phase, ended: float, epoch: float) -> EndedRequest:
    """What is kept of a request; ``epoch``: the wall clock's seconds when the monotonic clock was 0."""
    outcome, error = _outcome(trace.error, phase, status)
    first_s = trace.first_at - trace.began if trace.first_at else None
    who: tuple[Any, ...] = _who(trace)
    told: tuple[Any, ...] = told_by(trace.front, trace.tail) if trace.tail else NOTHING_TOLD
    return EndedRequest(  # type: ignore[call-arg] # mypy counts the stars as endless
        trace.rid,
        round(epoch + trace.began, 3),
        trace.model,
        *who,
        status,
        outcome,
        error,
        ended - trace.began,
        trace.waited_s - trace.load_s,
        trace.load_s,
        first_s,
        *told,
    )


def _outcome(error: SwapdError | None, phase: Phase, status: int) -> tuple[Outcome, str | None]:
    if error is not None:
        return "cancelled" if isinstance(error, Cancelled) else "error", error.code
    if phase is Phase.GONE:
        return "hung_up", None
    return ("error", "engine") if status >= 400 else ("ok", None)


class _Who(NamedTuple):
    asked: str
    client: str
    path: str
    stream: bool


def _who(trace: Trace) -> _Who:
    path = trace.target.partition(b"?")[0][:200].decode("latin-1")
    return _Who(shown(trace.asked) or trace.model, client_of(trace.agent, _host(trace.peer)), path, trace.stream)


def _host(peer: tuple[str, int] | None) -> str:
    return peer[0] if peer else ""


@lru_cache(maxsize=256)
def client_of(agent: bytes, host: str) -> str:
    """A client as it is shown: the first product of its User-Agent, and whether it is here, near or far."""
    product = "".join(c for c in agent[:64].decode("latin-1").partition(" ")[0] if c.isprintable())
    try:
        address = ip_address(host)
    except ValueError:
        where = "local"  # a unix socket
    else:
        where = "local" if address.is_loopback else "private" if address.is_private else "public"
    return f"{product or '?'} ({where})"


def _speed(rows: Sequence[EndedRequest]) -> dict[str, Any]:
    read = [(r.prompt_tokens - (r.cached_tokens or 0), r.prefill_s) for r in rows if r.prompt_tokens is not None]
    written = [(r.completion_tokens / r.decode_tps, r.completion_tokens) for r in rows
               if r.decode_tps and r.completion_tokens]  # fmt: skip
    prompts = [(r.cached_tokens, r.prompt_tokens) for r in rows if r.cached_tokens is not None and r.prompt_tokens]
    drafts = [(r.draft_accepted, r.draft_tokens) for r in rows if r.draft_accepted is not None and r.draft_tokens]
    first = sorted(r.first_byte_s for r in rows if r.stream and r.first_byte_s is not None)
    return {
        "prefill_tps": _ratio([(n, s) for n, s in read if s], 1),
        "decode_tps": _ratio([(n, s) for s, n in written], 1),
        "cached": _ratio(prompts, 3),
        "draft_accepted": _ratio(drafts, 3),
        "first_byte_s": first[len(first) // 2] if first else None,
    }


def _ratio(pairs: Sequence[tuple[float | None, float | None]], digits: int) -> float | None:
    below = sum(b or 0 for _, b in pairs)
    return round(sum(a or 0 for a, _ in pairs) / below, digits) if below else None

"""What ``/metrics`` tells of requests that ended: times, tokens and rates by model, named after OpenTelemetry's GenAI
conventions where those have a name."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from swapd.core.activity import EndedRequest
from swapd.core.spec import ModelId

_DURATIONS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
                     163.84, 327.68, 655.36)  # fmt: skip
_FIRST_TOKEN: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                       20.0, 40.0, 80.0, 160.0, 320.0)  # fmt: skip
_PER_TOKEN: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(4.0**power for power in range(11))
_WAITS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1800.0)


class Histogram:
    """One metric of all models: an observation is a bisection and two additions."""

    def __init__(self, name: str, what: str, bounds: Sequence[float], labels: Sequence[str] = ("model",)) -> None:
        self._name, self._what, self._bounds, self._labels = name, what, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Metric:
        """As Prometheus has it: each bucket counts the smaller ones too."""
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        names = [*map(str, self._bounds), "+Inf"]
        for labels, counts in sorted(self._counts.items()):
            family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), self._sums[labels])
        return family


class RequestMetrics:
    """Everything of requests that ended."""

    def __init__(self) -> None:
        self._counts: Tally[tuple[ModelId, int]] = Tally()
        self._total = Histogram(
            "gen_ai_server_request_duration_seconds", "From a request's arrival to its last byte", _DURATIONS
        )
        self._first = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the arrival of a request for a stream to its first byte: queue and load included",
            _FIRST_TOKEN,
        )
        self._per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds", "As the engine tells in its timings", _PER_TOKEN
        )
        self._tokens = Histogram(
            "gen_ai_client_token_usage", "Tokens of a request, by type", _TOKENS, ("model", "token_type")
        )
        self._queue = Histogram("swapd_request_queue_seconds", "Waiting, but for the model's load", _WAITS)
        self._load = Histogram(
            "swapd_request_load_seconds", "Waiting for the model's load, where there was one", _WAITS
        )
        self._totals: dict[str, Tally[ModelId]] = {name: Tally() for name in _COUNTERS}

    def count(self, model: ModelId, status: int) -> None:
        """One ended; ``status`` 499: the client hung up first."""
        self._counts[model, status] += 1

    def took(self, row: EndedRequest) -> None:
        """Its times and tokens."""
        model, totals = row.model, self._totals
        self._total.observe(row.total_s, model)
        self._queue.observe(row.queue_s, model)
        if row.load_s:
            self._load.observe(row.load_s, model)
        if row.stream and row.first_byte_s is not None and row.status == 200:
            self._first.observe(row.first_byte_s, model)
        if row.decode_tps:
            self._per_token.observe(1 / row.decode_tps, model)
        if row.prompt_tokens is not None:
            self._tokens.observe(row.prompt_tokens, model, "input")
            totals["swapd_prompt_tokens"][model] += row.prompt_tokens
        if row.completion_tokens is not None:
            self._tokens.observe(row.completion_tokens, model, "output")
            totals["swapd_generation_tokens"][model] += row.completion_tokens
        if row.cached_tokens:
            totals["swapd_prompt_tokens_cached"][model] += row.cached_tokens
        if row.draft_tokens:
            totals["swapd_draft_tokens"][model] += row.draft_tokens
            totals["swapd_draft_tokens_accepted"][model] += row.draft_accepted or 0

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        requests = CounterMetricFamily(
            "swapd_requests", "Requests ended, by model and status", labels=["model", "status"]
        )
        for (model, status), count in sorted(self._counts.items()):
            requests.add_metric([model, str(status)], count)
        yield requests
        for histogram in (self._total, self._first, self._per_token, self._tokens, self._queue, self._load):
            yield histogram.collect()
        for name, what in _COUNTERS.items():
            family = CounterMetricFamily(name, what, labels=["model"])
            for model, count in sorted(self._totals[name].items()):
                family.add_metric([model], count)
            yield family


_COUNTERS: Final = {
    "swapd_prompt_tokens": "Prompt tokens, cached ones included",
    "swapd_prompt_tokens_cached": "Prompt tokens that the engine had in its cache",
    "swapd_generation_tokens": "Tokens that models wrote",
    "swapd_draft_tokens": "Tokens that a draft proposed",
    "swapd_draft_tokens_accepted": "Proposed tokens that the model took",
}

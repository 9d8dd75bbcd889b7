"""``GET /metrics``: built at scrape time, from the supervisor's view and what is known of requests that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from swapd.proxy.asgi import Receive, Scope, Send, respond
from swapd.supervisor.pool import Supervisor
from swapd.units import MIB

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A registry of our own: nothing else of the process is shown."""

    def __init__(self, supervisor: Supervisor, requests: Callable[[], Iterable[Metric]]) -> None:
        self._supervisor, self._requests = supervisor, requests
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def scrape(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Prometheus' text format."""
        await respond(send, 200, generate_latest(self._registry), [(b"content-type", CONTENT_TYPE)])

    def collect(self) -> Iterable[Metric]:
        """For ``prometheus_client`` alone."""
        status = self._supervisor.status()
        yield from self._requests()
        yield from _device_gauges(status)
        yield from _model_metrics(status["models"])


def _device_gauges(status: Mapping[str, Any]) -> Iterable[Metric]:
    yield _gauge(
        "swapd_devices_known", "1 while the devices can be read", [], [([], float(bool(status.get("known", True))))]
    )
    devices: Sequence[Mapping[str, Any]] = status["devices"]
    for word in ("total", "free", "headroom"):
        rows = [([d["id"], d.get("name", "")], d[f"{word}_mib"] * MIB) for d in devices if d[f"{word}_mib"] is not None]
        yield _gauge(f"swapd_vram_{word}_bytes", f"VRAM: {word}", ["device", "name"], rows)
    readable = [d for d in devices if d["free_mib"] is not None]
    used = [([d["id"], d.get("name", "")], (d["total_mib"] - d["free_mib"]) * MIB) for d in readable]
    yield _gauge("swapd_vram_used_bytes", "VRAM: used, by whomever", ["device", "name"], used)
    ram: Mapping[str, Any] = status["ram"]
    for word in ("total", "available", "headroom"):
        rows = [([], ram[f"{word}_mib"] * MIB)] if ram[f"{word}_mib"] is not None else []
        yield _gauge(f"swapd_ram_{word}_bytes", f"RAM: {word}", [], rows)


def _model_metrics(models: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    states = [([m["id"], m["state"]], 1.0) for m in models]
    yield _gauge("swapd_model_state", "1 for the state a model is in", ["model", "state"], states)
    for field, what in (("active", "Requests being served"), ("queued", "Requests waiting")):
        yield _gauge(f"swapd_model_{field}_requests", what, ["model"], [([m["id"]], m[field]) for m in models])
    loads = CounterMetricFamily("swapd_model_loads", "Loads so far", labels=["model"])
    for model in models:
        loads.add_metric([model["id"]], model["loads"])
    yield loads
    seconds = [([m["id"]], m["load_s"]) for m in models if m.get("load_s") is not None]
    yield _gauge("swapd_model_load_seconds", "Duration of the last load", ["model"], seconds)
    reserved = [([m["id"], device], size * MIB) for m in models for device, size in m.get("reserved_mib", {}).items()]
    yield _gauge("swapd_model_reserved_bytes", "Memory admission counts for a model", ["model", "device"], reserved)
    errors = [([m["id"], d], size * MIB) for m in models for d, size in m.get("prediction_error_mib", {}).items()]
    what = "Memory the last load took beyond its prediction"
    yield _gauge("swapd_model_prediction_error_bytes", what, ["model", "device"], errors)


def _gauge(name: str, what: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
    gauge = GaugeMetricFamily(name, what, labels=labels)
    for values, value in rows:
        gauge.add_metric(values, value)
    return gauge

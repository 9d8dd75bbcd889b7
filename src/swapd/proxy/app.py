"""The app factory: guard around router around the model routes; FastAPI below ``/api`` only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast

from swapd.core.naming import Names
from swapd.core.spec import ModelId, RouteSpec
from swapd.proxy.activity import Activities
from swapd.proxy.asgi import App, Endpoint, MadeWhenAsked
from swapd.proxy.captures import Captures
from swapd.proxy.compat.llama_swap import LlamaSwap
from swapd.proxy.compat.ollama import Ollama
from swapd.proxy.compat.router import LlamaRouter
from swapd.proxy.directory import Directory
from swapd.proxy.exchange import Relay
from swapd.proxy.forward import Forwarder
from swapd.proxy.guard import Guard
from swapd.proxy.listing import Listing
from swapd.proxy.metrics import Metrics
from swapd.proxy.peers import Peers
from swapd.proxy.routes import (
    ANY_METHOD,
    LOOKED_UP,
    MODEL_ROUTED,
    MODEL_ROUTED_PREFIXES,
    Methods,
    Probes,
    Router,
    is_get,
)
from swapd.proxy.settings import ProxySettings
from swapd.proxy.upstream import Pool
from swapd.supervisor.pool import Supervisor


def build_app(
    supervisor: Supervisor,
    routes: Mapping[ModelId, RouteSpec],
    settings: ProxySettings,
    directory: Directory | None = None,
    activities: Activities | None = None,
) -> Guard:
    """The whole ASGI app; it registers the hook that closes a stopping process's connections.

    ``directory`` None: ids are the only names. Whoever made one runs its ``peers.watch``.
    ``activities`` None: requests that ended are not kept.
    """
    if directory is None:
        unlisted = frozenset(id_ for id_, route in routes.items() if route.unlisted)
        directory = Directory(Names(tuple(routes), unlisted=unlisted), routes, supervisor, Peers({}))
    pool = Pool()
    supervisor.add_retire_listener(pool.retire)
    activities = activities or Activities(supervisor)
    metrics = Metrics(supervisor, activities.collect)
    probes, listing = Probes(supervisor), Listing(supervisor, directory)
    captures = Captures() if settings.capture and settings.admin_keys else None
    forwarder = Forwarder(Relay(supervisor, pool, settings, activities), directory, listing, captures)

    started = time.monotonic()

    def make_api() -> App:
        from swapd.proxy.admin import build_api
        from swapd.proxy.admin_activity import add_activity

        api = build_api(supervisor, directory, settings, activities.speeds, started)
        add_activity(api, activities, captures, settings)
        return cast(App, api)

    api = MadeWhenAsked(make_api)

    exact: dict[str, Methods] = {path: {"POST": forwarder.by_body} for path in MODEL_ROUTED}
    for path in LOOKED_UP:
        exact[path] = {**exact[path], **is_get(forwarder.by_query)}
    exact |= {
        "/": is_get(probes.root),
        "/health": is_get(probes.health),
        "/ready": is_get(probes.ready),
        "/metrics": is_get(metrics.scrape),
        "/models": is_get(listing.all),
        "/v1/models": is_get(listing.all),
    }
    llama_swap, ollama = LlamaSwap(supervisor, directory), Ollama(supervisor, directory, settings)
    llama_router = LlamaRouter(supervisor, directory, settings)
    exact |= {
        "/running": is_get(llama_swap.running),
        "/unload": {"GET": llama_swap.unload},
        "/logs": is_get(llama_swap.logs),
        "/logs/stream": {"GET": llama_swap.logs_stream},
        "/api/models/unload": {"POST": llama_swap.unload_all},
        "/models/load": {"POST": llama_router.load},
        "/models/unload": {"POST": llama_router.unload},
        "/api/tags": is_get(ollama.tags),
        "/api/ps": is_get(ollama.ps),
        "/api/version": is_get(ollama.version),
        "/api/show": {"POST": ollama.show},
    }
    prefixes: dict[str, Methods] = {prefix: {"POST": forwarder.by_body} for prefix in MODEL_ROUTED_PREFIXES}
    prefixes |= {
        "/v1/models/": is_get(listing.one),
        "/upstream/": dict.fromkeys(ANY_METHOD, forwarder.by_path),
        "/logs/stream/": {"GET": llama_swap.logs_stream},
        "/api/models/unload/": {"POST": llama_swap.unload_one},
        "/api/": dict.fromkeys(ANY_METHOD, cast(Endpoint, api)),
    }
    return Guard(Router(exact, prefixes), settings)

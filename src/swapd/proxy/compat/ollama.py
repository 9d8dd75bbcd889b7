"""Ollama's read-only routes, with its field names: what its clients list models and read capabilities by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from swapd.core.spec import RouteSpec
from swapd.errors import BadRequest, SwapdError, UnknownModel
from swapd.proxy.asgi import Receive, Scope, Send, respond
from swapd.proxy.bodies import HungUp, Spool, read_body
from swapd.proxy.directory import Directory
from swapd.proxy.listing import capabilities
from swapd.proxy.settings import ProxySettings
from swapd.proxy.statuses import error_headers, status_of
from swapd.supervisor.pool import Supervisor
from swapd.units import MIB

OLLAMA_VERSION: Final = "0.13.0"
"""The version whose answers these are; clients refuse one they think too old."""
_NEVER: Final = timedelta(days=36500)
_LATEST: Final = ":latest"


class Ollama:
    """``/api/tags``, ``/api/ps``, ``/api/version`` and ``/api/show``."""

    def __init__(self, supervisor: Supervisor, directory: Directory, settings: ProxySettings) -> None:
        self._supervisor, self._directory, self._settings = supervisor, directory, settings

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ollama's: the version."""
        await _answer(send, {"version": OLLAMA_VERSION})

    async def tags(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ollama's: every model, loaded or not."""
        await _answer(
            send, {"models": [_listed(route) for route in self._directory.routes.values() if not route.unlisted]}
        )

    async def ps(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ollama's: the loaded ones, what they hold and until when."""
        rows = {row["id"]: row for row in self._supervisor.status()["models"]}
        loaded = [
            r for r in self._directory.routes.values() if rows.get(r.id, {}).get("state") in ("ready", "draining")
        ]
        await _answer(send, {"models": [self._running(route, rows[route.id]) for route in loaded]})

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ollama's: what is known of one model."""
        try:
            route = self._route(_wanted(await read_body(scope, receive, self._settings)))
        except SwapdError as error:
            body = json.dumps({"error": error.message}).encode()
            await respond(send, status_of(error), body, error_headers(error))
        except HungUp:
            return
        else:
            await _answer(send, _shown(route, self._supervisor.n_ctx(route.id) or route.ctx_tokens))

    def _route(self, name: str) -> RouteSpec:
        try:
            return self._directory.local(name)
        except UnknownModel:
            return self._directory.local(name.removesuffix(_LATEST))

    def _running(self, route: RouteSpec, row: dict[str, Any]) -> dict[str, Any]:
        held = row.get("measured_mib") or row.get("reserved_mib") or {}
        vram_bytes = sum(held.values()) * MIB
        left = timedelta(seconds=route.idle_timeout_s - (row.get("idle_s") or 0.0)) if route.idle_timeout_s else _NEVER
        return {
            **_listed(route),
            "size": vram_bytes + row.get("ram_mib", 0) * MIB,
            "size_vram": vram_bytes,
            "expires_at": (datetime.now(UTC) + left).isoformat(),
            "context_length": self._supervisor.n_ctx(route.id) or route.ctx_tokens,
        }


async def _answer(send: Send, value: object) -> None:
    await respond(send, 200, json.dumps(value).encode())


def _wanted(body: bytes | Spool) -> str:
    """The model that ``/api/show`` asks for: ``model``, or the older ``name``."""
    if isinstance(body, Spool):
        body.close()
        raise BadRequest("the body is no JSON with a model")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON that can be read: {error}") from error
    name = parsed.get("model") or parsed.get("name") if isinstance(parsed, dict) else None
    if not isinstance(name, str):
        raise BadRequest("model is required")
    return name


def _listed(route: RouteSpec) -> dict[str, Any]:
    facts = route.facts
    identity = f"{facts.path}\0{facts.size_bytes}\0{facts.modified_at_s}\0{route.id}"
    return {
        "name": route.id,
        "model": route.id,
        "modified_at": datetime.fromtimestamp(facts.modified_at_s, UTC).isoformat(),
        "size": facts.size_bytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(route),
    }


def _details(route: RouteSpec) -> dict[str, Any]:
    facts = route.facts
    return {
        "parent_model": "",
        "format": "gguf" if facts.path else "",
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else [],
        "parameter_size": human_count(facts.parameters),
        "quantization_level": facts.quantization,
    }


def _shown(route: RouteSpec, ctx_tokens: int) -> dict[str, Any]:
    """``context_length`` of ``model_info`` is what a request can have here, not what the model was trained for."""
    facts = route.facts
    info: dict[str, Any] = {**facts.header, "general.parameter_count": facts.parameters}
    if facts.architecture and ctx_tokens:
        info[f"{facts.architecture}.context_length"] = ctx_tokens
    return {
        "license": str(facts.header.get("general.license", "")),
        "modelfile": "\n".join(_modelfile(route, ctx_tokens)),
        "parameters": f"num_ctx {ctx_tokens}" if ctx_tokens else "",
        "template": facts.chat_template,
        "details": _details(route),
        "model_info": info,
        "capabilities": capabilities(facts) if facts.architecture else ["completion"],
        "modified_at": datetime.fromtimestamp(facts.modified_at_s, UTC).isoformat(),
    }


def _modelfile(route: RouteSpec, ctx_tokens: int) -> Iterable[str]:
    yield f"FROM {route.facts.path or route.id}"
    if ctx_tokens:
        yield f"PARAMETER num_ctx {ctx_tokens}"


def human_count(count: int) -> str:
    """As Ollama writes it: 134.52M, 8.0B; empty if not known."""
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M" if count >= 1_000_000 else str(count or "")

"""``GET /v1/models`` and what a stopped model tells of itself: configuration and header, never the model itself."""

from __future__ import annotations

import json
import time
from typing import Any, Final
from urllib.parse import unquote

from swapd import __version__
from swapd.core.naming import Selector
from swapd.core.spec import ModelFacts, RouteSpec
from swapd.errors import UnknownModel
from swapd.proxy.asgi import Receive, Scope, Send, respond
from swapd.proxy.directory import Directory
from swapd.proxy.statuses import refuse
from swapd.supervisor.pool import Supervisor

_WORDS: Final = {"ready": "loaded", "draining": "loaded", "starting": "loading"}


class Listing:
    """Answers from configuration and the supervisor's view."""

    def __init__(self, supervisor: Supervisor, directory: Directory) -> None:
        self._supervisor, self._directory = supervisor, directory
        self._created = int(time.time())

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every model, variant and selector, loaded or not; loads none."""
        await respond(send, 200, json.dumps({"object": "list", "data": self._entries()}).encode())

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What one name means; slashes in it may be raw or encoded."""
        raw: bytes = scope["raw_path"]
        try:
            entry = self._named(unquote(raw.removeprefix(b"/v1/models/").decode("latin-1")))
        except UnknownModel as error:
            await refuse(scope, send, error)
        else:
            await respond(send, 200, json.dumps(entry).encode())

    def look_up(self, path: str, route: RouteSpec) -> bytes | None:
        """The answer of a model that does not run; None if only a running one knows."""
        if path in ("/models", "/v1/models"):
            return json.dumps({"object": "list", "data": [self._entry(route)]}).encode()
        if path == "/props" and (route.ctx_tokens or route.facts.architecture):
            return json.dumps(_props(route)).encode()
        if path == "/lora-adapters" and route.facts.path:
            adapters = enumerate(route.facts.adapters)
            return json.dumps([{"id": number, "path": file, "scale": 1.0} for number, file in adapters]).encode()
        return None

    def _entries(self) -> list[dict[str, Any]]:
        """Ids, variants and selectors in file order, then what peers have."""
        directory = self._directory
        names, routes = directory.names, directory.routes
        entries = [self._entry(route) for route in routes.values() if not route.unlisted]
        entries += [self._variant(name) for name, model in names.variants.items() if not routes[model].unlisted]
        entries += [self._selector(selector) for selector in names.selectors.values()]
        return entries + [self._at_peer(*row) for row in directory.peers_listed()]

    def _named(self, name: str) -> dict[str, Any]:
        """The entry of what a name means; a model's own id is that model, whatever a profile says."""
        directory = self._directory
        if name not in directory.routes:
            meaning = directory.meaning(name or "/")
            if meaning.peer:
                return self._at_peer(name, meaning.peer, meaning.model)
            if meaning.selector is not None:
                return self._selector(meaning.selector)
            if meaning.variant:
                return self._variant(meaning.variant)
            name = meaning.model
        return self._entry(directory.routes[name])

    def _variant(self, name: str) -> dict[str, Any]:
        """As its model's, which runs for it."""
        model = self._directory.names.variants[name]
        return self._entry(self._directory.routes[model]) | {
            "id": name,
            "display_name": name,
            "aliases": [],
            "variant_of": model,
        }

    def _selector(self, selector: Selector) -> dict[str, Any]:
        """As the target's that a request would get now."""
        entry = self._entry(self._directory.routes[self._directory.chosen(selector)])
        own = {"id": selector.id, "display_name": selector.id, "aliases": [], "targets": list(selector.targets)}
        return entry | own

    def _at_peer(self, shown: str, peer: str, model: str) -> dict[str, Any]:
        """As far as the peer told."""
        peers = self._directory.peers
        entry: dict[str, Any] = {
            "id": shown,
            "object": "model",
            "created": self._created,
            "owned_by": peer,
            "display_name": shown,
            "aliases": [],
            "peer": peer,
        }
        if state := peers.state(peer, model):
            entry["status"] = {"value": state}
        return entry | peers.entry(peer, model)

    def _entry(self, route: RouteSpec) -> dict[str, Any]:
        facts, state = route.facts, self._supervisor.state_of(route.id)
        status: dict[str, Any] = {"value": _WORDS.get(state, "unloaded")}
        if state == "failed":
            status["failed"] = True
        entry: dict[str, Any] = {
            "id": route.id,
            "object": "model",
            "created": self._created,
            "owned_by": "swapd",
            "display_name": route.id,
            "aliases": list(route.aliases),
            "status": status,
        }
        ctx_tokens = self._supervisor.n_ctx(route.id) or route.ctx_tokens
        if ctx_tokens:
            entry |= {"context_length": ctx_tokens, "max_model_len": ctx_tokens}
        if meta := _meta(facts, ctx_tokens):
            entry["meta"] = meta
        if facts.architecture:
            entry |= {
                "capabilities": capabilities(facts),
                "modalities": {"vision": facts.vision, "audio": facts.audio},
                "architecture": {"input_modalities": input_modalities(facts), "output_modalities": ["text"]},
            }
        if route.description:
            entry["description"] = route.description
        return entry


def capabilities(facts: ModelFacts) -> list[str]:
    """What a model can do, in Ollama's words."""
    if facts.embeddings:
        return ["embedding"]
    words = {"vision": facts.vision, "audio": facts.audio, "tools": facts.tools, "thinking": facts.reasoning}
    return ["completion", *(word for word, can in words.items() if can)]


def input_modalities(facts: ModelFacts) -> list[str]:
    """What a model takes in, in llama.cpp's words."""
    return ["text", *(["image"] if facts.vision else []), *(["audio"] if facts.audio else [])]


def _meta(facts: ModelFacts, ctx_tokens: int) -> dict[str, int]:
    """As llama-server's, as far as it is known."""
    told = {
        "n_ctx": ctx_tokens,
        "n_ctx_train": facts.trained_ctx_tokens,
        "n_vocab": facts.vocabulary,
        "n_embd": facts.width,
        "n_params": facts.parameters,
        "size": facts.size_bytes,
    }
    return {name: value for name, value in told.items() if value}


def _props(route: RouteSpec) -> dict[str, Any]:
    """As llama-server's, as far as it is known; it sleeps, as llama-server says of a model that a request wakes."""
    facts = route.facts
    return {
        "default_generation_settings": {"n_ctx": route.ctx_tokens, "params": {}},
        "total_slots": facts.slots,
        "model_alias": route.id,
        "model_path": facts.path,
        "modalities": {"vision": facts.vision, "audio": facts.audio},
        "chat_template": facts.chat_template,
        "build_info": f"swapd {__version__}",
        "is_sleeping": True,
    }

"""The route table: exact paths first, then prefixes; each row maps methods to plain ASGI callables."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, TypeAlias

from swapd import __version__
from swapd.errors import DevicesUnknown
from swapd.proxy.asgi import RID, Endpoint, Headers, Receive, Scope, Send, respond
from swapd.proxy.sse import dialect_of
from swapd.proxy.statuses import Shape, refuse
from swapd.supervisor.pool import Supervisor

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Methods: TypeAlias = Mapping[str, Endpoint]

MODEL_ROUTED: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/reranking",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/completion",
    "/completions",
    "/infill",
    "/rerank",
    "/reranking",
    "/embedding",
    "/embeddings",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/props",
    "/slots",
    "/lora-adapters",
)
"""POST goes to the model that the body names."""
MODEL_ROUTED_PREFIXES: Final = ("/v1/audio/", "/v1/images/", "/sdapi/v1/")
LOOKED_UP: Final = ("/props", "/slots", "/lora-adapters")
"""GET with ``?model=`` is answered by a running model only."""
ANY_METHOD: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def is_model_routed(path: str) -> bool:
    """Whether what is posted there is a request to a model."""
    return path in MODEL_ROUTED or path.startswith(MODEL_ROUTED_PREFIXES)


class Router:
    """Finds the endpoint of a path and method; unknown ones get JSON at once."""

    def __init__(self, exact: Mapping[str, Methods], prefixes: Mapping[str, Methods]) -> None:
        self._exact, self._prefixes = exact, prefixes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        methods = self._exact.get(scope["path"]) or self._by_prefix(scope["path"])
        endpoint = methods.get(scope["method"])
        if endpoint is not None:
            return endpoint(scope, receive, send)
        if methods:
            allowed = ", ".join(methods)
            headers = [(b"allow", allowed.encode())]
            return _problem(scope, send, 405, "method_not_allowed", f"allowed here: {allowed}", headers)
        return _problem(scope, send, 404, "not_found", f"there is nothing at {scope['path'][:200]}")

    def rows(self) -> Iterator[tuple[str, str, Endpoint]]:
        """Every method, path (one that ends in ``…`` is a beginning) and endpoint; for the documentation."""
        for path, methods in [*self._exact.items(), *((f"{p}…", m) for p, m in self._prefixes.items())]:
            for method, endpoint in methods.items():
                yield method, path, endpoint

    def _by_prefix(self, path: str) -> Methods:
        if _CONTROL.search(path):  # FastAPI's patterns end in $, which takes a newline more than the rules for keys do
            return {}
        for prefix, methods in self._prefixes.items():
            if path.startswith(prefix):
                return methods
        return {}


class Probes:
    """``/``, ``/health`` and ``/ready``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def root(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name and version: clients ask whether anybody is there."""
        await respond(send, 200, json.dumps({"name": "swapd", "version": __version__}).encode())

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 while swapd lives."""
        await respond(send, 200, b'{"status":"ok"}')

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """503 while swapd cannot do its work: the devices cannot be read."""
        if self._supervisor.devices_known():
            await respond(send, 200, b'{"status":"ready"}')
            return
        error = DevicesUnknown("the GPUs cannot be read: running models serve on, new GPU loads are refused")
        await refuse(scope, send, error)


def is_get(endpoint: Endpoint) -> Methods:
    """A row that answers GET and HEAD."""
    return {"GET": endpoint, "HEAD": endpoint}


async def _problem(
    scope: Scope, send: Send, status: int, code: str, message: str, headers: Headers | None = None
) -> None:
    if dialect_of(scope["path"]).shape is Shape.ANTHROPIC:
        error = {"type": "not_found_error" if status == 404 else "invalid_request_error", "message": message}
        body = {"type": "error", "error": error, "request_id": scope[RID]}
    else:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    await respond(send, status, json.dumps(body).encode(), headers)

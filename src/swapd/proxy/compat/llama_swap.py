"""llama-swap's routes, with its field names."""

from __future__ import annotations

import asyncio
import codecs
import json
import shlex
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, unquote

from swapd.config.redact import without_secrets
from swapd.core.spec import ModelId, RouteSpec
from swapd.errors import RequestError, SwapdError
from swapd.proxy.admin import loaded_models, unload_models, without_colours
from swapd.proxy.asgi import Headers, Receive, Scope, Send, respond, stream
from swapd.proxy.directory import Directory
from swapd.proxy.statuses import refuse
from swapd.supervisor.pool import Supervisor

_STATES: Final = {
    "starting": "starting",
    "ready": "ready",
    "draining": "ready",
    "stopping": "stopping",
    "releasing": "stopping",
    "lost": "shutdown",
}
_PLAIN: Final[Headers] = [(b"content-type", b"text/plain; charset=utf-8")]
_STREAMED: Final[Headers] = [*_PLAIN, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class LlamaSwap:
    """``/running``, ``/unload``, ``/logs`` and ``/api/models/unload``."""

    def __init__(self, supervisor: Supervisor, directory: Directory) -> None:
        self._supervisor, self._directory = supervisor, directory

    async def running(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: the models that are not stopped."""
        states = {route.id: self._supervisor.state_of(route.id) for route in self._directory.routes.values()}
        rows = [
            _row(route, states[route.id]) for route in self._directory.routes.values() if states[route.id] in _STATES
        ]
        await respond(send, 200, json.dumps({"running": rows}).encode())

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: unload all; answers when they are gone."""
        if await self._unloaded(scope, send, loaded_models(self._supervisor)):
            await respond(send, 200, b"OK", _PLAIN)

    async def unload_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: unload all; answers when they are gone."""
        if await self._unloaded(scope, send, loaded_models(self._supervisor)):
            await respond(send, 200, b'{"msg":"ok"}')

    async def unload_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: unload one; answers when it is gone."""
        name = _name(scope, b"/api/models/unload/")
        if await self._unloaded(scope, send, [name]):
            await respond(send, 200, b"OK", _PLAIN)

    async def logs(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: the last output of every model."""
        logs = {model: self._supervisor.log(model) for model in self._supervisor.models()}
        text = "".join(f"==> {model} <==\n{log.decode('utf-8', 'replace')}" for model, log in logs.items() if log)
        await respond(send, 200, without_colours(text).encode(), _PLAIN)

    async def logs_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama-swap's: the output of every model or of one as it comes; ``?no-history``: without what came."""
        name = _name(scope, b"/logs/stream").removeprefix("/")
        try:
            everything = name in ("", "upstream", "proxy") and name not in self._directory.routes
            models = list(self._supervisor.models()) if everything else [self._directory.local(name).id]
        except RequestError as error:
            await refuse(scope, send, error)
            return
        no_history = b"no-history" in parse_qs(scope["query_string"], keep_blank_values=True)
        news: asyncio.Queue[bytes] = asyncio.Queue(64)
        async with asyncio.TaskGroup() as group:
            following = {group.create_task(self._follow(model, news, skip=no_history)) for model in models}
            ended = group.create_task(_all_done(following, news))
            await stream(receive, send, _until_empty(news), _STREAMED)
            for task in (*following, ended):
                task.cancel()

    async def _follow(self, model: ModelId, news: asyncio.Queue[bytes], *, skip: bool) -> None:
        """Put a model's output into the queue as it comes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        past = len(self._supervisor.log(model)) if skip else 0
        async for chunk in self._supervisor.follow(model):
            past, fresh = max(past - len(chunk), 0), chunk[past:]
            if fresh:
                await news.put(without_colours(decoder.decode(fresh)).encode())

    async def _unloaded(self, scope: Scope, send: Send, names: list[str]) -> bool:
        """Whether they are gone; answers with the error if not."""
        try:
            models = [self._directory.local(name).id for name in names]
            await unload_models(self._supervisor, models)
        except SwapdError as error:
            await refuse(scope, send, error)
            return False
        return True


async def _all_done(tasks: set[asyncio.Task[None]], news: asyncio.Queue[bytes]) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.wait(tasks)
        await news.put(b"")


async def _until_empty(news: asyncio.Queue[bytes]) -> AsyncGenerator[bytes, None]:
    while chunk := await news.get():
        yield chunk


def _name(scope: Scope, prefix: bytes) -> str:
    raw: bytes = scope["raw_path"]
    return unquote(raw.removeprefix(prefix).decode("latin-1"))


def _row(route: RouteSpec, state: str) -> dict[str, object]:
    return {
        "model": route.id,
        "state": _STATES[state],
        "cmd": shlex.join(without_secrets(route.facts.command)),
        "proxy": "",
        "ttl": round(route.idle_timeout_s),
        "name": route.id,
        "description": route.description,
    }

"""swapd's own API below ``/api``, with FastAPI: its OpenAPI document is part of the product."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from swapd import __version__
from swapd.core.spec import ModelId
from swapd.errors import BadRequest, ConfigError, SwapdError
from swapd.proxy.api_models import (
    Explanation,
    ModelState,
    Reloaded,
    Responses,
    Status,
    Unloaded,
    finished,
    problems,
    text_of,
)
from swapd.proxy.asgi import RID
from swapd.proxy.directory import Directory
from swapd.proxy.profiles import add_profiles
from swapd.proxy.settings import ProxySettings
from swapd.proxy.statuses import INTERNAL, Shape, error_body, error_headers, status_of
from swapd.supervisor.pool import Supervisor

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_QUIET_S: Final = 10.0
"""A silent event stream gets a comment this often."""


def build_api(
    supervisor: Supervisor,
    directory: Directory,
    settings: ProxySettings,
    speeds: Callable[[], Mapping[ModelId, Any]],
    started: float,
) -> FastAPI:
    """The FastAPI app; its paths begin with ``/api``.

    ``speeds``: by model, what its last answers told. ``started``: when swapd did, by the monotonic clock.
    """
    api = FastAPI(title="swapd", version=__version__, openapi_url="/api/openapi.json", docs_url=None, redoc_url=None)
    api.router.redirect_slashes = False
    api.add_exception_handler(SwapdError, _swapd_error)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(Exception, _internal)
    _add_views(api, supervisor, directory, settings, speeds, started)
    _add_orders(api, supervisor, directory)
    add_profiles(api, directory)
    _add_reload(api, settings)
    described = api.openapi
    api.openapi = lambda: api.openapi_schema or finished(described())  # type: ignore[method-assign]
    return api


def _add_views(
    api: FastAPI,
    supervisor: Supervisor,
    directory: Directory,
    settings: ProxySettings,
    speeds: Callable[[], Mapping[ModelId, Any]],
    started: float,
) -> None:
    def status() -> dict[str, Any]:
        head = {"version": __version__, "uptime_s": round(time.monotonic() - started, 3)}
        config = {"config": {"path": settings.config_path, "error": settings.config_error}}
        names = {"profile": directory.profile, "peers": directory.peers.status()}
        return head | config | supervisor.status() | names | {"answers": speeds()}

    @api.get("/api/status", response_model=Status, responses=problems())
    async def get_status() -> JSONResponse:
        """Devices, RAM and models, as they are now."""
        return JSONResponse(status())

    @api.get(
        "/api/events",
        response_class=StreamingResponse,
        responses={200: text_of("text/event-stream", "events"), **problems()},
    )
    async def get_events() -> StreamingResponse:
        """Server-sent events: the status first, then each change of a model's state or load progress."""
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        events = _events(status, supervisor.changes())
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    @api.get(
        "/api/models/{model:path}/logs",
        response_class=PlainTextResponse,
        responses={200: text_of("text/plain", "the output"), **problems(400, 404)},
    )
    async def get_logs(model: str, *, follow: bool = False) -> Response:
        """The model's output: its last bytes, and with ``follow=1`` what comes."""
        model = directory.local(model).id
        if follow:
            return StreamingResponse(_lines(supervisor.follow(model)), media_type="text/plain; charset=utf-8")
        return PlainTextResponse(without_colours(supervisor.log(model).decode("utf-8", "replace")))

    @api.get("/api/explain/{model:path}", response_model=Explanation, responses=problems(404))
    async def get_explain(model: str) -> JSONResponse:
        """What a request for a name would do now, and why; first how the name is understood."""
        return JSONResponse(directory.explain(model))


def _add_reload(api: FastAPI, settings: ProxySettings) -> None:
    @api.post("/api/reload", response_model=Reloaded, responses=problems(409))
    async def reload() -> JSONResponse:
        """Read the configuration again; 409 with every mistake if it has any, and then nothing changes."""
        if settings.reload is None:
            raise HTTPException(409, "this server has no configuration to reload")
        try:
            return JSONResponse(await settings.reload())
        except ConfigError as error:
            raise HTTPException(409, error.message) from None


def _add_orders(api: FastAPI, supervisor: Supervisor, directory: Directory) -> None:
    def state(model: ModelId, status_code: int) -> JSONResponse:
        return JSONResponse({"id": model, "state": supervisor.state_of(model)}, status_code)

    accepted: Responses = {202: {"model": ModelState, "description": "with wait=0: it was begun"}}

    @api.post(
        "/api/models/{model:path}/load",
        response_model=ModelState,
        responses={**accepted, **problems(400, 404, 409, 429, 502, 503, 504)},
    )
    async def load(request: Request, model: str, *, wait: bool = True) -> JSONResponse:
        """Load a model: 200 when it is ready, or the error; with ``wait=0`` 202 at once."""
        ticket = supervisor.load(model := directory.local(model).id, rid=request.scope[RID])
        try:
            if not wait and ticket.error is None:
                return state(model, 202)
            await ticket.wait()
        finally:
            ticket.close(served=False)
        return state(model, 200)

    @api.post(
        "/api/models/{model:path}/unload",
        response_model=ModelState,
        responses={**accepted, **problems(400, 404, 502)},
    )
    async def unload(model: str, *, force: bool = False, wait: bool = True) -> JSONResponse:
        """Unload a model: 200 when its process is gone; ``force=1``: no drain; ``wait=0``: 202 at once."""
        model = directory.local(model).id
        await supervisor.unload(model, force=force, wait=wait)
        return state(model, 200 if wait else 202)

    @api.post(
        "/api/unload",
        response_model=Unloaded,
        responses={202: {"model": Unloaded, "description": "with wait=0: it was begun"}, **problems(400, 502)},
    )
    async def unload_all(*, force: bool = False, wait: bool = True) -> JSONResponse:
        """Unload every model."""
        loaded = loaded_models(supervisor)
        await unload_models(supervisor, loaded, force=force, wait=wait)
        return JSONResponse({"unloaded": loaded}, 200 if wait else 202)


def loaded_models(supervisor: Supervisor) -> list[ModelId]:
    """What an unload of all means: not those whose process cannot be ended."""
    return [m for m in supervisor.models() if supervisor.state_of(m) not in ("stopped", "failed", "lost")]


async def unload_models(
    supervisor: Supervisor, models: Iterable[ModelId], *, force: bool = False, wait: bool = True
) -> None:
    """Unload several at once.

    Raises:
        SwapdError: the first that came, when all the others are done.
    """
    errors: list[SwapdError] = []

    async def unload(model: ModelId) -> None:
        try:
            await supervisor.unload(model, force=force, wait=wait)
        except SwapdError as error:
            errors.append(error)

    async with asyncio.TaskGroup() as group:
        for model in models:
            group.create_task(unload(model))
    if errors:
        raise errors[0]


def without_colours(text: str) -> str:
    """A process's output as text: without the escape sequences of a terminal."""
    return _ANSI.sub("", text)


async def _events(status: Callable[[], Any], changes: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    coming = asyncio.ensure_future(anext(changes))
    try:
        await asyncio.sleep(0)  # it listens from here on: no change is missed between the two
        yield f"event: status\ndata: {json.dumps(status())}\n\n".encode()
        while True:
            done, _ = await asyncio.wait({coming}, timeout=_QUIET_S)
            if not done:
                yield b": ping\n\n"
                continue
            yield f"event: change\ndata: {json.dumps(coming.result())}\n\n".encode()
            coming = asyncio.ensure_future(anext(changes))
    except StopAsyncIteration:
        return
    finally:
        coming.cancel()


async def _lines(output: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in output:
        yield without_colours(decoder.decode(chunk)).encode()


async def _swapd_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SwapdError)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error, Shape.OPENAI, request.scope[RID]), status_of(error), headers)


async def _internal(request: Request, error: Exception) -> Response:
    return Response(INTERNAL, 500, media_type="application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    what = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return await _swapd_error(request, BadRequest(what))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    body = {"error": {"message": error.detail, "type": "invalid_request_error", "param": None, "code": code}}
    return JSONResponse(body, error.status_code, error.headers)

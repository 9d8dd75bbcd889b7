"""The part of the own API that is about requests: what ran, what runs, ending one, and captured bodies."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from swapd.core.activity import EndedRequest
from swapd.errors import Forbidden
from swapd.proxy.activity import Activities
from swapd.proxy.api_activity import Activity, CancelledRequest, CaptureList, FullCapture
from swapd.proxy.api_models import problems
from swapd.proxy.captures import Captures
from swapd.proxy.settings import ProxySettings

MOST: Final = 1000
_Limit = Annotated[int, Query(ge=1, le=MOST, description="So many of each list.")]
_Since = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds of the epoch.")]


def _as_json(row: EndedRequest) -> dict[str, Any]:
    """A row with no more digits than a clock has."""
    return {key: round(value, 6) if type(value) is float else value for key, value in row._asdict().items()}


def add_activity(api: FastAPI, activities: Activities, captures: Captures | None, settings: ProxySettings) -> None:
    """Add the routes."""

    @api.get("/api/activity", response_model=Activity, responses=problems(400))
    async def get_activity(limit: _Limit = 100, model: str = "", since: _Since = 0.0) -> JSONResponse:
        """Requests for models: those under way, oldest first, and those that ended, newest first."""
        ended = await activities.recent(limit=limit, model=model, since=since)
        running = [one for one in activities.running(model) if one["at"] >= since]
        return JSONResponse({"active": running[:limit], "requests": [_as_json(row) for row in ended]})

    @api.post("/api/requests/{rid}/cancel", response_model=CancelledRequest, responses=problems(404))
    async def cancel(rid: str) -> JSONResponse:
        """End a request that waits or runs: its client gets 499 ``cancelled``, or the same as an event."""
        if not activities.cancel(rid):
            raise HTTPException(404, f"no request {rid[:100]!r} waits or runs")
        return JSONResponse({"rid": rid, "cancelled": True})

    def kept() -> Captures:
        if not settings.admin_keys:
            raise Forbidden("captured bodies are for admin keys only: set [server] admin_keys")
        if captures is None:
            raise HTTPException(404, "nothing is captured: [server] capture is off")
        return captures

    @api.get("/api/captures", response_model=CaptureList, responses=problems(404))
    async def get_captures() -> JSONResponse:
        """The requests whose bodies are kept, newest first."""
        return JSONResponse({"captures": kept().listed()})

    @api.get("/api/captures/{rid}", response_model=FullCapture, responses=problems(404))
    async def get_capture(rid: str) -> JSONResponse:
        """One of them, with its bodies."""
        found: dict[str, Any] | None = kept().of(rid)
        if found is None:
            raise HTTPException(404, f"no capture of {rid[:100]!r}, or no longer")
        return JSONResponse(found)

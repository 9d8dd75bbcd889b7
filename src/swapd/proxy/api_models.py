"""The own API's answers as its OpenAPI document describes them: what is promised; more fields may come."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

State: TypeAlias = Literal[
    "stopped", "starting", "ready", "draining", "stopping", "releasing", "failed", "lost"
]  # fmt: skip


class Answered(BaseModel):
    """Where more fields may come."""

    model_config = ConfigDict(extra="allow")


class Config(Answered):
    """The file in use, and what is wrong with one that was refused at reload."""

    path: str
    error: str | None


class Device(Answered):
    """One GPU; ``free_mib`` is null where it cannot be read."""

    id: str
    index: int
    name: str
    total_mib: int
    free_mib: int | None
    headroom_mib: int


class Ram(Answered):
    """The host's memory."""

    total_mib: int
    available_mib: int | None
    headroom_mib: int


class ModelStatus(Answered):
    """One model; ``reserved_mib`` is the peak that admission counts, ``args`` what sizing added to its flags."""

    id: str
    state: State
    reason: str | None
    pid: int | None
    progress: float | None
    active: int
    queued: int
    idle_s: float | None
    loaded_s: float | None
    group: str | None
    reserved_mib: dict[str, int]
    measured_mib: dict[str, int]
    ram_mib: int
    last_error: str | None
    loads: int
    load_s: float | None
    context_saved: bool
    n_ctx: int | None
    args: list[str]


class PeerModel(Answered):
    """A peer's model; ``state`` (``loaded``, ``loading``, ``unloaded``) is null where the peer does not tell."""

    id: str
    state: str | None


class PeerStatus(Answered):
    """A peer as it was when it was last asked; ``reachable`` is null before that."""

    id: str
    url: str
    reachable: bool | None
    error: str | None
    models: list[PeerModel]


class Speed(Answered):
    """A model's answers since swapd's start, and of its last ones what the engine told; shares are 0 to 1."""

    answers: int
    prefill_tps: float | None
    decode_tps: float | None
    cached: float | None
    draft_accepted: float | None
    first_byte_s: float | None


class Status(Answered):
    """``GET /api/status``."""

    version: str
    uptime_s: float
    config: Config
    devices: list[Device]
    ram: Ram
    models: list[ModelStatus]
    profile: str | None
    peers: list[PeerStatus]
    answers: dict[str, Speed]


class Look(Answered):
    """One step of understanding a name; ``found`` is null where it found nothing."""

    step: str
    found: str | None


class Edit(Answered):
    """What ``params`` change in a request's body."""

    strip: list[str]
    set: dict[str, Any]


class Explanation(Answered):
    """``GET /api/explain/{name}``: how a name is understood, and what a request would do now."""

    name: str
    looked_at: list[Look]
    selected: str | None
    edit: Edit | None
    model: str
    state: str
    action: Literal["serve", "start", "evict", "wait", "refuse", "relay"]
    evicts: list[str]
    why: str
    needed_mib: dict[str, int]
    available_mib: dict[str, int]
    args: list[str]


class ModelState(Answered):
    """What a load or unload came to."""

    id: str
    state: State


class Unloaded(Answered):
    """The models that an unload of all found loaded."""

    unloaded: list[str]


class Problem(Answered):
    """The ``error`` of an answer."""

    message: str
    type: str
    param: Any
    code: str


class ProblemAnswer(Answered):
    """Every answer that is none of the 200s."""

    error: Problem


_MEANINGS: Final = {
    400: "the request cannot be understood",
    401: "no valid key",
    403: "another site's page, or no admin key",
    404: "nothing has that name; of models and profiles the message lists those that have",
    409: "refused by another model's on_conflict",
    429: "the queue is full",
    502: "the model's process failed; with its last lines",
    503: "it cannot be loaded now, or never",
    504: "no load progress within load_timeout",
}
_SCHEMAS: Final = "#/components/schemas/{model}"
Responses: TypeAlias = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Responses:
    """The errors of a route, besides those that every route has."""
    content = {"application/json": {"schema": {"$ref": _SCHEMAS.format(model="ProblemAnswer")}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in (401, 403, *statuses)}


def text_of(media_type: str, what: str) -> dict[str, Any]:
    """An answer that is no JSON."""
    return {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}


def finished(document: dict[str, Any]) -> dict[str, Any]:
    """The document as it is true here: invalid requests get 400 in swapd's own shape, and keys have three forms."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemAnswer.model_json_schema(ref_template=_SCHEMAS)
    schemas |= {**problem.pop("$defs"), "ProblemAnswer": problem}
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "basic": {"type": "http", "scheme": "basic"},
    }
    document["security"] = [{}, {"bearer": []}, {"x-api-key": []}, {"basic": []}]
    return document


class Reloaded(BaseModel):
    """What a reload changed: model ids, and keys that hold only from the next start."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    at_restart: list[str]
    warnings: list[str]

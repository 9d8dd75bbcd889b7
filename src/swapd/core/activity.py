"""What is remembered of a request that ended: plain data, without a word of what was said."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from swapd.core.spec import ModelId

Outcome: TypeAlias = Literal["ok", "error", "hung_up", "cancelled"]


class EndedRequest(NamedTuple):
    """One request for a model. None: not known, as where an engine tells no ``timings``.

    ``at``: when it came, in seconds of the epoch. ``asked``: the name that the client
    used. ``client``: its product and how far away it is. ``error``: the code; ``engine``
    for a refusal of the model's own. ``load_s``: how long the model loaded while the
    request waited, ``queue_s`` the rest of the wait. ``first_byte_s`` counts from the
    request's arrival. From ``prompt_tokens`` (which include ``cached_tokens``) on
    the engine's own figures.
    """

    rid: str
    at: float
    model: ModelId
    asked: str
    client: str
    path: str
    stream: bool
    status: int
    outcome: Outcome
    error: str | None
    total_s: float
    queue_s: float = 0.0
    load_s: float = 0.0
    first_byte_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_tps: float | None = None
    decode_tps: float | None = None
    draft_tokens: int | None = None
    draft_accepted: int | None = None

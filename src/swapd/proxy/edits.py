"""What of a request's body is changed for its target: the model's name in place, and ``params`` in JSON."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

from swapd.core.naming import Edit
from swapd.errors import BadRequest
from swapd.proxy.asgi import HEADERS, Scope
from swapd.proxy.bodies import Body, Spool
from swapd.proxy.names import PARSED_WHOLE_BYTES, is_json, model_place


async def edited(scope: Scope, body: Body, edit: Edit, name: str) -> Body:
    """A JSON object with the edit made, encoded anew; ``name``: the model's name in it, if it needs another.

    Anything else (forms, uploads, arrays) only has its model renamed.

    Raises:
        BadRequest: it is no JSON that can be read, or that can be written again.
    """
    kind = scope[HEADERS].get(b"content-type", b"")

    def work() -> bytes | None:
        if isinstance(body, bytes):
            return _encoded(body, edit, name) if is_json(body, kind) else None
        with closing(body.view()) as view:
            return _encoded(view[:], edit, name) if is_json(view, kind) else None

    is_small = isinstance(body, bytes) and len(body) <= PARSED_WHOLE_BYTES
    text = work() if is_small else await asyncio.to_thread(work)
    if text is None:
        return await renamed(scope, body, name) if name else body
    if isinstance(body, Spool):
        body.close()
    return text


async def renamed(scope: Scope, body: Body, model: str) -> Body:
    """The body with the name that the model's own server knows; every other byte as it came."""
    kind = scope[HEADERS].get(b"content-type", b"")
    if isinstance(body, bytes):
        start, end, text = model_place(body, kind, model)
        return body[:start] + text + body[end:]

    def searched(spool: Spool) -> tuple[int, int, bytes]:
        with closing(spool.view()) as view:
            return model_place(view, kind, model)

    body.splice(*await asyncio.to_thread(searched, body))
    return body


def _encoded(body: bytes, edit: Edit, name: str) -> bytes | None:
    try:
        fields: Any = json.loads(body) if body else {}
        if not isinstance(fields, dict):
            return None
        fields = edit.applied_to(fields)
        if name:
            fields["model"] = name
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON that params can be set in: {error}") from error

"""The relay under real uvicorn, with an upstream on a unix socket."""

from __future__ import annotations

import asyncio
import json

from tests.component.fake_supervisor import Call, on_uvloop, until, world


async def hello(call: Call) -> None:
    await call.json({"hello": json.loads(call.body)["model"] if call.body else None})


async def three_events(call: Call) -> None:
    await call.begin_stream()
    for number in range(3):
        await call.event(json.dumps({"n": number}))
        await asyncio.sleep(0.01)
    await call.event("[DONE]")
    await call.end_stream()


@on_uvloop
async def test_json_answer_is_relayed_and_the_lease_returned() -> None:
    async with world(hello) as w:
        reply = await w.chat()
        assert (reply.status, reply.json()) == (200, {"hello": "a"})
        assert reply.headers["x-request-id"]
        assert w.supervisor.closed == [("a", True, 0.0)]


@on_uvloop
async def test_stream_is_relayed_chunk_by_chunk() -> None:
    async with world(three_events) as w:
        reply = await w.chat(stream=True)
        assert reply.whole
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.headers["x-accel-buffering"] == "no"
        assert reply.headers["cache-control"] == "no-cache"
        await until(lambda: w.supervisor.closed)

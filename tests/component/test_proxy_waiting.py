"""Streams that wait: held headers, keep-alives, and errors after the 200."""

from __future__ import annotations

import asyncio
import json

import pytest

from swapd.errors import BackingOff, InsufficientMemory, StartFailed
from tests.component.fake_supervisor import Call, World, on_uvloop, until, world

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
KEEP_ALIVES = {
    "chat": b": ping\n\n",
    "responses": b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n',
    "messages": b'event: ping\ndata: {"type":"ping"}\n\n',
}


async def one_event(call: Call) -> None:
    await call.begin_stream()
    await call.event("first")
    await call.end_stream()


@pytest.mark.parametrize("dialect", PATHS)
def test_waiting_stream_gets_keep_alives_of_its_protocol_until_the_first_byte(dialect: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(one_event, header_hold_s=0.05, heartbeat_s=0.02) as w:
            w.supervisor.held.add("a")
            client = await w.client()
            await client.send(PATHS[dialect], {"model": "a", "stream": True})
            status, headers = await client.head()
            assert status == 200
            assert headers["content-type"] == "text/event-stream"
            assert headers["x-accel-buffering"] == "no"
            assert "x-request-id" in headers
            for _ in range(3):
                assert await client.chunk() == KEEP_ALIVES[dialect]
            w.supervisor.let_go("a")
            rest = await _rest(client)
            assert rest.endswith(b"data: first\n\n")
            assert rest.replace(KEEP_ALIVES[dialect], b"") == b"data: first\n\n"
            client.close()

    scenario()


async def _rest_after_three_keep_alives(w: World, read: asyncio.Event) -> bytes:
    """What a stream gets once three keep-alives were ``read``."""
    client = await w.client()
    await client.send(PATHS["chat"], {"model": "a", "stream": True})
    await client.head()
    for _ in range(3):
        assert await client.chunk() == KEEP_ALIVES["chat"]
    read.set()
    rest = await _rest(client)
    client.close()
    return rest


@on_uvloop
async def test_prefill_that_is_silent_gets_keep_alives_too() -> None:
    read = asyncio.Event()

    async def prefills(call: Call) -> None:
        await read.wait()
        await one_event(call)

    async with world(prefills, header_hold_s=0.03, heartbeat_s=0.02) as w:
        rest = await _rest_after_three_keep_alives(w, read)
        assert rest.replace(KEEP_ALIVES["chat"], b"") == b"data: first\n\n" and rest.endswith(b"data: first\n\n")


@on_uvloop
async def test_engine_that_sends_its_head_early_does_not_stop_the_keep_alives() -> None:
    read = asyncio.Event()

    async def head_first(call: Call) -> None:
        await call.begin_stream()
        await read.wait()
        await call.event("first")
        await asyncio.sleep(0.08)
        await call.event("second")
        await call.end_stream()

    async with world(head_first, header_hold_s=0.02, heartbeat_s=0.02) as w:
        _, _, after = (await _rest_after_three_keep_alives(w, read)).partition(b"data: first\n\n")
        assert after == b"data: second\n\n"


@on_uvloop
async def test_heartbeat_off_sends_the_head_and_nothing_more() -> None:
    async def prefills(call: Call) -> None:
        await asyncio.sleep(0.1)
        await one_event(call)

    async with world(prefills, header_hold_s=0.02, heartbeat_s=0.0) as w:
        client = await w.client()
        await client.send(PATHS["chat"], {"model": "a", "stream": True})
        await client.head()
        assert await client.chunk() == b"data: first\n\n"
        client.close()


@on_uvloop
async def test_request_without_stream_gets_nothing_until_its_answer() -> None:
    async def thinks(call: Call) -> None:
        await asyncio.sleep(0.1)
        await call.json({"done": True})

    async with world(thinks, header_hold_s=0.01, heartbeat_s=0.01) as w:
        assert (await w.chat()).json() == {"done": True}


@on_uvloop
async def test_early_failure_of_a_stream_still_gets_its_status_code() -> None:
    async with world(one_event) as w:
        w.supervisor.held.add("a")
        asked = asyncio.ensure_future(w.chat(stream=True))
        await until(lambda: w.supervisor.waiting)
        w.supervisor.refuse_waiting(BackingOff("a failed three times", retry_after_s=17))
        reply = await asked
        assert (reply.status, reply.headers["retry-after"]) == (503, "17")
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("dialect", PATHS)
def test_failure_after_the_200_is_the_error_event_of_the_protocol_and_a_clean_end(dialect: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(one_event, header_hold_s=0.01, heartbeat_s=0.01) as w:
            w.supervisor.held.add("a")
            asked = asyncio.ensure_future(w.ask(PATHS[dialect], {"model": "a", "stream": True}))
            await until(lambda: w.supervisor.waiting)
            await asyncio.sleep(0.05)
            w.supervisor.refuse_waiting(StartFailed("a did not start: bad flag", stderr_tail="error: --frob"))
            reply = await asked
            assert reply.whole
            event = reply.body.replace(KEEP_ALIVES[dialect], b"").decode()
            data = json.loads(event.partition("data: ")[2])
            assert "503 Service Unavailable: a did not start: bad flag\nerror: --frob" in json.dumps(data).replace(
                "\\n", "\n"
            )
            if dialect == "chat":
                assert data["error"]["code"] == 503
            elif dialect == "responses":
                assert event.startswith("event: response.failed\n")
                assert data["response"]["error"]["code"] == "server_error"
            else:
                assert event.startswith("event: error\n")
                assert data["error"]["type"] == "overloaded_error"

    scenario()


@on_uvloop
async def test_failure_that_no_retry_can_help_has_none_of_the_words_that_start_one() -> None:
    async with world(one_event, header_hold_s=0.01, heartbeat_s=0.01) as w:
        w.supervisor.held.add("a")
        asked = asyncio.ensure_future(w.chat(stream=True))
        await until(lambda: w.supervisor.waiting)
        await asyncio.sleep(0.05)
        error = InsufficientMemory("a can never fit", needed={"GPU-0": 9 << 30}, available={"GPU-0": 5 << 30})
        w.supervisor.refuse_waiting(error)
        body = (await asked).body.decode()
        assert "Service Unavailable" not in body
        assert '"needed_mib": {"GPU-0": 9216}' in body


@on_uvloop
async def test_refusal_of_the_engine_after_the_200_becomes_an_event_with_its_words() -> None:
    async def refuses_late(call: Call) -> None:
        await asyncio.sleep(0.06)
        error = {"message": "exceeds the available context size", "code": 400, "n_ctx": 4096}
        await call.json({"error": error}, "400 Bad Request")

    async with world(refuses_late, header_hold_s=0.01, heartbeat_s=0.02) as w:
        reply = await w.chat(stream=True)
        assert (reply.status, reply.whole) == (200, True)
        data = json.loads(reply.body.decode().rpartition("data: ")[2])
        assert data["error"]["message"] == "exceeds the available context size"
        assert data["error"]["n_ctx"] == 4096


@on_uvloop
async def test_death_during_prefill_after_the_200_ends_with_an_event() -> None:
    async def dies(call: Call) -> None:
        await asyncio.sleep(0.05)
        call.writer.transport.abort()

    async with world(dies, header_hold_s=0.01, heartbeat_s=0.01) as w:
        reply = await w.chat(stream=True)
        assert b"503 Service Unavailable: a died" in reply.body


@on_uvloop
async def test_waiting_stream_of_a_client_that_leaves_is_withdrawn() -> None:
    async with world(one_event, header_hold_s=0.01, heartbeat_s=0.01) as w:
        w.supervisor.held.add("a")
        client = await w.client()
        await client.send(PATHS["chat"], {"model": "a", "stream": True})
        await client.head()
        client.close()
        await until(lambda: not w.supervisor.open)


async def _rest(client) -> bytes:  # type: ignore[no-untyped-def]
    body = b""
    while chunk := await client.chunk():
        body += chunk
    return body


@pytest.mark.parametrize("how", ["comment", "reasoning"])
def test_waiting_chat_stream_is_told_of_the_load_if_that_is_wanted(how: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(one_event, header_hold_s=0.02, heartbeat_s=0.02, loading_status=how) as w:
            w.supervisor.held.add("a")
            client = await w.client()
            await client.send(PATHS["chat"], {"model": "a", "stream": True})
            await client.head()
            told = await client.chunk()
            if how == "comment":
                assert told == b": a: loading, 42%\n\n"
            else:
                chunk = json.loads(told.removeprefix(b"data: "))
                assert chunk["object"] == "chat.completion.chunk" and chunk["model"] == "a"
                assert chunk["choices"][0]["delta"]["reasoning_content"] == "a: loading, 42%\n"
            w.supervisor.let_go("a")
            assert (await _rest(client)).endswith(b"data: first\n\n")
            client.close()

            w.supervisor.held.add("a")  # the other protocols keep their own form
            client = await w.client()
            await client.send(PATHS["messages"], {"model": "a", "stream": True})
            await client.head()
            assert await client.chunk() == KEEP_ALIVES["messages"]
            client.close()

    scenario()

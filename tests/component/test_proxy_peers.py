"""Requests to peers: another swapd, a server that is none, one that is not there; nothing waits for any of them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from swapd.core.endpoint import Upstream
from swapd.core.naming import Names, Peer
from swapd.core.spec import RouteSpec
from swapd.proxy import peers as peers_module
from swapd.proxy import upstream as upstream_module
from swapd.proxy.peers import Peers
from tests.component.fake_supervisor import Call, Reply, StubUpstream, World, on_uvloop, until, world

TLS = Path(__file__).parents[1] / "data" / "tls"
HERE = {"a": RouteSpec("a"), "both": RouteSpec("both")}
THERE = {"big": RouteSpec("big"), "both": RouteSpec("both"), "org/m": RouteSpec("org/m")}


def peer(url: str, key: str = "", models: tuple[str, ...] | None = None, id_: str = "box") -> Names:
    parts = urlsplit(url)
    where = Upstream(host=parts.hostname or "", port=parts.port or 0, tls=parts.scheme == "https")
    one = Peer(id_, url, where, parts.netloc, parts.path, key, models)
    return Names(tuple(HERE), peers={id_: one})


async def echo(call: Call) -> None:
    await call.json({"body": call.body.decode(), "target": call.target, "headers": call.headers})


@asynccontextmanager
async def two(
    behaviour: Callable[[Call], Awaitable[None]], models: tuple[str, ...] | None = None
) -> AsyncIterator[tuple[World, World]]:
    """A swapd and its peer, which is one with keys; returns once the peer was asked."""
    async with world(behaviour, THERE, api_keys=("theirs",)) as there:
        names = peer(f"http://127.0.0.1:{there.port}", "theirs", models)
        async with world(behaviour, HERE, names=names, api_keys=("ours",)) as here:
            await answered(here)
            yield here, there


async def asked(here: World, path: str, body: object = None, method: str = "GET") -> Reply:
    return await here.ask(path, body, method=method, headers={"authorization": "Bearer ours"})


async def chat(here: World, model: str) -> Reply:
    return await asked(here, "/v1/chat/completions", {"model": model, "n": 1}, "POST")


async def status(here: World) -> Any:
    return (await asked(here, "/api/status")).json()["peers"][0]


async def answered(here: World) -> None:
    await becomes(status, here, lambda told: told["reachable"] is not None)


async def becomes(ask: Callable[..., Awaitable[Any]], here: World, wanted: Callable[[Any], bool], *args: Any) -> None:
    """Ask until the answer is as wanted."""
    async with asyncio.timeout(3):
        while not wanted(await ask(here, *args)):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)


@asynccontextmanager
async def stub(
    behaviour: Callable[[Call], Awaitable[None]], tls: bool = False
) -> AsyncIterator[tuple[StubUpstream, int]]:
    """A server that is no swapd."""
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    one = StubUpstream(behaviour)
    server = await asyncio.start_server(one.accept, "127.0.0.1", 0, ssl=context)
    try:
        yield one, server.sockets[0].getsockname()[1]
    finally:
        await one.close()
        server.close()


@asynccontextmanager
async def beside(behaviour: Callable[[Call], Awaitable[None]]) -> AsyncIterator[World]:
    """A swapd whose peer is such a server; returns once it was asked."""
    async with (
        stub(behaviour) as (_, port),
        world(echo, HERE, names=peer(f"http://127.0.0.1:{port}"), api_keys=("ours",)) as here,
    ):
        await answered(here)
        yield here


# ---- another swapd


@on_uvloop
async def test_models_of_a_peer_are_listed_and_served_by_their_own_names_where_these_are_free() -> None:
    async with two(echo) as (here, there):
        rows = {row["id"]: row for row in (await asked(here, "/v1/models")).json()["data"]}
        assert list(rows) == ["a", "both", "big", "box/both", "org/m"]
        assert [row["owned_by"] for row in rows.values()] == ["swapd", "swapd", "box", "box", "box"]
        assert rows["big"]["status"] == {"value": "loaded"} and rows["big"]["peer"] == "box"
        for name, model in (
            ("big", "big"),
            ("box/big", "big"),
            ("box/both", "both"),
            ("org/m", "org/m"),
            ("box/org/m", "org/m"),
        ):
            reply = await chat(here, name)
            assert json.loads(reply.json()["body"]) == {"model": model, "n": 1}, name
            assert there.supervisor.requested[-1] == model
        assert (await chat(here, "both")).status == 200 and here.supervisor.requested == ["both"]
        assert (await asked(here, "/v1/models/box/both")).json()["owned_by"] == "box"
        assert not there.supervisor.open


@on_uvloop
async def test_keys_of_clients_stay_here_and_the_peer_gets_its_own() -> None:
    async def answer(call: Call) -> None:
        body = {"data": []} if call.target == "/v1/models" else {"running": []}
        await (echo(call) if call.method == "POST" else call.json(body))

    async with stub(answer) as (server, port):
        names = peer(f"http://127.0.0.1:{port}/base", "theirs", ("m",))
        async with world(echo, HERE, names=names, api_keys=("ours",)) as here:
            headers = {"x-api-key": "ours", "cookie": "c", "sec-fetch-site": "same-site", "x-session-id": "s"}
            told = (await here.ask("/v1/messages?beta=true", {"model": "m"}, headers=headers)).json()
            assert told["target"] == "/base/v1/messages?beta=true"
            assert told["headers"] == {
                "host": f"127.0.0.1:{port}", "accept-encoding": "identity", "authorization": "Bearer theirs",
                "x-session-id": "s", "content-length": "14", "x-swapd-hops": "1",
            }  # fmt: skip
            assert all(call.headers["authorization"] == "Bearer theirs" for call in server.calls)


@on_uvloop
async def test_errors_of_a_peer_pass_as_they_are() -> None:
    async with two(echo) as (here, there):
        reply = await chat(here, "box/nope")
        assert reply.status == 404 and "valid ids: big, both, org/m" in reply.json()["error"]["message"]
        there.supervisor.states["big"] = "stopped"
        assert (await asked(here, "/slots?model=box/big&x=1")).json()["error"]["code"] == "not_loaded"
        assert (await asked(here, "/upstream/box/big/v1/x")).status == 400
        assert (await asked(here, "/api/models/big/load", method="POST")).json()["error"]["code"] == "bad_request"


@on_uvloop
async def test_stream_of_a_peer_flows_and_a_hang_up_reaches_its_model() -> None:
    gone = asyncio.Event()

    async def streams(call: Call) -> None:
        await call.begin_stream()
        await call.event("one")
        await call.hung_up()
        gone.set()

    async with two(streams) as (here, there):
        client = await here.client()
        head = {"authorization": "Bearer ours"}
        await client.send("/v1/chat/completions", {"model": "big", "stream": True}, headers=head)
        assert (await client.head())[0] == 200
        assert await client.chunk() == b"data: one\n\n"
        client.close()
        async with asyncio.timeout(3):
            await gone.wait()
        await until(lambda: not there.supervisor.open)


@on_uvloop
async def test_state_of_a_peers_models_is_shown_and_asked_anew_when_somebody_looks() -> None:
    async with two(echo, models=("big",)) as (here, there):
        assert await status(here) == {
            "id": "box", "url": f"http://127.0.0.1:{there.port}", "reachable": True, "error": None,
            "models": [{"id": "big", "state": "loaded"}],
        }  # fmt: skip
        told = (await asked(here, "/api/explain/box/big")).json()
        assert (told["action"], told["state"], told["model"]) == ("relay", "loaded", "box/big")
        assert not there.supervisor.requested


@on_uvloop
async def test_swapds_that_are_peers_of_each_other_do_not_list_each_others_lists() -> None:
    swaps = {"id": "s", "meta": {"llamaswap": {"peerID": "x"}}}
    async with beside(_lists({"id": "own"}, {"id": "theirs", "peer": "x"}, swaps)) as here:
        assert [row["id"] for row in (await status(here))["models"]] == ["own"]


@on_uvloop
async def test_request_that_goes_in_a_circle_ends() -> None:
    async with two(echo) as (here, _):
        headers = {"authorization": "Bearer ours", "x-swapd-hops": "4"}
        reply = await here.ask("/v1/chat/completions", {"model": "big"}, headers=headers)
        assert (reply.status, reply.json()["error"]["code"]) == (502, "peer_unreachable")


# ---- no swapd


def _lists(*rows: dict[str, Any], running: list[dict[str, str]] | None = None) -> Callable[[Call], Awaitable[None]]:
    async def answer(call: Call) -> None:
        if call.target == "/v1/models":
            await call.json({"object": "list", "data": rows})
        elif call.target == "/running" and running is not None:
            await call.json({"running": running})
        elif call.method == "GET":
            await call.json({}, "404 Not Found")
        else:
            await echo(call)

    return answer


@pytest.mark.parametrize(
    ("running", "states"),
    [
        (None, [None, None, None]),
        (
            [{"model": "m", "state": "ready"}, {"model": "n", "state": "starting"}],
            ["loaded", "loading", "unloaded"],
        ),
    ],
    ids=["openai", "llama-swap"],
)  # fmt: skip
def test_states_are_told_where_the_peer_tells_them(running: Any, states: list[str | None]) -> None:
    @on_uvloop
    async def scenario() -> None:
        answer = _lists({"id": "m", "context_length": 4096}, {"id": "n"}, {"id": "o"}, running=running)
        async with beside(answer) as here:
            assert [row["state"] for row in (await status(here))["models"]] == states
            listed = (await asked(here, "/v1/models/m")).json()
            assert listed["context_length"] == 4096 and ("status" in listed) is (running is not None)

    scenario()


@on_uvloop
async def test_peer_that_is_not_there_is_named_with_the_reason_and_costs_the_others_nothing() -> None:
    names = peer("http://127.0.0.1:1", models=("m",))
    async with world(echo, HERE, names=names, api_keys=("ours",)) as here:
        reply = await chat(here, "m")
        error = reply.json()["error"]
        assert (reply.status, error["code"]) == (502, "peer_unreachable")
        assert error["message"].startswith("peer box (http://127.0.0.1:1) cannot be reached: ")
        assert "refused" in error["message"] or "Connect call failed" in error["message"]
        assert (await chat(here, "a")).status == 200
        told = await status(here)
        assert told["reachable"] is False and told["error"] and told["models"] == [{"id": "m", "state": None}]


@on_uvloop
async def test_peer_that_breaks_off_is_named() -> None:
    async def breaks(call: Call) -> None:
        call.writer.close()

    async with stub(breaks) as (_, port):
        names = peer(f"http://127.0.0.1:{port}", models=("m",))
        async with world(echo, HERE, names=names, api_keys=("ours",)) as here:
            error = (await chat(here, "m")).json()["error"]
            assert (
                error["code"] == "peer_unreachable"
                and "closed the connection before its answer ended" in error["message"]
            )


def test_peer_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BOUND_S", 1.0)

    @on_uvloop
    async def scenario() -> None:
        async def silent(call: Call) -> None:
            await asyncio.sleep(60)

        async with stub(silent) as (_, port):
            names = peer(f"http://127.0.0.1:{port}")
            async with world(echo, HERE, names=names, api_keys=("ours",)) as here:
                assert (await status(here))["reachable"] is None
                await answered(here)
                assert (await status(here))["error"] == "no answer within 1 s"

    scenario()


def test_list_of_an_auto_peer_is_learned_again_after_it_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "RETRY_S", 0.05)
    monkeypatch.setattr(peers_module, "REFRESH_S", 0.05)

    @on_uvloop
    async def scenario() -> None:
        rows = [{"id": "m"}]
        works = False

        async def answer(call: Call) -> None:
            await (_lists(*rows)(call) if works else call.json({}, "500 No"))

        async with beside(answer) as here:
            assert (await status(here))["error"] == "GET /v1/models answers 500"
            assert (await chat(here, "m")).status == 404
            works = True
            await becomes(chat, here, lambda reply: reply.status == 200, "m")
            rows[:] = [{"id": "new"}]
            await becomes(chat, here, lambda reply: reply.status == 404, "m")
            assert (await chat(here, "new")).status == 200
            works = False
            await becomes(status, here, lambda told: not told["reachable"])
            assert [row["id"] for row in (await status(here))["models"]] == ["new"]  # still known

    scenario()


@pytest.mark.parametrize("answer", [b"[" * 100_000, b'{"data": ' + b"[" * 100_000])
def test_peer_whose_list_cannot_be_read_is_named_and_asked_on(answer: bytes) -> None:
    @on_uvloop
    async def scenario() -> None:
        async def odd(call: Call) -> None:
            call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))

        async with beside(odd) as here:
            assert "nested too deeply" in (await status(here))["error"]
            assert (await chat(here, "a")).status == 200

    scenario()


@on_uvloop
async def test_names_that_are_no_text_are_left_out_of_a_peers_list() -> None:
    async with beside(_lists({"id": "x\ud800"}, {"id": "good", "status": {"value": "\udfff"}})) as here:
        assert (await status(here))["models"] == [{"id": "good", "state": None}]


@on_uvloop
async def test_peer_that_is_dropped_while_it_is_asked_harms_nobody() -> None:
    goes_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await goes_on.wait()
        await call.json({"data": [{"id": "m", "status": {"value": "loaded"}}]})

    async with stub(slow) as (_, port):
        asking = Peers(peer(f"http://127.0.0.1:{port}").peers)
        told: list[bool] = []
        asking.on_change = lambda: told.append(True)
        watching = asyncio.ensure_future(asking.watch())
        get = asking._get

        async def dropped(*args: Any) -> Any:
            goes_on.set()
            answer = await get(*args)
            asking.adopt({})  # in the same turn of the loop as the answer
            return answer

        asking._get = dropped  # type: ignore[method-assign]
        await until(lambda: not asking.known())
        await asyncio.sleep(0.05)
        assert not watching.done() and not told
        watching.cancel()


# ---- another configuration


@on_uvloop
async def test_other_names_and_peers_of_a_new_configuration_count_from_then_on() -> None:
    async with two(echo) as (here, there):
        assert (await chat(here, "big")).status == 200
        here.directory.profile = "gone"
        same = here.directory.names.peers["box"]
        here.directory.use(Names(tuple(HERE), aliases={"big": "a"}, peers={"box": same}))
        assert (await chat(here, "big")).status == 200 and here.supervisor.requested == ["a"]
        assert (await chat(here, "org/m")).status == 200  # what an unchanged peer told is still known
        assert here.directory.profile is None
        here.directory.use(Names(tuple(HERE), peers={"moved": peer(same.url, "theirs", id_="moved").peers["moved"]}))
        assert (await chat(here, "box/big")).status == 404
        await becomes(chat, here, lambda reply: reply.status == 200, "org/m")
        assert (await status(here))["id"] == "moved" and there.supervisor.requested[-1] == "org/m"


# ---- https


@pytest.mark.parametrize("trusted", [True, False])
def test_https_peer_is_asked_if_its_certificate_is_trusted(trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))
    upstream_module.tls_context.cache_clear()

    @on_uvloop
    async def scenario() -> None:
        async with stub(_lists({"id": "m"}), tls=True) as (_, port):
            names = peer(f"https://127.0.0.1:{port}", models=("m",))
            async with world(echo, HERE, names=names, api_keys=("ours",)) as here:
                await answered(here)
                reply = await chat(here, "m")
                if trusted:
                    assert json.loads(reply.json()["body"]) == {"model": "m", "n": 1}
                    assert (await status(here))["reachable"] is True
                else:
                    assert reply.status == 502 and "certificate verify failed" in reply.json()["error"]["message"]

    try:
        scenario()
    finally:
        upstream_module.tls_context.cache_clear()

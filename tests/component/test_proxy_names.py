"""What names mean at the relay, in lists, look-ups and the own API, and how bodies are edited for them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from swapd.core.naming import Edit, Names, Pattern, Selector
from swapd.core.spec import ModelFacts, RouteSpec
from tests.component.fake_supervisor import Call, on_uvloop, world

FACTS = ModelFacts(architecture="qwen3", slots=1)
ROUTES = {
    "a": RouteSpec("a", ctx_tokens=4096, aliases=("gpt", "claude-*"), facts=FACTS),
    "b": RouteSpec("b", ctx_tokens=8192, facts=FACTS),
    "served": RouteSpec("served", upstream_model="its-name"),
    "hidden": RouteSpec("hidden", unlisted=True),
}
PARAMS = Edit(("top_k",), {"temperature": 0.2})
NAMES = Names(
    models=tuple(ROUTES),
    variants={"a-think": "a", "served+": "served", "hidden+": "hidden"},
    aliases={"gpt": "a", "org/gpt": "b"},
    patterns=(Pattern("claude-*", "a"),),
    selectors={
        "warm": Selector("warm", ("a", "b")),
        "pin": Selector("pin", ("a", "b"), "pin"),
        "spill": Selector("spill", ("a", "b"), "spillover"),
    },
    profiles={"night": {"a": "b", "gpt": "served", "new": "b"}, "day": {}},
    edits={
        "b": PARAMS,
        "a-think": Edit(set={"chat_template_kwargs": {"enable_thinking": True}}),
        "served+": Edit(set={"n": 1}),
    },
    unlisted=frozenset({"hidden"}),
    default="gpt",
)


async def echo(call: Call) -> None:
    await call.json({"body": call.body.decode("latin-1"), "target": call.target})


def sent(reply: Any) -> str:
    text: str = reply.json()["body"]
    return text


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a", "a"), ("a-think", "a"), ("gpt", "a"), ("org/gpt", "b"),
        ("claude-3", "a"), ("warm", "a"), ("served+", "served"),
    ],
)  # fmt: skip
def test_every_kind_of_name_reaches_its_model(name: str, model: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(echo, ROUTES, names=NAMES) as w:
            assert (await w.chat(name)).status == 200
            assert (await w.ask(f"/upstream/{name}/v1/chat/completions", {"x": 1})).json()["target"][
                -12:
            ] == "/completions"
            assert w.supervisor.requested == [model, model]

    scenario()


@on_uvloop
async def test_body_of_an_alias_is_forwarded_byte_for_byte() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        body = b'{ "model" : "gpt","top_k": 1, "temperature":1.50 }'
        assert sent(await w.ask("/v1/chat/completions", body)).encode() == body


@on_uvloop
async def test_params_and_variants_edit_json_and_nothing_else() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        body = {"model": "b", "top_k": 1, "temperature": 1.5, "text": "äÄ\ud800", "n": 12345678901234567890}
        assert json.loads(sent(await w.ask("/v1/chat/completions", body))) == {
            "model": "b", "temperature": 0.2, "text": "äÄ\ud800", "n": 12345678901234567890,
        }  # fmt: skip
        thinks = {"model": "a-think", "chat_template_kwargs": {"mine": [1]}}
        edited = json.loads(sent(await w.ask("/v1/chat/completions", thinks)))
        assert edited == {"model": "a-think", "chat_template_kwargs": {"mine": [1], "enable_thinking": True}}
        assert json.loads(sent(await w.ask("/v1/chat/completions", {"model": "served+"}))) == {
            "model": "its-name",
            "n": 1,
        }
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert sent(await w.ask("/v1/audio/speech", b"model=b&top_k=1", headers=form)) == "model=b&top_k=1"
        assert sent(await w.ask("/v1/audio/speech", b"model=served%2B&x=1", headers=form)) == "model=its-name&x=1"
        assert sent(await w.ask("/lora-adapters?model=b", b"[1]")) == "[1]"
        assert json.loads(sent(await w.ask("/v1/completions?model=b", b"{}"))) == {"temperature": 0.2}
        assert json.loads(sent(await w.ask("/upstream/b/v1/completions", b'{"top_k":1}'))) == {"temperature": 0.2}
        assert sent(await w.ask("/upstream/b/own/route", b'{"top_k":1}')) == '{"top_k":1}'


@on_uvloop
async def test_body_that_cannot_be_written_again_is_refused() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        reply = await w.ask("/v1/chat/completions", b'{"model": "b", "x": 1e999}')
        assert (reply.status, reply.json()["error"]["code"]) == (400, "bad_request")


def test_large_body_that_waits_in_a_file_is_edited_too(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        async def digest(call: Call) -> None:
            await call.json({"sha256": hashlib.sha256(call.body).hexdigest()})

        async with world(digest, ROUTES, names=NAMES, spool_dir=str(tmp_path)) as w:
            for size in (2 << 20, 9 << 20):
                body = {"model": "b", "text": "x" * size, "top_k": 1}
                edited = json.dumps(
                    {"model": "b", "text": "x" * size, "temperature": 0.2}, separators=(",", ":")
                ).encode()
                reply = await w.ask("/v1/chat/completions", body)
                assert reply.json() == {"sha256": hashlib.sha256(edited).hexdigest()}

    scenario()


@on_uvloop
async def test_request_that_names_none_means_the_default_model() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        assert sent(await w.ask("/v1/chat/completions", b'{"x": 1}')) == '{"x": 1}'
        assert w.supervisor.requested == ["a"]
        w.supervisor.states["a"] = "stopped"
        assert (await w.ask("/props", method="GET")).json()["model_alias"] == "a"
        assert (await w.ask("/props?model=org/gpt", method="GET")).status == 200


@on_uvloop
async def test_unknown_name_is_404_with_the_nearest_and_the_valid_ones() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        error = (await w.chat("gpt4")).json()["error"]
        assert error["code"] == "model_not_found"
        assert error["message"] == (
            "there is no model 'gpt4' (did you mean 'gpt'?); "
            "valid ids: a, a-think, b, pin, served, served+, spill, warm"
        )
        assert (await w.ask("/v1/models/gpt4", method="GET")).status == 404


@pytest.mark.parametrize(
    ("selector", "a", "b", "full", "model"),
    [
        ("warm", "stopped", "ready", "", "b"),
        ("warm", "starting", "stopped", "", "a"),
        ("pin", "stopped", "ready", "", "a"),
        ("spill", "ready", "ready", "", "a"),
        ("spill", "ready", "ready", "a", "b"),
        ("spill", "ready", "stopped", "a", "a"),
    ],
)
def test_selector_is_decided_when_the_request_comes(selector: str, a: str, b: str, full: str, model: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(echo, ROUTES, names=NAMES) as w:
            await w.chat(selector)
            w.supervisor.states |= {"a": a, "b": b}
            w.supervisor.full = set(full)
            await w.chat(selector)
            assert w.supervisor.requested == ["a", model]

    scenario()


@on_uvloop
async def test_profile_pins_names_until_it_is_ended() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:

        async def asked(name: str) -> str:
            before = len(w.supervisor.requested)
            status = (await w.chat(name)).status
            return w.supervisor.requested[-1] if len(w.supervisor.requested) > before else str(status)

        async def put(profile: object) -> Any:
            return await w.ask("/api/profile", {"profile": profile}, method="PUT", headers=JSON)

        assert [await asked(name) for name in ("a", "gpt", "new")] == ["a", "a", "404"]
        assert (await put("night")).json() == {
            "profile": "night", "pins": {"a": "b", "gpt": "served", "new": "b"}, "profiles": ["night", "day"],
        }  # fmt: skip
        assert [await asked(name) for name in ("a", "gpt", "new")] == ["b", "served", "b"]
        assert json.loads(sent(await w.ask("/v1/completions", {"model": "a", "top_k": 1}))) == {
            "model": "a", "temperature": 0.2,
        }  # fmt: skip
        assert (await w.ask("/api/status", method="GET")).json()["profile"] == "night"
        # where a name stands in a path, an id is that model
        assert (await w.ask("/v1/models/a", method="GET")).json()["id"] == "a"
        assert (await w.ask("/upstream/a/x", {})).status == 200 and w.supervisor.requested[-1] == "a"
        assert (await w.ask("/api/models/a/unload")).json()["id"] == "a"
        wrong = (await put("nigth")).json()["error"]
        assert wrong["code"] == "profile_not_found" and wrong["message"].endswith("valid profiles: night, day")
        assert (await w.ask("/api/profile", {"profil": None}, method="PUT", headers=JSON)).status == 400
        assert (await put(None)).json()["profile"] is None
        assert [await asked(name) for name in ("a", "gpt", "new")] == ["a", "a", "404"]


JSON = {"content-type": "application/json"}


@on_uvloop
async def test_profile_is_switched_with_an_admin_key_and_seen_with_any() -> None:
    async with world(echo, ROUTES, names=NAMES, api_keys=("user",), admin_keys=("boss",)) as w:

        async def status(method: str, key: str) -> int:
            body = {"profile": "night"} if method == "PUT" else None
            headers = {"authorization": f"Bearer {key}", **JSON}
            return (await w.ask("/api/profile", body, method=method, headers=headers)).status

        assert [await status("GET", key) for key in ("user", "boss", "x")] == [200, 200, 401]
        assert [await status("PUT", key) for key in ("user", "boss", "x")] == [403, 200, 401]


@on_uvloop
async def test_list_has_ids_variants_and_selectors_and_no_more() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        w.supervisor.states |= {"a": "stopped", "served": "stopped"}
        rows = {row["id"]: row for row in (await w.ask("/v1/models", method="GET")).json()["data"]}
        assert list(rows) == ["a", "b", "served", "a-think", "served+", "warm", "pin", "spill"]
        assert rows["a"]["aliases"] == ["gpt", "claude-*"] and rows["a-think"]["aliases"] == []
        assert (rows["a-think"]["variant_of"], rows["a-think"]["context_length"]) == ("a", 4096)
        assert rows["warm"]["targets"] == ["a", "b"] and rows["warm"]["context_length"] == 8192  # b is loaded
        assert rows["pin"]["status"] == {"value": "unloaded"} and rows["warm"]["status"] == {"value": "loaded"}

        async def entry(name: str) -> Any:
            return (await w.ask(f"/v1/models/{name}", method="GET")).json()["id"]

        named = [await entry(n) for n in ("a", "gpt", "org%2Fgpt", "org/gpt", "claude-x", "a-think", "warm", "hidden")]
        assert named == ["a", "a", "b", "b", "a", "a-think", "warm", "hidden"]


@on_uvloop
async def test_operators_may_use_names_of_models() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        assert (await w.ask("/api/models/org%2Fgpt/load")).json() == {"id": "b", "state": "ready"}
        assert (await w.ask("/models/unload", {"model": "a-think"})).json() == {"success": True}
        assert (await w.ask("/api/show", {"model": "gpt:latest"})).json()["capabilities"] == ["completion"]
        assert w.supervisor.calls == [("load", "b"), ("unload", "a", False, False)]


@on_uvloop
async def test_names_without_end_are_not_remembered() -> None:
    names = Names(("a",), patterns=(Pattern("gpt*", "a"),))
    async with world(echo, {"a": RouteSpec("a")}, names=names) as w:
        for name in ("gpt-4", "gpt" + "x" * 100_000):
            assert (await w.chat(name)).status == 200
        assert list(w.directory._meanings) == ["gpt-4"]


@on_uvloop
async def test_explain_tells_every_step_the_choice_and_the_edit() -> None:
    async with world(echo, ROUTES, names=NAMES) as w:
        told = (await w.ask("/api/explain/claude-x", method="GET")).json()
        assert (told["name"], told["model"], told["action"]) == ("claude-x", "a", "start")
        assert [look["found"] for look in told["looked_at"]] == [None] * 7 + ["the alias claude-* of a fits it"]
        w.supervisor.states["a"] = "stopped"
        told = (await w.ask("/api/explain/warm", method="GET")).json()
        assert (told["model"], told["selected"]) == ("b", "b (warm: a is stopped, b is ready)")
        assert told["edit"] == {"strip": ["top_k"], "set": {"temperature": 0.2}}
        assert (await w.ask("/api/explain/nope", method="GET")).status == 404


@pytest.mark.parametrize(
    ("path", "model", "target"),
    [
        ("a/v1/x", "a", "/v1/x"),
        ("a", "a", "/"),
        ("org/gpt/v1/x", "b", "/v1/x"),
        ("org%2Fgpt/v1/x", "b", "/v1/x"),
        ("claude-x/v1/x", "a", "/v1/x"),
        ("claude-x/a", "a", "/a"),
    ],
)
def test_name_in_a_path_ends_where_it_is_known_to_end(path: str, model: str, target: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(echo, ROUTES, names=NAMES) as w:
            assert (await w.ask(f"/upstream/{path}", {})).json()["target"] == target
            assert w.supervisor.requested == [model]

    scenario()

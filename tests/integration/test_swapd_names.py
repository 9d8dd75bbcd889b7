"""Names and peers with the real swapd, real processes and, as the peer, a second swapd with keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.swapd_process import Reply, Swapd, wait_for

EXTRA = """
[selectors.warm]
targets = ["a", "b"]
[selectors.spill]
targets = ["slow", "b"]
strategy = "spillover"
[profiles.night]
pins = { "a" = "b", "llm-code" = "slow" }
"""
KEYS = {"Authorization": "Bearer ours"}


@pytest.fixture(scope="module")
def swapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """One swapd for all tests here."""
    models = {
        "a": {
            "aliases": ["gpt-4o", "claude-*haiku*"],
            "params": {"strip": ["top_k"], "set": {"temperature": 0.2}},
            "variants": {"a-think": {"chat_template_kwargs": {"enable_thinking": True}}},
        },
        "b": {},
        "slow": {"concurrency": 1, "knobs": {"PREFILL_S": 2}},
    }
    with Swapd(tmp_path_factory.mktemp("names"), models, extra=EXTRA, server={"default_model": "gpt-4o"}) as one:
        yield one


def echo(swapd: Swapd, model: str, **keys: object) -> Any:
    """What reaches the model's process."""
    reply = swapd.post("/v1/responses", {"model": model, **keys})
    assert reply.status == 200, reply.text
    return reply.json["echo"]


def who(swapd: Swapd, model: str) -> str:
    """The process that answers."""
    before = len(swapd.fakes("req"))
    assert swapd.chat(model).status == 200
    name: str = swapd.fakes("req")[before]["model"]
    return name


def put_profile(swapd: Swapd, profile: str | None) -> Reply:
    return swapd.ask("PUT", "/api/profile", {"profile": profile})


def test_aliases_variants_and_no_name_reach_one_process_with_their_params(swapd: Swapd) -> None:
    for name in ("a", "gpt-4o", "claude-3-5-haiku-latest"):
        assert echo(swapd, name, top_k=1, x=[1]) == {"model": name, "x": [1], "temperature": 0.2}
    thinks = {"model": "a-think", "temperature": 0.2, "chat_template_kwargs": {"y": 1, "enable_thinking": True}}
    assert echo(swapd, "a-think", chat_template_kwargs={"y": 1}) == thinks
    assert swapd.post("/v1/responses", {"x": 1}).json["echo"] == {"x": 1, "temperature": 0.2}
    assert swapd.get("/props").json["model_alias"] == "a"
    assert swapd.model("a")["loads"] == 1


def test_profile_is_switched_without_a_load_and_seen_in_the_status(swapd: Swapd) -> None:
    assert swapd.load("b").status == swapd.load("a").status == 200
    loads = {row["id"]: row["loads"] for row in swapd.status()["models"]}
    assert put_profile(swapd, "night").json["pins"] == {"a": "b", "llm-code": "slow"}
    assert swapd.status()["profile"] == "night"
    assert loads == {row["id"]: row["loads"] for row in swapd.status()["models"]}
    assert who(swapd, "a") == "b" and who(swapd, "gpt-4o") == "a"
    explained = swapd.cli("explain", "llm-code")
    assert explained.stdout.startswith("llm-code: profile night pins it to slow\na request for slow ")
    assert put_profile(swapd, "day").status == 404
    assert put_profile(swapd, None).status == 200 and who(swapd, "a") == "a"
    assert swapd.chat("llm-code").status == 404


def test_warm_selector_takes_what_is_loaded_and_else_the_first(swapd: Swapd) -> None:
    swapd.post("/api/unload")
    assert swapd.load("b").status == 200
    assert who(swapd, "warm") == "b"
    assert "selected: b (warm: a is stopped, b is ready)" in swapd.cli("explain", "warm").stdout
    swapd.post("/api/unload")
    assert who(swapd, "warm") == "a"


def test_spillover_selector_goes_on_to_the_next_when_the_first_is_full(swapd: Swapd) -> None:
    assert swapd.load("slow").status == swapd.load("b").status == 200
    asked = len(swapd.fakes("req", "slow"))
    first = swapd.chat_later("spill")
    swapd.wait_fake("req", "slow", asked + 1)
    assert who(swapd, "spill") == "b"
    assert first.result(20).status == 200


def test_no_name_in_the_path_of_an_order_is_not_the_default_model(swapd: Swapd) -> None:
    for order in ("load", "unload"):
        reply = swapd.post(f"/api/models//{order}")
        assert reply.status == 404 and "names no model" in reply.error["message"]


def test_explain_shows_each_step_of_a_name(swapd: Swapd) -> None:
    lines = swapd.cli("explain", "claude-haiku").stdout.splitlines()
    assert lines[0] == "claude-haiku: not a pin of the active profile"
    assert lines[7] == "claude-haiku: the alias claude-*haiku* of a fits it"
    assert lines[8:10] == ["removed from the body: top_k", 'set in the body: {"temperature": 0.2}']
    failed = swapd.cli("explain", "gpt-4")
    assert failed.returncode == 1 and "did you mean 'gpt-4o'?" in failed.stderr
    offline = swapd.cli("explain", "spill", "--devices", str(swapd.machine))
    assert "selected: slow (spillover: slow is stopped, b is stopped)" in offline.stdout


def test_another_swapd_is_a_peer(tmp_path: Path) -> None:
    there = Swapd(tmp_path / "there", {"big": {}, "a": {}}, server={"api_keys": ["theirs"]})
    with there:
        extra = f'[peers.box]\nurl = "{there.url}"\napi_key = "theirs"\n[peers.gone]\nurl = "http://127.0.0.1:1"\n'
        with Swapd(tmp_path / "here", {"a": {}}, extra=extra, server={"api_keys": ["ours"]}) as here:
            _serves_its_peers_models(here, there)
            here.config.write_text(here.config.read_text().replace('"theirs"', '"wrong"'))
            assert here.cli("reload").returncode == 0
            assert (
                here.ask("POST", "/v1/chat/completions", {"model": "box/big"}, KEYS).status == 401
            )  # the peer says so
            here.config.write_text(here.config.read_text().replace('"wrong"', '"theirs"'))
            assert here.cli("reload").returncode == 0
            there.stop()
            error = here.ask("POST", "/v1/chat/completions", {"model": "box/big"}, KEYS)
            assert error.status == 502 and error.error["code"] == "peer_unreachable"
            assert error.error["message"].startswith(f"peer box ({there.url}) cannot be reached")


def _serves_its_peers_models(here: Swapd, there: Swapd) -> None:
    def ids() -> list[str]:
        return [row["id"] for row in here.get("/v1/models", **KEYS).json["data"]]

    wait_for(lambda: ids() == ["a", "box/a", "big"])
    body = {"messages": [], "model": "big", "stream": True}
    answer = here.ask("POST", "/v1/chat/completions", body, KEYS)
    assert answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n")
    assert there.fakes("req", "big") and not here.fakes("start")
    echoed = here.ask("POST", "/v1/responses", {"model": "box/a", "x": 1}, KEYS)
    assert echoed.json["echo"] == {"model": "a", "x": 1} and there.fakes("req", "a")
    assert here.ask("POST", "/v1/chat/completions", {"model": "big"}).status == 401

    def peers() -> dict[str, Any]:
        return {row["id"]: row for row in here.get("/api/status", **KEYS).json["peers"]}

    assert peers()["gone"]["reachable"] is False and "refused" in peers()["gone"]["error"]
    wait_for(lambda: {"id": "big", "state": "loaded"} in peers()["box"]["models"], 15)
    assert "box" in here.cli("status").stdout
    assert "a request for box/big (now loaded) is sent to a peer" in here.cli("explain", "box/big").stdout


def test_a_hang_up_reaches_the_peers_process(tmp_path: Path) -> None:
    knobs = {"TOKENS": 1000, "TOK_S": 20}
    with Swapd(tmp_path / "there", {"big": {"knobs": knobs}}) as there:
        extra = f'[peers.box]\nurl = "{there.url}"\nmodels = ["big"]\n'
        with Swapd(tmp_path / "here", {"a": {}}, extra=extra) as here:
            stream = here.stream("big")
            assert stream.events(1)
            stream.leave()
            there.wait_fake("disconnect", "big")
            wait_for(lambda: there.model("big")["active"] == 0)

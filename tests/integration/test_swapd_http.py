"""The HTTP surface of the real swapd, route by route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.swapd_process import Swapd, wait_for

ODD = "org/model: 4B Q4"


@pytest.fixture(scope="module")
def swapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """One swapd for all tests here: each has models of its own."""
    models = {
        "a": {"ctx": 8192, "description": "the first"},
        ODD: {},
        "hidden": {"unlisted": True},
        "never": {},
        "cmd": {"gguf": "", "cmd": ["FAKE", "--port", "${PORT}", "--alias", "other"], "upstream_model": "other",
                "api_key": "child-key", "vram": "500 MiB"},
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("http")
    models["cmd"]["cmd"] = [str(folder / "llama-server"), "--port", "${PORT}", "--alias", "other"]
    with Swapd(folder, models, server={"cors_origins": ["https://chat.example"], "max_body": "1 MiB"}) as one:
        yield one


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """One with keys."""
    server = {"api_keys": ["user-key"], "admin_keys": ["admin-key"]}
    with Swapd(tmp_path_factory.mktemp("guarded"), {"a": {}}, server=server) as one:
        yield one


def test_probes_and_root_answer(swapd: Swapd) -> None:
    assert swapd.get("/health").json == {"status": "ok"}
    assert swapd.get("/ready").status == swapd.get("/").status == 200
    head = swapd.ask("HEAD", "/")
    assert head.status == 200 and head.body == b""


def test_every_model_routed_kind_of_request_is_relayed(swapd: Swapd) -> None:
    assert swapd.post("/v1/completions", {"model": "a", "prompt": "x"}).json["choices"][0]["text"]
    embeddings = swapd.post("/v1/embeddings", {"model": "a", "input": "x"})
    assert embeddings.json["data"][0]["embedding"] == [0.1, 0.2, 0.3]
    assert swapd.post("/tokenize", {"model": "a", "content": "x"}).json == {"tokens": [1, 2, 3]}
    for path in ("/v1/responses", "/v1/rerank", "/v1/messages/count_tokens", "/apply-template"):
        echo = swapd.post(path, {"model": "a", "x": [1, 2.50]})
        assert echo.json == {"echo": {"model": "a", "x": [1, 2.5]}, "path": path}
    assert swapd.post("/v1/embeddings?model=a", {"input": "x"}).status == 200


def test_json_that_curl_calls_a_form_is_taken_for_what_it_is(swapd: Swapd) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = swapd.ask("POST", "/v1/responses", b'{"model":"a","tools":[{"type":"web_search"}]}', form)
    assert answer.status == 200 and answer.json["echo"]["tools"] == [{"type": "web_search"}]


def test_streams_have_headers_that_no_proxy_buffers(swapd: Swapd) -> None:
    connection = swapd.open_request("a", stream=True)
    response = connection.getresponse()
    assert response.getheader("Content-Type", "").startswith("text/event-stream")
    assert response.getheader("Cache-Control") == "no-cache" and response.getheader("X-Accel-Buffering") == "no"
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()


def test_models_list_has_openai_shape_with_status_and_context(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200
    listed = swapd.get("/v1/models").json
    assert listed["object"] == "list" and [row["id"] for row in listed["data"]] == ["a", ODD, "never", "cmd"]
    first, other = listed["data"][0], listed["data"][2]
    assert first["object"] == "model" and first["status"] == {"value": "loaded"}
    assert first["context_length"] == 8192 and first["meta"]["n_ctx"] == 8192 and first["description"] == "the first"
    assert other["status"] == {"value": "unloaded"}
    assert swapd.get("/models").json["data"][0]["id"] == "a"
    assert swapd.get("/v1/models/a").json["id"] == "a"
    assert swapd.get("/v1/models/no").status == 404
    assert not swapd.fakes("start", "never")


@pytest.mark.parametrize("path", ["org%2Fmodel%3A%204B%20Q4", "org/model:%204B%20Q4"])
def test_ids_with_slash_colon_and_space_work_raw_and_encoded(swapd: Swapd, path: str) -> None:
    assert swapd.chat(ODD).status == 200
    assert swapd.get(f"/v1/models/{path}").json["id"] == ODD
    assert swapd.get(f"/upstream/{path}/props").json["model_alias"] == ODD
    assert swapd.get(f"/api/models/{path}/logs").status == 200
    assert swapd.get(f"/api/explain/{path}").json["model"] == ODD
    assert swapd.post(f"/api/models/{path}/unload").json["id"] == ODD
    assert swapd.post(f"/api/models/{path}/load").json == {"id": ODD, "state": "ready"}
    chat = swapd.post(f"/upstream/{path}/v1/chat/completions", {"messages": []})
    assert chat.status == 200 and chat.json["choices"]


def test_look_ups_never_load(swapd: Swapd) -> None:
    for path in ("props", "slots", "metrics", "health", "models", "v1/models", "lora-adapters"):
        for method in ("GET", "HEAD"):
            answer = swapd.ask(method, f"/upstream/never/{path}")
            assert answer.status in (200, 503), (method, path)
            if answer.status == 503 and method == "GET":
                assert answer.error["code"] == "not_loaded" and answer.headers["retry-after"]
    assert swapd.get("/props?model=never").status in (200, 503)
    assert swapd.get("/slots?model=never").status in (200, 503)
    assert swapd.get("/props").status == 404
    assert swapd.get("/api/explain/never").json["action"] == "start"
    assert swapd.state("never") == "stopped" and not swapd.fakes("start", "never")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"model":3}', b'{"model":""}', b'{"model":null}', b"[]", b"", b'{"model":"no"}']
)
def test_no_model_or_an_unknown_one_is_404_with_the_valid_ids(swapd: Swapd, body: bytes) -> None:
    answer = swapd.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 404 and answer.error["code"] == "model_not_found"
    assert "a" in answer.error["message"] and ODD in answer.error["message"]


def test_unknown_paths_and_methods_are_json(swapd: Swapd) -> None:
    assert swapd.get("/nothing").status == 404 and swapd.get("/nothing").error["code"] == "not_found"
    wrong = swapd.get("/v1/chat/completions")
    assert wrong.status == 405 and wrong.headers["allow"] == "POST" and wrong.error["code"] == "method_not_allowed"
    wrong = swapd.ask("DELETE", "/api/status")
    assert wrong.status == 405 and wrong.error["code"] == "method_not_allowed"
    assert swapd.get("/api/nothing").error["code"] == "not_found"
    assert swapd.post("/api/models/no/load").error["code"] == "model_not_found"
    messages = swapd.post("/v1/messages", {"model": "no"})
    assert messages.status == 404 and messages.json["type"] == "error"
    assert messages.error["type"] == "not_found_error"


def test_body_over_the_limit_is_413(swapd: Swapd) -> None:
    answer = swapd.post("/v1/chat/completions", {"model": "a", "x": "y" * (1 << 20)})
    assert answer.status == 413 and answer.error["code"] == "request_too_large"


def test_every_answer_has_a_request_id_of_its_own(swapd: Swapd) -> None:
    answers = [swapd.get("/health"), swapd.get("/nothing"), swapd.chat("a"), swapd.get("/api/status")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 4


def test_metrics_are_prometheus(swapd: Swapd) -> None:
    assert swapd.chat("a").status == 200
    answer = swapd.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert families and all(name.startswith(("swapd_", "gen_ai_", "process_", "python_")) for name in families)
    assert any(sample.labels.get("model") == "a" for family in families.values() for sample in family.samples)


def test_pages_of_other_sites_get_403_before_anything_happens(swapd: Swapd) -> None:
    body = {"model": "never"}
    for headers in (
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example"},
    ):  # fmt: skip
        for method, path in (("POST", "/v1/chat/completions"), ("POST", "/api/unload"), ("GET", "/api/status")):
            answer = swapd.ask(method, path, body, headers)
            assert answer.status == 403 and answer.error["code"] == "forbidden", (headers, path)
    assert "cors_origins" in swapd.ask("GET", "/", headers={"Origin": "https://evil.example"}).error["message"]
    assert "hosts" in swapd.ask("GET", "/", headers={"Host": "rebound.example"}).error["message"]
    for origin in ("http://localhost:3000", "http://127.0.0.1", "app://obsidian.md", "https://chat.example"):
        answer = swapd.ask("GET", "/v1/models", headers={"Origin": origin})
        assert answer.status == 200 and answer.headers["access-control-allow-origin"] == origin
    assert not swapd.fakes("start", "never")


def test_a_host_may_be_allowed_as_a_refused_request_named_it(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}, server={"hosts": ["box.example:8443"]}) as one:
        for host in ("box.example:8443", "box.example", "BOX.example:9"):
            assert one.ask("GET", "/v1/models", headers={"Host": host}).status == 200
        assert one.ask("GET", "/v1/models", headers={"Host": "other.example:8443"}).status == 403


def test_preflight_is_answered_without_a_key_and_wakes_nothing(guarded: Swapd) -> None:
    wanted = "authorization,x-stainless-os"
    headers = {"Origin": "http://localhost:1", "Access-Control-Request-Headers": wanted,
               "Access-Control-Request-Method": "POST"}  # fmt: skip
    answer = guarded.ask("OPTIONS", "/v1/chat/completions", headers=headers)
    assert answer.status == 204 and answer.headers["access-control-allow-headers"] == wanted
    assert guarded.ask("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://x.example"}).status == 403
    assert not guarded.fakes("start")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer user-key"}, 200),
        ({"x-api-key": "user-key"}, 200),
        ({"Authorization": "Basic dXNlcjp1c2VyLWtleQ=="}, 200),
        ({"Authorization": "Bearer admin-key"}, 200),
    ],
)
def test_keys_open_every_route_but_the_probes(guarded: Swapd, headers: dict[str, str], status: int) -> None:
    for path in ("/v1/models", "/api/status", "/metrics"):
        assert guarded.ask("GET", path, headers=headers).status == status, path
    chat = guarded.ask("POST", "/v1/chat/completions", {"model": "a", "messages": []}, headers)
    assert chat.status == status
    assert guarded.get("/health").status == guarded.get("/ready").status == 200


def test_orders_and_logs_need_an_admin_key(guarded: Swapd) -> None:
    user, admin = {"Authorization": "Bearer user-key"}, {"Authorization": "Bearer admin-key"}
    for method, path in (
        ("POST", "/api/models/a/load"), ("GET", "/api/models/a/logs"), ("POST", "/api/models/a/unload"),
        ("POST", "/api/unload"),
    ):  # fmt: skip
        assert guarded.ask(method, path, headers=user).status == 403, path
        assert guarded.ask(method, path, headers=admin).status == 200, path


def test_childs_own_key_and_name_replace_the_clients(swapd: Swapd) -> None:
    body = {"model": "cmd", "messages": []}
    answer = swapd.ask("POST", "/v1/chat/completions", body, {"Authorization": "Bearer of-the-client"})
    assert answer.status == 200
    asked = swapd.fakes("req", "other")[-1]
    assert asked["auth"] == "Bearer child-key"
    assert swapd.post("/v1/rerank", {"model": "cmd"}).json["echo"] == {"model": "other"}
    assert swapd.chat("a").status == 200 and swapd.fakes("req", "a")[-1]["auth"] == ""


def test_errors_of_the_engine_pass_unchanged(swapd: Swapd) -> None:
    answer = swapd.ask("POST", "/upstream/a/v1/nothing", b"no json")
    assert answer.status == 400 and answer.error["message"] == "parse error"
    answer = swapd.get("/upstream/a/nothing")
    assert answer.status == 404 and answer.error["message"] == "File Not Found"


def test_events_tell_the_status_and_each_change(swapd: Swapd) -> None:
    assert swapd.unload("hidden").status == 200
    connection = swapd.connect()
    connection.request("GET", "/api/events")
    response = connection.getresponse()
    assert response.readline() == b"event: status\n"
    assert {"version", "devices", "models"} <= json.loads(response.readline().removeprefix(b"data: ")).keys()
    assert swapd.load("hidden").status == 200
    states = []
    while states[-1:] != ["ready"]:
        line = response.readline()
        assert line
        if line.startswith(b"data: "):
            change = json.loads(line[6:])
            if change["model"] == "hidden":
                states.append(change["state"])
    assert states == ["starting", "ready"]
    response.close()
    connection.close()


def test_events_tell_how_far_a_load_is(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"LOAD_S": 0.5, "SPEAK_ROUTER": 1}}}) as swapd:
        connection = swapd.connect()
        connection.request("GET", "/api/events")
        response = connection.getresponse()
        assert response.readline() == b"event: status\n"
        swapd.chat_later("a")
        changes: list[dict[str, object]] = []
        while not changes or changes[-1].get("state") != "ready":
            line = response.readline()
            assert line
            if line.startswith(b"data: "):
                changes.append(json.loads(line[6:]))
        told = [progress for change in changes if isinstance(progress := change.get("progress"), float)]
        assert len(told) >= 3 and told == sorted(told)
        assert {change.get("state") for change in changes[1:-1]} == {"starting"}
        response.close()
        connection.close()


def test_status_has_every_promised_field(swapd: Swapd) -> None:
    status = swapd.status()
    assert {"version", "uptime_s", "config", "devices", "ram", "models"} <= status.keys()
    assert status["config"] == {"path": str(swapd.config), "error": None}
    assert {"id", "index", "name", "total_mib", "free_mib", "headroom_mib"} <= status["devices"][0].keys()
    assert {"total_mib", "available_mib", "headroom_mib"} <= status["ram"].keys()
    fields = "id state reason pid progress active queued idle_s loaded_s group reserved_mib measured_mib ram_mib "
    fields += "last_error loads load_s context_saved"
    assert all(set(fields.split()) <= row.keys() for row in status["models"])


def test_hundred_polls_cause_no_request_to_a_child(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200
    wait_for(lambda: swapd.model("a")["idle_s"] is not None)
    before, idle_before = len(swapd.fakes("req")), swapd.model("a")["idle_s"]
    for _ in range(25):
        for path in ("/v1/models", "/api/status", "/metrics", "/upstream/a/props"):
            assert swapd.get(path).status == 200
    assert len(swapd.fakes("req")) == before
    assert swapd.model("a")["idle_s"] > idle_before


def test_idle_connections_outlive_the_engines_keep_alive(tmp_path: Path) -> None:
    """llama-server closes a connection that was idle for a while: no request may meet that."""
    with Swapd(tmp_path, {"a": {}}) as swapd:
        connection = swapd.connect()
        body = json.dumps({"model": "a", "messages": []})
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            assert swapd.unload("a").status == 200  # the process, and every connection to it, has gone
        connection.close()

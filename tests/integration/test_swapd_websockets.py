"""Websockets and uploads through the whole of swapd to a real child process."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.swapd_process import Swapd, wait_for
from tests.unit.gguf.writer import SMALL, TENSORS, gguf

MESSAGE = b"\x81\x05hello"
CLOSE_1001 = b"\x88\x02\x03\xe9"
ODD = "org/model: 4B Q4"
TEMPLATE = "{% if tools %}…{% endif %}<think>"


@pytest.fixture(scope="module")
def swapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    folder = tmp_path_factory.mktemp("ws")
    (folder / "model.gguf").write_bytes(gguf({**SMALL, "tokenizer.chat_template": TEMPLATE}, TENSORS))
    models = {
        "a": {},
        ODD: {"ctx": 2048},
        "never": {"ctx": 4096, "args": ["--mmproj", "none.gguf"]},
        "slow": {"knobs": {"LOAD_S": 3}},
    }
    server = {"drain": "500ms", "header_hold": "200ms", "heartbeat": "100ms", "loading_status": "comment"}
    with Swapd(folder, models, server=server) as one:
        yield one


def opened(swapd: Swapd, path: str) -> tuple[socket.socket, bytes]:
    """A websocket, and the head that answered."""
    host, port = swapd.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=20)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, head
        head += byte
    return sock, head


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, data
        data += piece
    return data


@pytest.mark.parametrize("path", ["a", "org%2Fmodel%3A%204B%20Q4", "org/model:%204B%20Q4"])
def test_websocket_loads_its_model_and_holds_it_until_the_client_leaves(swapd: Swapd, path: str) -> None:
    model = "a" if path == "a" else ODD
    sock, head = opened(swapd, f"/upstream/{path}/ws")
    assert head.startswith(b"HTTP/1.1 101 ") and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    sock.sendall(MESSAGE)
    assert received(sock, len(MESSAGE)) == MESSAGE
    assert swapd.model(model)["active"] == 1
    sock.close()
    wait_for(lambda: swapd.model(model)["active"] == 0)
    assert swapd.fakes("websocket", model) and swapd.wait_fake("disconnect", model)


def test_unload_lets_a_websocket_drain_and_then_closes_it(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}, server={"drain": "3s"}) as swapd:
        sock, _ = opened(swapd, "/upstream/a/ws")
        unload = swapd.unload("a", "?wait=0")
        assert unload.status == 202
        sock.sendall(MESSAGE)  # still served
        assert received(sock, len(MESSAGE)) == MESSAGE
        assert received(sock, 4) == CLOSE_1001 and sock.recv(1) == b""
        sock.close()
        swapd.wait_state("a", "stopped")


def test_child_that_dies_ends_the_websocket(swapd: Swapd) -> None:
    sock, _ = opened(swapd, "/upstream/a/ws")
    os.kill(swapd.model("a")["pid"], 9)
    assert sock.recv(1) == b""
    sock.close()
    wait_for(lambda: swapd.model("a")["active"] == 0)


def test_multipart_upload_larger_than_memory_comfort_arrives_untouched(swapd: Swapd) -> None:
    audio = os.urandom(1 << 20) * 12
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        b'%b\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n' % audio
    )
    connection: http.client.HTTPConnection = swapd.connect()
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    connection.request("POST", "/v1/audio/transcriptions", body, kind)
    reply = connection.getresponse()
    assert reply.status == 200
    assert hashlib.sha256(body).hexdigest().encode() in reply.read()
    connection.close()
    assert os.listdir(swapd.state_dir / "tmp") == []


def test_stopped_model_tells_context_template_and_vision_without_a_start(swapd: Swapd) -> None:
    listed = wait_for(
        lambda: [r for r in swapd.get("/v1/models").json["data"] if "capabilities" in r and r["id"] == "never"]
    )
    (row,) = listed
    assert row["context_length"] == row["max_model_len"] == row["meta"]["n_ctx"] == 4096
    assert row["meta"]["n_ctx_train"] == SMALL["llama.context_length"]
    assert row["capabilities"] == ["completion", "vision", "tools", "thinking"]
    assert row["modalities"] == {"vision": True, "audio": False} and row["status"] == {"value": "unloaded"}
    for path in ("/props?model=never", "/upstream/never/props"):
        props = swapd.get(path).json
        assert props["default_generation_settings"]["n_ctx"] == 4096 and props["model_alias"] == "never"
        assert props["chat_template"] == TEMPLATE and props["model_path"].endswith("model.gguf")
        assert props["modalities"]["vision"] is True
    assert swapd.get("/lora-adapters?model=never").json == []
    assert swapd.get("/upstream/never/v1/models").json["data"][0]["id"] == "never"
    for path in ("/slots?model=never", "/upstream/never/health", "/upstream/never/metrics"):
        answer = swapd.get(path)
        assert (answer.status, answer.error["code"]) == (503, "not_loaded") and answer.headers["retry-after"]
    assert swapd.post("/api/show", {"model": "never"}).json["template"] == TEMPLATE
    assert not swapd.fakes("start", "never")


def test_waiting_chat_stream_is_told_how_far_the_load_is(swapd: Swapd) -> None:
    stream = swapd.stream("slow")
    told = stream.events(1)[0]
    assert told.startswith(": slow: ") and ("loading" in told or "waiting" in told)
    text, whole = stream.rest()
    assert whole and text.endswith("data: [DONE]\n\n")


def test_other_systems_see_what_is_loaded(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200
    running = {row["model"]: row for row in swapd.get("/running").json["running"]}
    assert running["a"]["state"] == "ready" and "llama-server" in running["a"]["cmd"]
    assert "a" in [row["name"] for row in swapd.get("/api/ps").json["models"]]
    assert "model loaded" in swapd.get("/logs").text
    assert swapd.post("/models/unload", {"model": "a"}).json == {"success": True}
    swapd.wait_state("a", "stopped")
    assert swapd.get("/unload").text == "OK" and not swapd.loaded()

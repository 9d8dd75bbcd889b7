"""The embedded engine with the demo's model, through the launcher: started, asked, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swapd.core.endpoint import Upstream
from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.launch import procfs
from swapd.llama import demo
from swapd.llama.instance import LlamaInstance
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.llama.probe import embedded_command, probe

MODEL = demo.demo_model_path()
pytestmark = pytest.mark.skipif(bool(demo.what_is_missing()), reason=demo.what_is_missing())


def quiet(_fraction: float, _stage: str) -> None:
    return None


def launcher_for(tmp_path: Path, binary: BinarySpec, **fields: object) -> LlamaLauncher:
    spec = LaunchSpec("smol", gguf=str(MODEL), binary=binary, ctx_tokens=2048, **fields)  # type: ignore[arg-type]
    return LlamaLauncher({"smol": spec}, Surroundings(tmp_path, dict(os.environ)), resolve_gpus=lambda _model: None)


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[LlamaInstance]:
    launcher = launcher_for(tmp_path, BinarySpec("embedded"))
    instance = await launcher.start("smol", 1)
    report = await asyncio.wait_for(instance.ready(quiet), 30)
    assert report is None, report
    yield instance
    await instance.kill()
    launcher.close()


async def connect(upstream: Upstream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if upstream.path:
        return await asyncio.open_unix_connection(upstream.path)
    return await asyncio.open_connection(upstream.host, upstream.port)


async def ask(upstream: Upstream, path: str, body: dict[str, object] | None = None) -> str:
    """Everything the engine answers, as text."""
    reader, writer = await connect(upstream)
    data = json.dumps(body).encode() if body else b""
    method = "POST" if body else "GET"
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode())
    writer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    answer = (await reader.read(-1)).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def begin_stream(upstream: Upstream) -> asyncio.StreamWriter:
    """A long stream of which the first piece has come."""
    reader, writer = await connect(upstream)
    body = json.dumps({"stream": True, "max_tokens": 1500, "ignore_eos": True,
                       "messages": [{"role": "user", "content": "Tell me a story."}]}).encode()  # fmt: skip
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"data: ")
    return writer


CHAT: dict[str, object] = {"max_tokens": 4, "messages": [{"role": "user", "content": "Say hi."}]}


async def test_it_answers_on_a_unix_socket_with_slots_and_metrics(embedded: LlamaInstance) -> None:
    assert embedded.upstream.path and embedded.n_ctx == 2048 and not embedded.degraded
    assert '"completion_tokens":4' in await ask(embedded.upstream, "/v1/chat/completions", CHAT)
    assert '"is_processing"' in await ask(embedded.upstream, "/slots")
    assert "llamacpp:prompt_tokens_total" in await ask(embedded.upstream, "/metrics")
    environment = procfs.environment(embedded.pid)
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["GGML_VK_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("connection", ["closed first", "left open"])
async def test_it_is_gone_at_once_in_mid_stream(embedded: LlamaInstance, connection: str) -> None:
    writer = await begin_stream(embedded.upstream)
    if connection == "closed first":
        writer.transport.abort()
    begun = time.monotonic()
    assert await embedded.stop("forced")
    assert time.monotonic() - begun < 1
    assert procfs.start_ticks(embedded.pid) == 0
    writer.transport.abort()


async def test_unknown_flag_is_an_error_that_says_so(tmp_path: Path) -> None:
    launcher = launcher_for(tmp_path, BinarySpec("embedded"), args=("--expert-pool", "8"))
    report = await (await launcher.start("smol", 1)).ready(quiet)
    assert report is not None and report.cause == "bad_flag" and "--expert-pool" in report.message
    launcher.close()


async def test_missing_model_is_named(tmp_path: Path) -> None:
    spec = LaunchSpec("smol", gguf=str(tmp_path / "no.gguf"), binary=BinarySpec("embedded"))
    launcher = LlamaLauncher({"smol": spec}, Surroundings(tmp_path, dict(os.environ)), resolve_gpus=lambda _model: None)
    report = await (await launcher.start("smol", 1)).ready(quiet)
    assert report is not None and report.cause == "missing_file"
    launcher.close()


def test_probe_finds_what_it_can_do() -> None:
    report = probe(BinarySpec("embedded"))
    assert report.problem == "" and report.version.startswith("xllamacpp")
    assert report.unix_socket and report.fit and report.slot_save_path and not report.router


def test_it_ends_when_its_stdin_closes_and_on_sigterm_while_it_loads() -> None:
    def start() -> subprocess.Popen[bytes]:
        command = [*embedded_command(), "-m", str(MODEL), "--host", "127.0.0.1", "--port", "0"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    with start() as engine:
        assert engine.stdin and engine.stderr
        for line in engine.stderr:
            if b"ready on" in line:
                break
        engine.stdin.close()
        assert engine.wait(1) == 1
    with start() as engine:
        assert engine.stderr
        engine.stderr.readline()
        engine.terminate()
        assert engine.wait(1) == -signal.SIGTERM


def test_help_and_version_do_not_load_the_engine() -> None:
    code = (
        "import sys; from swapd.llama.embedded import main; main([sys.argv[1]]); assert 'xllamacpp' not in sys.modules"
    )
    for word in ("--help", "--version"):
        subprocess.run([sys.executable, "-c", code, word], check=True, stdout=subprocess.DEVNULL)

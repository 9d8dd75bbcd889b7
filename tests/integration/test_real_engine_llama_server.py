"""A real llama-server (``LLAMA_SERVER_BIN``) with the demo's model, through the launcher."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.launch import procfs
from swapd.llama import demo
from swapd.llama.instance import LlamaInstance
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.llama.probe import probe
from tests.integration.test_embedded_engine import CHAT, ask, begin_stream, quiet

BINARY = os.environ.get("LLAMA_SERVER_BIN", "")
MODEL = demo.demo_model_path()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not BINARY, reason="LLAMA_SERVER_BIN names no llama-server"),
    pytest.mark.skipif(MODEL is None, reason=f"no model: {demo.INSTALL_MODEL}"),
]


@pytest.fixture
def launcher(tmp_path: Path) -> LlamaLauncher:
    return launcher_for(tmp_path)


def launcher_for(tmp_path: Path, **fields: object) -> LlamaLauncher:
    defaults: dict[str, object] = {"gguf": str(MODEL), "binary": BinarySpec("real", BINARY), "gpus": ()}
    spec = LaunchSpec("smol", **{**defaults, **fields})  # type: ignore[arg-type]
    return LlamaLauncher({"smol": spec}, Surroundings(tmp_path, dict(os.environ)), resolve_gpus=lambda _model: ())


async def started(launcher: LlamaLauncher, progress: list[float] | None = None) -> LlamaInstance:
    instance = await launcher.start("smol", 1)
    seen = progress if progress is not None else []
    report = await asyncio.wait_for(instance.ready(lambda fraction, _stage: seen.append(fraction)), 60)
    assert report is None, report
    return instance


def test_probe_knows_this_build() -> None:
    report = probe(BinarySpec("real", BINARY))
    assert report.problem == "" and report.unix_socket and report.fit and report.slot_save_path and report.router


async def test_it_starts_answers_and_is_gone_in_a_second(launcher: LlamaLauncher) -> None:
    progress: list[float] = []
    instance = await started(launcher, progress)
    assert instance.upstream.path and instance.n_ctx == 8192 and progress[-1] == 1.0
    assert '"completion_tokens":4' in await ask(instance.upstream, "/v1/chat/completions", CHAT)
    begun = time.monotonic()
    assert await instance.stop("unload")
    assert time.monotonic() - begun < 1
    assert (await instance.exited()).status == "exit code 0"
    launcher.close()


async def test_it_is_gone_in_a_second_in_mid_stream(launcher: LlamaLauncher) -> None:
    instance = await started(launcher)
    writer = await begin_stream(instance.upstream)
    writer.transport.abort()
    begun = time.monotonic()
    assert await instance.stop("forced")
    assert time.monotonic() - begun < 1
    launcher.close()


async def test_a_stop_right_after_ready_is_never_lost(launcher: LlamaLauncher) -> None:
    for generation in range(3):
        instance = await launcher.start("smol", generation)
        assert await instance.ready(quiet) is None
        begun = time.monotonic()
        assert await instance.stop("at once")
        assert time.monotonic() - begun < 1.5
    launcher.close()


async def test_a_stop_while_it_loads_is_at_once(launcher: LlamaLauncher) -> None:
    instance = await launcher.start("smol", 1)
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    assert await instance.stop("unload")
    assert time.monotonic() - begun < 0.5
    launcher.close()


async def test_it_serves_on_a_port_without_the_router_protocol(tmp_path: Path) -> None:
    cmd = (BINARY, "-m", str(MODEL), "--port", "${PORT}", "-c", "2048")
    launcher = launcher_for(tmp_path, gguf="", binary=None, cmd=cmd)
    instance = await started(launcher)
    assert procfs.listens(instance.pid, instance.upstream.port)
    assert '"completion_tokens":4' in await ask(instance.upstream, "/v1/chat/completions", CHAT)
    assert await instance.stop("unload")
    launcher.close()


@pytest.mark.parametrize(
    ("fields", "cause"),
    [({"args": ("--bogus",)}, "bad_flag"), ({"gguf": "/nonexistent.gguf"}, "missing_file"),
     ({"gguf": "/etc/hostname"}, "bad_file")],
)  # fmt: skip
async def test_causes_of_death_are_told_apart(tmp_path: Path, fields: dict[str, object], cause: str) -> None:
    launcher = launcher_for(tmp_path, **fields)
    report = await asyncio.wait_for((await launcher.start("smol", 1)).ready(quiet), 10)
    assert report is not None and report.cause == cause, report
    launcher.close()


async def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    assert MODEL is not None
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(MODEL.read_bytes().replace(b"llama", b"zzama", 1))
    launcher = launcher_for(tmp_path, gguf=str(strange))
    report = await asyncio.wait_for((await launcher.start("smol", 1)).ready(quiet), 10)
    assert report is not None and report.cause == "unsupported_architecture", report
    launcher.close()


PARENT = """
import asyncio, os, sys
from pathlib import Path
from tests.integration.test_real_engine_llama_server import launcher_for

async def main():
    instance = await launcher_for(Path(sys.argv[1])).start("smol", 1)
    print(instance.pid, flush=True)
    if sys.argv[2] == "ready":
        await instance.ready(lambda f, s: None)
        print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["ready", "loading"])
def test_kill_9_of_swapd_leaves_no_llama_server(tmp_path: Path, when: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), when], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        if when == "ready":
            assert parent.stdout.readline() == b"ready\n"
        parent.kill()
    deadline = time.monotonic() + 1
    while procfs.start_ticks(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert procfs.start_ticks(child) == 0

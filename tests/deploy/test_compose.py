"""The image and the compose files in use: built, started, stopped, killed, misconfigured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import debian
from tests.deploy.docker_host import UBUNTU, Host
from tests.integration.swapd_process import wait_for

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
CONFIG = """
[models.small]
gguf = "/srv/models/small.gguf"
args = "--ctx-size 2048"
"""
SOURCE = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.16)
project(engine C)
string(REPLACE ";" "," FLAGS "cuda=${GGML_CUDA} for=${CMAKE_CUDA_ARCHITECTURES}")
add_library(ggml SHARED ggml.c)
target_compile_definitions(ggml PRIVATE "FLAGS=\\"${FLAGS}\\"")
add_executable(llama-server server.c)
target_link_libraries(llama-server ggml)
""",
    "ggml.c": "const char *flags(void) { return FLAGS; }\n",
    "server.c": "#include <stdio.h>\nconst char *flags(void);\nint main(void) { puts(flags()); return 0; }\n",
}


def chat(host: Host, **more: object) -> dict[str, object]:
    body = {"model": "small", "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello"}], **more}
    with host.ask("/v1/chat/completions", body) as answer:
        found: dict[str, object] = json.load(answer)
    return found


@pytest.fixture
def up(host: Host) -> Iterator[Host]:
    """swapd as compose starts it, healthy."""
    host.configure(CONFIG)
    host.compose("up", "--detach", "--no-build")
    host.wait("healthy")
    yield host
    host.compose("down", "--volumes")


def test_real_model_answers_from_a_read_only_root_as_a_user_without_privileges(up: Host) -> None:
    assert chat(up)["usage"]["completion_tokens"] > 0
    status = up.compose("exec", "swapd", "cat", "/proc/1/status")
    assert "Uid:\t10001\t" in status and "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    assert "Read-only" in up.compose("exec", "swapd", "sh", "-c", "touch /x 2>&1 || true")
    assert "small" in up.compose("exec", "swapd", "swapd", "status")
    assert "start " in up.compose("logs", "swapd")


def test_stop_lets_a_stream_end_and_leaves_with_0(up: Host) -> None:
    body = {"model": "small", "stream": True, "max_tokens": 30, "messages": [{"role": "user", "content": "A story"}]}
    with up.ask("/v1/chat/completions", body) as stream:
        stream.readline()
        begun = time.monotonic()
        up.compose("stop", timeout_s=95)
        assert stream.read().rstrip().endswith(b"data: [DONE]")
    assert time.monotonic() - begun < 60
    state = up.state()
    assert state["ExitCode"] == 0 and not state["OOMKilled"]


def test_killed_swapd_is_started_again(up: Host) -> None:
    chat(up)
    if not Path(f"/proc/{up.state()['Pid']}").exists():
        pytest.skip("the daemon's processes are not here")
    os.kill(up.state()["Pid"], signal.SIGKILL)
    up.wait("healthy")
    assert up.state()["Restarts"] == 1
    assert chat(up)["usage"]
    assert len(up.docker("top", up.container).splitlines()) == 3, "a heading, swapd, one engine"


def test_mistake_pauses_longer_each_time_and_mends_when_it_is_mended(up: Host) -> None:
    up.configure("bogus = 1\n")
    up.compose("restart", "swapd")
    time.sleep(15)
    end = time.monotonic() + 90
    while not (state := up.state())["Restarting"]:
        assert time.monotonic() < end, state
        time.sleep(0.1)
    assert 1 <= state["Restarts"] <= 9 and state["ExitCode"] == 2
    assert "bogus: no such key" in up.compose("logs", "swapd")
    up.configure(CONFIG)
    up.wait("healthy", 90)
    assert chat(up)["usage"]


def test_memory_limit_counts_as_the_machines_ram(up: Host) -> None:
    up.compose("up", "--detach", "--no-build", SWAPD_MEMORY="2g")
    up.wait("healthy")
    with up.ask("/api/status") as answer:
        status = json.load(answer)
    assert status["ram"]["total_mib"] == 2048


@pytest.mark.parametrize("overlays", [("",), ("cpu",), ("vulkan",), ("metrics", "webui")], ids="+".join)
def test_docker_accepts_the_compose_files(host: Host, overlays: tuple[str, ...]) -> None:
    names = ["docker/compose.yaml", *(f"docker/compose.{name}.yaml" for name in overlays if name)]
    found = json.loads(host.docker("compose", *(w for n in names for w in ("-f", n)), "config", "--format", "json"))
    asked = found["services"]["swapd"]["deploy"]["resources"].get("reservations", {}).get("devices")
    assert bool(asked) is not bool({"cpu", "vulkan"} & set(overlays)), (
        "NVIDIA's reservation goes where it cannot be met"
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A stand-in for an engine's repository, at an address that a build reaches."""
    debian.require({"git": "git"})
    folder = tmp_path_factory.mktemp("git")
    for name, text in SOURCE.items():
        (folder / "engine" / name).parent.mkdir(exist_ok=True)
        (folder / "engine" / name).write_text(text)
    git = ["git", "-C", str(folder / "engine"), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "b1"]):
        debian.done([*git, *words])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serving = ["git", "daemon", f"--base-path={folder}", "--export-all", "--listen=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(serving, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: listens(port), 10, "git daemon does not listen")
        yield f"git://127.0.0.1:{port}/engine"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("backend", "flags"),
    [("cpu", "cuda= for="), ("vulkan", "cuda= for="), ("cuda", "cuda=ON for=75,86,89,120")],
)
def test_engines_are_built_and_found_by_their_names(host: Host, source: str, backend: str, flags: str) -> None:
    args = {"BACKEND": backend, "UBUNTU_IMAGE": UBUNTU, "CUDA_DEVEL_IMAGE": UBUNTU, "CUDA_RUNTIME_IMAGE": UBUNTU,
            "UPSTREAM_REPOSITORY": source, "UPSTREAM_REF": "b1", "IK_REPOSITORY": "",
            "FORK_NAME": "mine", "FORK_REPOSITORY": source, "JOBS": "1"}  # fmt: skip
    words = [word for name, value in args.items() for word in ("--build-arg", f"{name}={value}")]
    tag = f"swapd-test:{backend}"
    host.docker("build", "--network", "host", "-f", "docker/Dockerfile", *words, "-t", tag, ".", timeout_s=600)

    def inside(script: str) -> str:
        return host.docker("run", "--rm", "--read-only", "--entrypoint", "sh", tag, "-c", script)

    assert inside("llama-server; /opt/llama/mine/bin/llama-server").splitlines() == [flags, flags]
    assert inside("ls /opt/llama; id -u").split() == ["mine", "upstream", "10001"]
    assert "no mistakes" in host.docker("run", "--rm", tag, "check")

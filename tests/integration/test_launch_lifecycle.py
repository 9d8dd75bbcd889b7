"""Real child processes (a fake llama-server) through the launcher: start, ready, stop, die."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.errors import StartFailed
from swapd.launch import procfs
from swapd.llama.instance import LlamaInstance
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.supervisor.ports import Instance, Launcher
from tests.fakes import fake_llama_server
from tests.integration.swapd_process import log_rows

Bench = Callable[..., "LlamaLauncher"]


def quiet(_fraction: float, _stage: str) -> None:
    return None


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def events(path: Path, kind: str = "") -> list[dict[str, Any]]:
    rows = log_rows(path)
    return [row for row in rows if not kind or row["ev"] == kind]


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_llama_server.install(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


@pytest.fixture
def make(tmp_path: Path, fake: str, gguf: str) -> Iterator[Callable[..., LlamaLauncher]]:
    """A launcher of one model ``a`` whose child gets ``knobs`` as environment."""
    made: list[LlamaLauncher] = []

    def build(
        *, inherited: Mapping[str, str] | None = None, gpus: tuple[str, ...] | None = None, nofile_soft: int = 0,
        binary_env: Mapping[str, str] | None = None, knobs: Mapping[str, object] | None = None, **fields: Any,
    ) -> LlamaLauncher:  # fmt: skip
        env = {name: str(value) for name, value in (knobs or {}).items()} | {"FAKE_LOG": str(tmp_path / "log")}
        fields.setdefault("stop_grace_s", 5.0)
        if "cmd" not in fields:
            fields.setdefault("gguf", gguf)
            fields.setdefault("binary", BinarySpec("fake", fake, env=binary_env or {}))
        specs = {"a": LaunchSpec("a", env=env, **fields)}
        around = Surroundings(tmp_path / "state", dict(os.environ) if inherited is None else inherited, nofile_soft)
        launcher = LlamaLauncher(specs, around, resolve_gpus=lambda _model: gpus)
        made.append(launcher)
        return launcher

    yield build
    for launcher in made:
        launcher.close()


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """No descriptor more after a test than before it."""
    await asyncio.sleep(0)
    before = open_fds()
    yield
    for _ in range(50):
        await asyncio.sleep(0.01)
        if open_fds() <= before:
            return
    assert open_fds() <= before


pytestmark = pytest.mark.usefixtures("no_leaks")


async def started(launcher: LlamaLauncher) -> LlamaInstance:
    instance = await launcher.start("a", 1)
    report = await asyncio.wait_for(instance.ready(quiet), 10)
    assert report is None, report
    return instance


def test_launcher_and_instance_satisfy_the_ports(make: Bench) -> None:
    launcher: Launcher = make()
    kind: type[Instance] = LlamaInstance
    assert launcher and kind


async def test_a_model_starts_answers_and_stops(make: Bench, tmp_path: Path) -> None:
    instance = await started(make())
    path = instance.upstream.path
    assert len(path) <= 90 and Path(path).is_socket()
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    assert instance.n_ctx == 32768 and instance.degraded == ""
    begun = time.monotonic()
    assert await instance.stop("test")
    assert time.monotonic() - begun < 1
    assert not Path(path).exists()
    assert (await instance.exited()).status == "exit code 0"
    assert [row["ev"] for row in events(tmp_path / "log")] == ["start", "ready", "term", "exit"]


async def test_swapd_decides_host_port_alias_fit_layers_and_context(make: Bench, tmp_path: Path, gguf: str) -> None:
    instance = await started(make(args=("--jinja",)))
    await instance.stop("test")
    argv = events(tmp_path / "log", "start")[0]["argv"][1:]
    expected = ["--jinja", "-m", gguf, "--host", instance.upstream.path, "--alias", "a", "--fit", "off"]
    assert argv == [*expected, "-ngl", "999", "-c", "32768"]


async def test_environment_is_scrubbed_and_gpus_are_hidden(make: Bench, tmp_path: Path) -> None:
    leaks = {
        "LLAMA_ARG_HOST": "0.0.0.0", "SWAPD_KEY": "k", "NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": "/x",
        "NOTIFY_SOCKET": "/n",
    }  # fmt: skip
    instance = await started(make(inherited={"PATH": "/usr/bin:/bin", "HOME": "/h", **leaks}, gpus=()))
    await instance.stop("test")
    env = events(tmp_path / "log", "start")[0]["env"]
    hidden = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"]
    assert [env.get(name) for name in hidden] == ["", "", "", ""]
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and env["HOME"] == "/h"
    assert not set(leaks) & set(env)


async def test_gpu_order_is_kept(make: Bench, tmp_path: Path) -> None:
    instance = await started(make(gpus=("GPU-b", "GPU-a")))
    await instance.stop("test")
    assert events(tmp_path / "log", "start")[0]["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"


async def test_child_is_killed_before_swapd_and_gets_its_own_file_limit(make: Bench) -> None:
    instance = await started(make(nofile_soft=512))
    own = procfs.own_oom_score_adj()
    assert int(Path(f"/proc/{instance.pid}/oom_score_adj").read_text()) == min(1000, own + 200)
    limits = Path(f"/proc/{instance.pid}/limits").read_text()
    assert next(line for line in limits.splitlines() if "open files" in line).split()[3] == "512"
    assert os.getsid(instance.pid) == instance.pid
    await instance.stop("test")


async def test_prepared_shim_is_used(make: Bench) -> None:
    launcher = make()
    shim = await launcher.prepare("a")
    instance = await launcher.start("a", 1, shim)
    assert instance.pid == shim.pid
    assert await instance.ready(quiet) is None
    await instance.stop("test")


async def test_dead_prepared_shim_is_replaced(make: Bench) -> None:
    launcher = make()
    shim = await launcher.prepare("a")
    await shim.discard()
    instance = await launcher.start("a", 1, shim)
    assert await instance.ready(quiet) is None
    await instance.stop("test")


async def test_router_protocol_reports_progress_and_ends_by_its_line(make: Bench, tmp_path: Path) -> None:
    launcher = make(knobs={"SPEAK_ROUTER": 1, "LOAD_S": 0.3})
    instance = await launcher.start("a", 1)
    seen: list[float] = []
    assert await instance.ready(lambda fraction, _stage: seen.append(fraction)) is None
    assert seen == sorted(seen) and len(seen) >= 3 and seen[-1] == 1.0
    assert await instance.stop("test")
    assert events(tmp_path / "log", "exit")[0]["why"] == "told by router"


async def test_build_without_unix_sockets_gets_a_fresh_port_each_start(make: Bench) -> None:
    launcher = make(binary_env={"FAKE_LACKS": "unix,fit,router"})
    ports = set()
    for generation in (1, 2):
        instance = await launcher.start("a", generation)
        assert await instance.ready(quiet) is None
        assert instance.upstream.host == "127.0.0.1"
        ports.add(instance.upstream.port)
        await instance.stop("test")
    assert len(ports) == 2


async def test_command_model_with_own_health_and_stop_command(make: Bench, tmp_path: Path, fake: str) -> None:
    stop = (sys.executable, "-ISc", "import os,sys; os.kill(int(sys.argv[1]), 9); print('stopped by', sys.argv[2])",
            "${PID}", "${MODEL_ID}")  # fmt: skip
    launcher = make(cmd=(fake, "--port", "${PORT}", "--alias", "${MODEL_ID}"), health="/props", stop_cmd=stop)
    instance = await started(launcher)
    assert await instance.stop("test")
    assert (await instance.exited()).status == "signal SIGKILL"
    assert events(tmp_path / "log", "term") == []


async def test_hanging_stop_command_is_bounded_by_the_grace(make: Bench, fake: str) -> None:
    launcher = make(cmd=(fake, "--host", "${SOCKET}"), stop_cmd=("sleep", "60"), stop_grace_s=0.3)
    instance = await started(launcher)
    begun = time.monotonic()
    assert await instance.stop("test")
    assert time.monotonic() - begun < 1.5


async def test_stranger_on_the_port_is_not_taken_for_the_child(make: Bench, fake: str, monkeypatch: Any) -> None:
    stranger = await asyncio.create_subprocess_exec(
        fake, "--port", str(port := free_port()), env={"PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    monkeypatch.setattr("swapd.llama.launcher._free_port", lambda: port)
    try:
        await until(lambda: procfs.listens(stranger.pid, port))
        launcher = make(cmd=(fake, "--port", "${PORT}"))
        instance = await launcher.start("a", 1)
        report = await asyncio.wait_for(instance.ready(quiet), 5)
        assert report is not None and report.cause == "port_in_use"
    finally:
        stranger.kill()
        await stranger.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_exit_while_loading_is_told_at_once_with_the_last_words(make: Bench) -> None:
    launcher = make(knobs={"LOAD_EXIT": 1, "STDERR": "\x1b[31merror: invalid argument: --bogus\x1b[0m"})
    instance = await launcher.start("a", 1)
    begun = time.monotonic()
    report = await instance.ready(quiet)
    assert time.monotonic() - begun < 1
    assert report is not None and (report.cause, report.status) == ("bad_flag", "exit code 1")
    assert "error: invalid argument: --bogus" in report.message and "\x1b" not in report.message


async def test_exit_0_before_ready_is_named(make: Bench) -> None:
    instance = await make(cmd=("true",)).start("a", 1)
    report = await instance.ready(quiet)
    assert report is not None and report.cause == "exited_before_ready" and "exited 0 before ready" in report.message


@pytest.mark.parametrize(
    ("content", "mode", "cause"),
    [("", 0o755, "not_executable"), ("text", 0o644, "not_executable"), (None, 0, "missing_file")],
)
async def test_program_that_cannot_run_is_named(
    make: Bench, tmp_path: Path, content: str, mode: int, cause: str
) -> None:
    path = tmp_path / "llama-server"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    text = {"missing_file": "no such file", "not_executable": "is not executable|exec format error"}[cause]
    for launcher in (make(binary=BinarySpec("x", str(path))), make(cmd=(str(path),))):
        with pytest.raises(StartFailed, match=text) as caught:
            await launcher.start("a", 1)
        assert caught.value.cause == cause


@pytest.mark.parametrize("router", ["", "1"])
async def test_stop_while_loading_is_at_once(make: Bench, router: str) -> None:
    launcher = make(knobs={"LOAD_S": 60, "SPEAK_ROUTER": router})
    instance = await launcher.start("a", 1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(instance.ready(quiet))
        await asyncio.sleep(0.15)
        begun = time.monotonic()
        assert await instance.stop("unloaded")
        report = await waiting
    assert time.monotonic() - begun < 1
    assert report is not None and report.cause == "stopped"


async def test_load_without_a_sign_of_life_times_out(make: Bench) -> None:
    launcher = make(knobs={"LOAD_S": 60, "LOAD_MUTE": 1}, load_timeout_s=0.4)
    instance = await launcher.start("a", 1)
    report = await asyncio.wait_for(instance.ready(quiet), 5)
    assert report is not None and report.cause == "timeout"


async def test_load_that_shows_progress_may_take_longer_than_the_timeout(make: Bench) -> None:
    launcher = make(knobs={"LOAD_S": 2.5, "SPEAK_ROUTER": 1}, load_timeout_s=1.5)
    await (await started(launcher)).stop("test")


async def test_term_is_ignored_then_the_group_is_killed(make: Bench, tmp_path: Path) -> None:
    instance = await started(make(knobs={"IGNORE_TERM": 1}, stop_grace_s=0.4))
    begun = time.monotonic()
    assert await instance.stop("test")
    assert 0.4 <= time.monotonic() - begun < 1.4
    assert (await instance.exited()).status == "signal SIGKILL"
    assert events(tmp_path / "log", "term")


async def test_process_that_survives_kill_is_given_up_in_bounded_time(make: Bench, monkeypatch: Any) -> None:
    instance = await started(make(knobs={"IGNORE_TERM": 1}, stop_grace_s=0.1, kill_timeout_s=0.2))
    with monkeypatch.context() as patch:
        patch.setattr("swapd.launch.process.Process.signal_group", lambda *_: None)
        begun = time.monotonic()
        assert not await instance.stop("test")
        assert time.monotonic() - begun < 1
    await instance.kill()
    assert (await instance.exited()).status == "signal SIGKILL"


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def test_kill_takes_grandchildren_along(make: Bench, fake: str) -> None:
    script = "import os,sys,time\nif os.fork(): os.execv(sys.argv[1], sys.argv[1:])\ntime.sleep(60)"
    launcher = make(cmd=(sys.executable, "-ISc", script, fake, "--host", "${SOCKET}"))
    instance = await started(launcher)
    members = procfs.session_members(instance.pid)
    assert len(members) == 2
    assert await instance.kill()
    await until(lambda: not procfs.session_members(instance.pid))  # its end is ordered; it may wait for a CPU


async def test_death_of_a_ready_child_is_reported_with_its_cause(make: Bench) -> None:
    instance = await started(make())
    os.kill(instance.pid, signal.SIGKILL)
    report = await asyncio.wait_for(instance.exited(), 2)
    assert (report.status, report.cause) == ("signal SIGKILL", "killed")


async def test_smaller_context_than_configured_is_degraded(make: Bench) -> None:
    instance = await started(make(ctx_tokens=8192, knobs={"N_CTX": 4096}))
    assert instance.n_ctx == 4096 and "8192 configured" in instance.degraded
    await instance.stop("test")


async def test_childs_own_key_is_sent_with_the_probe(make: Bench, fake: str) -> None:
    cmd = (fake, "--host", "${SOCKET}", "--api-key", "k1")
    await (await started(make(cmd=cmd, health="/props", api_key="k1"))).stop("test")


async def test_log_survives_restarts_and_can_be_followed(make: Bench) -> None:
    launcher = make(knobs={"STDERR": "hello from the child"})
    for _ in range(2):
        await (await started(launcher)).stop("test")
    assert launcher.log("a").count(b"hello from the child") == 2
    follower = launcher.follow("a")
    assert b"hello" in await anext(follower)
    launcher.close()
    assert [chunk async for chunk in follower] == []


async def test_a_flood_of_output_keeps_memory_flat(make: Bench) -> None:
    launcher = make(knobs={"LOG_BYTES": 100 << 20})
    before = procfs.rss_pages(os.getpid())
    instance = await started(launcher)
    assert len(launcher.log("a")) == 1 << 20
    assert (procfs.rss_pages(os.getpid()) - before) * 4096 < 16 << 20
    await instance.stop("test")

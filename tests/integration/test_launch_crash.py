"""swapd dies without a word: its children go with it, and the next start ends what was left, and only that."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd.launch import procfs, state_file
from tests.fakes import fake_llama_server

Parents = list[subprocess.Popen[str]]

# Stands in for swapd: starts model "a" and prints the child's pid; "ready" when it is.
PARENT = """
import asyncio, os, sys
from pathlib import Path
from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.llama.launcher import LlamaLauncher, Surroundings

async def main():
    state, fake, load_s, *cmd = sys.argv[1:]
    env = {"LOAD_S": load_s}
    what = {"cmd": tuple(cmd)} if cmd else {"gguf": "x", "binary": BinarySpec("f", fake)}
    spec = LaunchSpec("a", env=env, **what)
    launcher = LlamaLauncher({"a": spec}, Surroundings(Path(state), dict(os.environ)), resolve_gpus=lambda _: None)
    instance = await launcher.start("a", 1)
    print(instance.pid, os.path.dirname(instance.upstream.path), flush=True)
    if load_s == "0":
        await instance.ready(lambda f, s: None)
        print("ready", flush=True)
    elif load_s == "shim":
        await launcher.prepare("a")
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_llama_server.install(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def parents() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for parent in started:
        parent.kill()
        parent.wait()
        if parent.stdout:
            parent.stdout.close()


def start_parent(parents: Parents, *args: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *args], stdout=subprocess.PIPE, text=True)
    parents.append(parent)
    assert parent.stdout
    return parent, int(parent.stdout.readline().split()[0])


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while procfs.start_ticks(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return procfs.start_ticks(pid) == 0


@pytest.mark.parametrize("load_s", ["0", "30"])
def test_kill_9_of_swapd_leaves_no_child(parents: Parents, tmp_path: Path, fake: str, load_s: str) -> None:
    parent, child = start_parent(parents, str(tmp_path), fake, load_s)
    if load_s == "0":
        assert parent.stdout and parent.stdout.readline() == "ready\n"
    parent.kill()
    assert gone_within(child, 1.0)
    assert state_file.sweep(tmp_path) == []
    assert list((tmp_path / "children").iterdir()) == []


def test_kill_9_leaves_no_waiting_shim(parents: Parents, tmp_path: Path) -> None:
    parent, child = start_parent(parents, str(tmp_path), "", "shim", "sleep", "60")
    deadline = time.monotonic() + 5
    while len(children := recorded(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    parent.kill()
    assert len(children) == 2 and child in children
    assert all(gone_within(pid, 1.0) for pid in children)


def recorded(state: Path) -> list[int]:
    files = list((state / "children").glob("*.json"))
    return [row["pid"] for file in files for row in json.loads(file.read_text())["children"]]


ESCAPEE = "import os, time\nif os.fork(): time.sleep(60)\ntime.sleep(60)"


def test_next_start_ends_the_grandchildren_of_a_dead_swapd(parents: Parents, tmp_path: Path) -> None:
    parent, child = start_parent(parents, str(tmp_path), "", "30", sys.executable, "-ISc", ESCAPEE)
    deadline = time.monotonic() + 5
    while len(members := procfs.session_members(child)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    assert gone_within(child, 1.0)
    (grandchild,) = [pid for pid in members if pid != child]
    assert procfs.start_ticks(grandchild)  # the death signal does not reach it
    lines = state_file.sweep(tmp_path)
    assert len(lines) == 1 and str(grandchild) in lines[0]
    assert gone_within(grandchild, 1.0)


def test_children_of_a_living_swapd_are_left_alone(parents: Parents, tmp_path: Path, fake: str) -> None:
    _, child = start_parent(parents, str(tmp_path), fake, "30")
    assert state_file.sweep(tmp_path) == []
    assert procfs.start_ticks(child)


@pytest.mark.parametrize("wrong", ["nonce", "start_ticks", "boot", "pid_namespace"])
def test_a_process_that_does_not_match_in_everything_survives(tmp_path: Path, wrong: str) -> None:
    with subprocess.Popen(["sleep", "30"], env={"SWAPD_NONCE": "mine"}, start_new_session=True) as stranger:
        try:
            time.sleep(0.05)
            write_state(tmp_path, stranger.pid, wrong)
            assert state_file.sweep(tmp_path) == []
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_process_that_matches_in_everything_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"], env={"SWAPD_NONCE": "mine"}, start_new_session=True) as orphan:
        time.sleep(0.05)
        write_state(tmp_path, orphan.pid, "")
        assert len(state_file.sweep(tmp_path)) == 1
        assert orphan.wait(2) == -signal.SIGKILL


def write_state(state: Path, pid: int, wrong: str) -> None:
    """A dead swapd's file about ``pid``; ``wrong``: what does not match."""
    ticks = procfs.start_ticks(pid)
    content = {
        "nonce": "other" if wrong == "nonce" else "mine",
        "boot": "other" if wrong == "boot" else procfs.boot_id(),
        "pid_namespace": "1" if wrong == "pid_namespace" else procfs.pid_namespace(),
        "swapd": {"pid": os.getpid(), "start_ticks": 1},
        "children": [{"pid": pid, "start_ticks": ticks + (wrong == "start_ticks") * 100, "model": "a"}],
    }
    (state / "children").mkdir()
    (state / "children" / "x.json").write_text(json.dumps(content))


async def test_a_broken_state_file_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "children").mkdir()
    (tmp_path / "children" / "x.json").write_text('{"nonce": 1}')
    (line,) = await asyncio.to_thread(state_file.sweep, tmp_path)
    assert "left alone" in line

"""swapd as PID 1 of a container: a pid namespace of its own, orphans of others, signals, a full stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from swapd.launch import procfs
from tests.integration.swapd_process import Knobs, Swapd, wait_for

UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def _why_no_namespaces() -> str:
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=20)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NOT = _why_no_namespaces()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

_FORKING = """#!/bin/sh
# A llama-server that leaves {orphans} processes to PID 1, which end by themselves, and {staying} that do not.
case "$1" in --version|--help) exec "{server}" "$@" ;; esac
for n in $(seq {orphans}); do (setsid sleep 0.$((n % 5 + 1)) &); done
for n in $(seq {staying}); do (setsid sleep 600 &); done
exec "{server}" "$@"
"""


class Contained(Swapd):
    """swapd as PID 1: ``process`` is what made its namespace."""

    def __init__(self, folder: Path, knobs: Knobs, *, orphans: int = 0, staying: int = 0, grace: str = "5s") -> None:
        forking = folder / "forking-server"
        models = {"a": {"binary": "forking", "stop_grace": grace, "knobs": knobs}}
        extra = f'[binaries.forking]\npath = "{forking}"\n'
        super().__init__(folder, models, server={"drain": "1s"}, extra=extra, wrapper=UNSHARE)
        forking.write_text(_FORKING.format(orphans=orphans, staying=staying, server=folder / "llama-server"))
        forking.chmod(0o755)

    @property
    def init(self) -> int:
        """swapd's pid as it is seen from here."""
        children = Path(f"/proc/{super().pid}/task/{super().pid}/children").read_text().split()
        return int(children[0])

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.init, number)

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        self.assert_nothing_left()


@needs_namespaces
def test_pid_1_buries_orphans_of_others(tmp_path: Path) -> None:
    with Contained(tmp_path, {}, orphans=20) as swapd:
        assert swapd.chat("a").status == 200
        assert swapd.model("a")["pid"] < 100, "it is a namespace of its own"
        assert len(swapd.fakes("start", "a")) == 1
        wait_for(lambda: not procfs.zombie_children(swapd.init) and not _sleepers(swapd), 10)
        assert swapd.chat("a").status == 200


@needs_namespaces
def test_exit_codes_of_its_own_children_are_not_lost_among_orphans(tmp_path: Path) -> None:
    with Contained(tmp_path, {"LOAD_S": 0.5, "LOAD_EXIT": 3}, orphans=20) as swapd:
        for _ in range(2):
            failed = swapd.load("a")
            assert failed.status == 502
            assert "exit code 3" in failed.error["message"]


@needs_namespaces
def test_sigterm_ends_pid_1_in_order_and_takes_strangers_with_it(tmp_path: Path) -> None:
    with Contained(tmp_path, {}, staying=3) as swapd:
        assert swapd.load("a").status == 200
        wait_for(lambda: len(_sleepers(swapd)) == 3)
        swapd.signal()
        assert swapd.wait_ended() == 0
        assert swapd.fakes("term", "a"), "the engine was asked to end, not killed"
        swapd.assert_nothing_left()


@needs_namespaces
def test_full_stop_stays_within_its_bound_with_an_engine_that_ignores_sigterm(tmp_path: Path) -> None:
    knobs = {"IGNORE_TERM": 1, "TOKENS": 10000, "TOK_S": 25}
    with Contained(tmp_path, knobs, orphans=5, staying=2, grace="1s") as swapd:
        stream = swapd.stream("a")
        stream.events(1)
        swapd.signal()
        assert swapd.wait_ended() == 0, "within its bounds, though an engine and a client would go on for minutes"
        stream.leave()


@needs_namespaces
def test_pid_1_heeds_sigterm_before_it_serves(tmp_path: Path) -> None:
    code = "import time; from swapd.launch import pid1; pid1.heed_sigterm(); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([*UNSHARE, sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    assert process.wait(10) == 143
    process.stdout.close()


_SUBREAPER = """
import asyncio, ctypes, os, subprocess, sys, time
import uvloop
from swapd.launch import pid1, procfs
from swapd.launch.spawn import spawn_shim

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below come to us, as to PID 1

async def main():
    reaper = pid1.Reaper(grace_s=0.3)
    subprocess.run(["sh", "-c", "for n in 1 2 3; do (sleep 0.1 &); done"])
    probes = [asyncio.to_thread(subprocess.run, ["sh", "-c", "exit 7"]) for _ in range(10)]
    assert {done.returncode for done in await asyncio.gather(*probes)} == {7}
    for _ in range(100):
        await asyncio.sleep(0.05)
        if not procfs.zombie_children(os.getpid()) and not pid1._sleeping():
            break
    else:
        raise AssertionError("orphans were not buried")
    reaper.close()
    shim = spawn_shim("x")
    shim.kill_soon()
    time.sleep(0.3)
    pid1.Reaper(grace_s=0).close()  # it looks before the loop does, and waits for nobody
    assert (await shim.process.exited()).signal == 9

pid1._sleeping = lambda: [p for p in procfs._all_pids() if (f := procfs._stat(p)) and int(f[1]) == os.getpid()]
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_reaper_leaves_children_that_somebody_waits_for() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(_SUBREAPER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _sleepers(swapd: Contained) -> list[int]:
    """Orphans that live."""
    found = []
    for pid in swapd.descendants():
        with suppress(OSError):  # it has gone meanwhile
            if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found

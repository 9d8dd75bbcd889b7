"""What needs a real process is in tests/integration/test_launch_lifecycle.py."""

from __future__ import annotations

import asyncio
import os

import pytest

from swapd.launch import process
from swapd.launch.process import ExitStatus, Process


def test_reaping_somebody_elses_child_is_survived() -> None:
    pidfd = os.pidfd_open(os.getppid())
    try:
        assert process._reap(pidfd) == ExitStatus(code=-1)
    finally:
        os.close(pidfd)


async def test_reaping_never_waits() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setpgroup=0)
    child = Process(pid, os.pidfd_open(pid), *[os.open(os.devnull, os.O_RDWR) for _ in range(3)])
    with pytest.raises(BlockingIOError):
        process._reap(child._pidfd)
    assert await child.kill(10)


async def test_child_that_a_debugger_holds_is_reaped_once_it_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setpgroup=0)
    pipes = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    child = Process(pid, os.pidfd_open(pid), *pipes)
    reap, tries = process._reap, []

    def held(pidfd: int) -> ExitStatus:
        tries.append(pidfd)
        if len(tries) < 3:
            raise BlockingIOError
        return reap(pidfd)

    monkeypatch.setattr(process, "_reap", held)
    monkeypatch.setattr(process, "REAP_AGAIN_S", 0.01)
    async with asyncio.timeout(10):
        await child.kill(10)
    assert child.status == ExitStatus(signal=9) and len(tries) == 3

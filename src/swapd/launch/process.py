"""One child process as the event loop sees it: output, exit, signals to its group. Idle, it costs nothing.

Whoever creates a ``Process`` gets its exit, always: a pidfd tells the loop, the group's
rest is killed while the dead leader still reserves its number, then it is reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

StreamName: TypeAlias = Literal["stdout", "stderr"]
OutputSink: TypeAlias = Callable[[StreamName, bytes], None]

READ_BYTES = 64 << 10
REAP_AGAIN_S: Final = 0.5
OWN_PIDS: Final[set[int]] = set()
"""Children that a ``Process`` will reap: nobody else may."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended; exactly one of ``code`` and ``signal`` is not ``None``."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"


class Process:
    """A running child: leader of its own session and process group, so ``pid`` names all three.

    Owns its descriptors: they are closed when the process is reaped. Signals reach
    the group; none is sent once the leader is reaped and its number may be another's.
    """

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        OWN_PIDS.add(pid)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._pidfd, self._stdin = pidfd, stdin
        self._outputs: dict[StreamName, int] = {"stdout": stdout, "stderr": stderr}
        self._sink: OutputSink = lambda _name, _data: None
        self._exit_hooks: list[Callable[[ExitStatus], None]] = []
        self._loop.add_reader(pidfd, self._on_exit)

    def read_output(self, sink: OutputSink) -> None:
        """Hand every chunk of output to ``sink`` from now on."""
        self._sink = sink
        for name, fd in self._outputs.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._on_output, name)

    def on_exit(self, hook: Callable[[ExitStatus], None]) -> None:
        """Call ``hook`` right after the reaping; at once if that has been."""
        if self._exit.done():
            hook(self._exit.result())
        else:
            self._exit_hooks.append(hook)

    @property
    def status(self) -> ExitStatus | None:
        """How it ended; ``None`` while it runs."""
        return self._exit.result() if self._exit.done() else None

    async def exited(self) -> ExitStatus:
        """Wait until the process is reaped."""
        return await asyncio.shield(self._exit)

    async def gone(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for that; whether it is."""
        if not self._exit.done():
            await asyncio.wait([self._exit], timeout=max(timeout_s, 0))
        return self._exit.done()

    def write_stdin(self, data: bytes) -> None:
        """Write a few bytes to the child's stdin; lost if the child reads none or is gone."""
        if self._stdin >= 0:
            with contextlib.suppress(OSError):
                os.write(self._stdin, data)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal every process of the group; nothing happens once it is reaped."""
        if not self._exit.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def kill(self, timeout_s: float) -> bool:
        """SIGKILL to the group; whether it was reaped within ``timeout_s``."""
        self.signal_group(signal.SIGKILL)
        return await self.gone(timeout_s)

    def _on_output(self, name: StreamName) -> None:
        fd = self._outputs.get(name, -1)
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._sink(name, data)
        else:
            self._close_output(name)

    def _close_output(self, name: StreamName) -> None:
        fd = self._outputs.pop(name, -1)
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Grandchildren go too. The zombie still holds its number: this cannot hit a stranger.
            os.killpg(self.pid, signal.SIGKILL)
        self._drain()
        try:
            status = _reap(self._pidfd)
        except BlockingIOError:  # a debugger has it, and lets go of it some time
            self._loop.call_later(REAP_AGAIN_S, self._on_exit)
            return
        OWN_PIDS.discard(self.pid)
        os.close(self._pidfd)
        os.close(self._stdin)
        self._stdin = -1
        self._exit.set_result(status)
        for hook in self._exit_hooks:
            hook(status)

    def _drain(self) -> None:
        """Take the last words that are in the pipes, without waiting for more."""
        for name in list(self._outputs):
            fd = self._outputs[name]
            os.set_blocking(fd, False)
            for _ in range(32):  # a pipe holds 1 MiB at most; a surviving writer must not hold us
                try:
                    data = os.read(fd, READ_BYTES)
                except OSError:
                    break
                if not data:
                    break
                self._sink(name, data)
            self._close_output(name)


def _reap(pidfd: int) -> ExitStatus:
    """Never waits.

    Raises:
        BlockingIOError: it runs, or its end is another's (a debugger's) for now.
    """
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:  # somebody else's wait took it; how it ended is lost
        return ExitStatus(code=-1)
    if result is None:
        raise BlockingIOError
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status)
    return ExitStatus(signal=result.si_status)

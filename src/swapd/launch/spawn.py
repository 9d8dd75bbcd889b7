"""Starting a child in two steps: a shim that waits, then its word.

Call from the thread that lives as long as swapd does (the main thread, which runs the
loop): the kernel sends the children's death signal when the thread that spawned them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swapd.launch.process import OutputSink, Process

SHIM_PATH = str(Path(__file__).with_name("shim.py"))
NONCE_VARIABLE = "SWAPD_NONCE"
OOM_SCORE_STEP = 200
EXEC_TIMEOUT_S = 10.0
DISCARD_TIMEOUT_S = 2.0
_LOWEST_SAFE_FD = 10


@dataclass(frozen=True, slots=True)
class Word:
    """What a shim becomes. ``nofile_soft`` 0 leaves the limit of open files as it is."""

    argv: Sequence[str]
    env: Mapping[str, str]
    oom_score_adj: int = 0
    nofile_soft: int = 0
    nonce: str = field(default="")

    def encode(self) -> bytes:
        """The form that ``shim.py`` reads."""
        env = {**self.env, NONCE_VARIABLE: self.nonce} if self.nonce else self.env
        fields = [str(self.oom_score_adj), str(self.nofile_soft), str(len(self.argv)), *self.argv]
        fields += [f"{name}={value}" for name, value in env.items()]
        payload = b"\0".join(os.fsencode(text) for text in fields)
        return b"%d\n" % len(payload) + payload


class ExecFailed(OSError):
    """The program could not be executed; ``errno`` says why."""


class Shim:
    """A child that waits for its word; ``become`` or ``discard`` it, once."""

    def __init__(self, process: Process, word_fd: int, error_fd: int) -> None:
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._word_fd, self._error_fd = word_fd, error_fd
        self._verdict: asyncio.Future[int] = self._loop.create_future()
        process.on_exit(lambda _status: self._settle())

    @property
    def pid(self) -> int:
        return self.process.pid

    async def become(self, word: Word, sink: OutputSink) -> Process:
        """Turn into the word's program, whose output goes to ``sink``; returns once it is executed.

        Raises:
            ExecFailed: if it cannot be; the child is gone then.
        """
        self.process.read_output(sink)
        try:
            await self._send(word.encode())
            if not self._verdict.done():
                self._loop.add_reader(self._error_fd, self._settle)
            problem = await asyncio.wait_for(self._verdict, EXEC_TIMEOUT_S)
        except BaseException:
            self.kill_soon()
            raise
        if problem:
            await self.process.kill(DISCARD_TIMEOUT_S)
            raise ExecFailed(problem, os.strerror(problem), word.argv[0])
        return self.process

    async def discard(self) -> None:
        """End the unused shim; bounded."""
        await self.process.kill(DISCARD_TIMEOUT_S)

    def kill_soon(self) -> None:
        """The same for those who cannot wait; it is reaped all the same."""
        self.process.signal_group(signal.SIGKILL)

    async def _send(self, data: bytes) -> None:
        """Write the word; a long environment may exceed what the pipe takes at once."""
        while data:
            if self.process.status is not None:  # its descriptors are closed, their numbers may be others'
                raise ExecFailed(errno.ECHILD, "the exec shim died before its start", SHIM_PATH)
            try:
                data = data[os.write(self._word_fd, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except BrokenPipeError:
                await self.process.gone(DISCARD_TIMEOUT_S)

    def _settle(self) -> None:
        """Read the error pipe, once: nothing in it means that the program was executed."""
        if self._error_fd < 0:
            return
        self._loop.remove_reader(self._error_fd)
        try:
            text = os.read(self._error_fd, 16)
        except BlockingIOError:  # the shim is gone, a copy of the pipe is not
            text = b""
        _close_all([self._error_fd])
        self._error_fd = -1
        if not self._verdict.done():
            self._verdict.set_result(int(text or 0))


def spawn_shim(nonce: str) -> Shim:
    """Start a shim; must run in the loop's thread.

    Raises:
        OSError: no process or descriptor could be had.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for child_writes in (False, True, True, True):
            read_end, write_end = _pipe()
            theirs.append(write_end if child_writes else read_end)
            ours.append(read_end if child_writes else write_end)
        pid = _spawn(theirs, nonce)
        pidfd = os.pidfd_open(pid)
    except BaseException:
        _close_all(ours)
        raise
    finally:
        _close_all(theirs)
    stdin, stdout, stderr, error = ours
    os.set_blocking(stdin, False)
    os.set_blocking(error, False)
    return Shim(Process(pid, pidfd, stdin, stdout, stderr), stdin, error)


def oom_score_for_children(own: int) -> int:
    """So that the kernel takes a model before it takes swapd."""
    return min(1000, own + OOM_SCORE_STEP)


def _spawn(fds: Sequence[int], nonce: str) -> int:
    command = [sys.executable, "-I", "-S", SHIM_PATH, str(os.getpid())]
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    environment = {**os.environ, NONCE_VARIABLE: nonce}
    return os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True)


def _pipe() -> tuple[int, int]:
    """A close-on-exec pipe whose descriptors are above those that a child gets by number."""
    ends = os.pipe2(os.O_CLOEXEC)
    if min(ends) >= _LOWEST_SAFE_FD:
        return ends
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _LOWEST_SAFE_FD) for end in ends]
    _close_all(ends)
    return high[0], high[1]


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)

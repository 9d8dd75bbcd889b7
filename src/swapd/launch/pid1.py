"""What swapd owes as the first process of a container: it ends on SIGTERM from the start, and buries strangers.

The kernel gives a dead process's children to PID 1, and drops signals that PID 1 has no handler for.
A stranger is a dead child that is no ``Process`` and that nobody has waited for within ``GRACE_S``:
how swapd's own children ended is for those who started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Final

from swapd.launch import procfs
from swapd.launch.process import OWN_PIDS

GRACE_S: Final = 1.0
"""A probe's thread waits for its child itself, and needs a moment."""
SIGTERM_EXIT: Final = 128 + signal.SIGTERM


def is_init() -> bool:
    """Whether this is the first process of its pid namespace."""
    return os.getpid() == 1


def heed_sigterm() -> None:
    """Until the server has its own handler: the default action, which PID 1 does not have."""
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(SIGTERM_EXIT)


class Reaper:
    """Buries strangers while it is open; costs nothing while nobody dies. For the loop's own thread."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._seen: dict[int, float] = {}
        self._again: asyncio.TimerHandle | None = None
        # uvloop keeps SIGCHLD of ``add_signal_handler`` for subprocesses of its own, of which swapd has none.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: self._loop.call_soon_threadsafe(self._look))
        self._look()

    def close(self) -> None:
        """Look no more."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self._again is not None:
            self._again.cancel()

    def _look(self) -> None:
        """Note who is dead, and bury those who have been for ``grace_s``."""
        now = self._loop.time()
        self._seen = {pid: self._seen.get(pid, now) for pid in strangers()}
        for pid, since in list(self._seen.items()):
            if now - since >= self._grace_s:
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
                del self._seen[pid]
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(self._grace_s, self._look) if self._seen else None


def strangers() -> list[int]:
    """Dead children that swapd has no ``Process`` for; asking leaves them as they are."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return []
    except ChildProcessError:
        return []
    # The kernel shows the first dead child only, which may be an own one: /proc has the others.
    return [pid for pid in procfs.zombie_children(os.getpid()) if pid not in OWN_PIDS]

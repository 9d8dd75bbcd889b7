"""systemd's notification protocol: ready, status, stopping and the watchdog, told from the event loop itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from swapd.supervisor.pool import Supervisor

NAMES_SHOWN: Final = 8


class Notifier:
    """Tells the manager that started this process; without one, nothing is told."""

    def __init__(self, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        meant = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid() if pid is None else pid))
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if self._address and meant and usec.isdigit() else 0.0
        """The manager kills this process if it hears nothing for so long; 0 = never."""

    @property
    def is_heard(self) -> bool:
        """Whether there is a manager."""
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """One datagram of ``KEY=value`` lines; never blocks, and a manager that has gone is no reason to fail."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # noqa: FBT003
            sender.sendto("\n".join(lines).encode(), self._address)

    def ready(self, url: str) -> None:
        """Connections are accepted from now on."""
        self.tell("READY=1", f"STATUS=serving at {url}")

    def stopping(self) -> None:
        """No more requests are admitted; running ones and the models' processes end."""
        self.tell("STOPPING=1", "STATUS=stopping: running requests and models end")


@contextlib.asynccontextmanager
async def notified(notifier: Notifier, supervisor: Supervisor) -> AsyncIterator[None]:
    """While the block runs: a status at each change of a model's state, and the watchdog's signs of life."""
    if not notifier.is_heard:
        yield
        return
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_report(notifier, supervisor))]
        if notifier.watchdog_s:
            tasks.append(group.create_task(_live(notifier)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _live(notifier: Notifier) -> None:
    """From the loop, at half the interval: a loop that hangs is a swapd that hangs."""
    while True:
        notifier.tell("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog_s / 2)


async def _report(notifier: Notifier, supervisor: Supervisor) -> None:
    async for change in supervisor.changes():
        if change["progress"] is not None:
            continue  # of a load: nothing that is said here
        notifier.tell(f"STATUS={summary(supervisor.status())}")


def summary(status: Mapping[str, Any]) -> str:
    """One line for ``systemctl status``: which models are in which state, those at rest left out."""
    states: dict[str, list[str]] = {}
    for model in status["models"]:
        if model["state"] != "stopped":
            states.setdefault(model["state"], []).append(model["id"])
    parts = [
        f"{state}: {', '.join(names[:NAMES_SHOWN])}{', …' * (len(names) > NAMES_SHOWN)}"
        for state, names in states.items()
    ]
    return "; ".join(parts) or "no model loaded"

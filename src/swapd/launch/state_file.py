"""Which children this swapd has, on disk, for the start after a crash.

The children's death signal is the first line; this is the second, for what it does not
reach (grandchildren, a set-uid program). One file for each swapd, ``children/<nonce>.json``
below ``state_dir``. What a later start ends must match in all of: the swapd of the file
is dead; same boot and pid namespace; the process has the file's pid and start time, or
is in the session of such a one; the file's nonce is in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swapd.launch import procfs
from swapd.launch.spawn import NONCE_VARIABLE

SWEEP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """One child: leader of its own session, so ``pid`` names that too."""

    pid: int
    start_ticks: int
    model: str


class StateFile:
    """The file of this swapd: written whole, renamed into place, removed when no child is left."""

    def __init__(self, state_dir: Path) -> None:
        self.nonce = secrets.token_hex(16)
        self._folder = state_dir / "children"
        self._path = self._folder / f"{self.nonce}.json"
        self._children: dict[int, ChildRecord] = {}

    def add(self, pid: int, model: str) -> None:
        """Record a child; a disk that refuses is no reason not to serve."""
        self._children[pid] = ChildRecord(pid, procfs.start_ticks(pid), model)
        self._write()

    def remove(self, pid: int) -> None:
        """Forget a child that was reaped."""
        if self._children.pop(pid, None):
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            if not self._children:
                self._path.unlink(missing_ok=True)
                return
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._content()))
            new.replace(self._path)

    def _content(self) -> dict[str, object]:
        pid = os.getpid()
        return {
            "nonce": self.nonce,
            "boot": procfs.boot_id(),
            "pid_namespace": procfs.pid_namespace(),
            "swapd": {"pid": pid, "start_ticks": procfs.start_ticks(pid)},
            "children": [asdict(child) for child in self._children.values()],
        }


def sweep(state_dir: Path) -> list[str]:
    """End what dead swapds left behind; one line for each process ended. Blocks, 5 s at most."""
    lines: list[str] = []
    for path in sorted((state_dir / "children").glob("*.json")):
        try:
            content = json.loads(path.read_text())
            lines += _sweep_one(path, content)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            lines.append(f"{path}: not a list of children ({problem}); left alone")
    return lines


def _sweep_one(path: Path, content: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if content["boot"] == procfs.boot_id():
        if content["pid_namespace"] != procfs.pid_namespace():
            return []  # a container that shares this state_dir: its pids mean nothing here
        if procfs.is_alive(int(content["swapd"]["pid"]), int(content["swapd"]["start_ticks"])):
            return []
        for row in content["children"]:
            lines += _end(ChildRecord(**row), str(content["nonce"]))
    path.unlink(missing_ok=True)
    return lines


def _end(child: ChildRecord, nonce: str) -> Iterator[str]:
    """End the child and, whether it lives or not, its session: no new process gets that number meanwhile."""
    own = [child.pid] if procfs.is_alive(child.pid, child.start_ticks) else []
    members = [pid for pid in procfs.session_members(child.pid) if procfs.start_ticks(pid) >= child.start_ticks]
    for pid in sorted({*own, *members}):
        ended = _kill(pid, nonce)
        if ended is not None:
            verdict = "ended" if ended else "cannot end"
            yield f"{verdict} process {pid} of model {child.model!r}, left behind by a swapd that died"


def _kill(pid: int, nonce: str) -> bool | None:
    """SIGKILL through a descriptor that cannot come to mean another process; ``None``: it is not ours."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        if procfs.environment(pid).get(NONCE_VARIABLE) != nonce:
            return None
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        deadline = time.monotonic() + SWEEP_TIMEOUT_S
        while procfs.start_ticks(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        return procfs.start_ticks(pid) == 0
    except OSError:
        return None
    finally:
        os.close(handle)

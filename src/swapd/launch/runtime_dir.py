"""The directory of the children's sockets: swapd's own, private, short, and gone when swapd is."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from swapd.launch import procfs

MAX_SOCKET_PATH_BYTES = 90
_LONGEST_SOCKET_NAME = 16
_NAME = re.compile(r"swapd-(\d+)-(\d+)-(\d+)-(\d+)(?:\.\d+)?")  # uid, pid namespace, pid, start ticks, of several


class RuntimeDirError(OSError):
    """No directory for sockets could be had; the message says what was tried."""


class RuntimeDir:
    """One directory for one swapd; its name says whose, so that a later start can tell a dead one's."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._next = 0

    @classmethod
    def create(cls, bases: list[str] | None = None) -> RuntimeDir:
        """A fresh directory in ``$XDG_RUNTIME_DIR``, else in ``/tmp``; removes those of dead swapds there.

        Raises:
            RuntimeDirError: neither is usable.
        """
        problems = []
        for base in bases if bases is not None else default_bases():
            problem = why_unusable(base)
            if not problem:
                remove_stale(base)
                try:
                    return cls(_make(base))
                except OSError as error:
                    problem = str(error)
            problems.append(f"{base}: {problem}")
        raise RuntimeDirError("no directory for the models' sockets: " + "; ".join(problems))

    def socket_path(self) -> str:
        """A path that was never used before: each generation of a child gets its own."""
        self._next += 1
        return os.path.join(self.path, f"{self._next}.sock")

    def remove(self) -> None:
        """Remove the directory and what sockets are left in it."""
        _remove_tree(self.path)


def default_bases() -> list[str]:
    """Where sockets may live, best first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return [runtime, "/tmp"] if runtime else ["/tmp"]


def why_unusable(base: str) -> str:
    """What keeps sockets from living under ``base``; empty if nothing does."""
    longest = os.path.join(base, _own_name(), "x" * _LONGEST_SOCKET_NAME)
    if not base.startswith("/"):
        return "not an absolute path"
    if "," in base:
        return "llama-server takes a comma for the end of a host name"
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH_BYTES:
        return f"too long: a socket's path may have {MAX_SOCKET_PATH_BYTES} bytes"
    if not os.path.isdir(base):
        return "no such directory"
    if not os.access(base, os.W_OK | os.X_OK):
        return "not writable"
    return ""


def remove_stale(base: str) -> None:
    """Remove the directories of this user's swapds that are dead; those of other containers stay."""
    for name in os.listdir(base):
        match = _NAME.fullmatch(name)
        if not match:
            continue
        uid, namespace, pid, ticks = match.groups()
        ours = int(uid) == os.getuid() and namespace == procfs.pid_namespace()
        path = os.path.join(base, name)
        if ours and _is_private(path) and not procfs.is_alive(int(pid), int(ticks)):
            _remove_tree(path)


def _own_name() -> str:
    pid = os.getpid()
    return f"swapd-{os.getuid()}-{procfs.pid_namespace()}-{pid}-{procfs.start_ticks(pid)}"


def _make(base: str) -> str:
    path = os.path.join(base, _own_name())
    for candidate in (path, *(f"{path}.{number}" for number in range(1, 100))):
        try:
            os.mkdir(candidate, 0o700)
        except FileExistsError:  # another one in this process, or somebody's trap: never used
            continue
        if not _is_private(candidate):
            raise RuntimeDirError(f"{candidate} is not private")
        return candidate
    raise RuntimeDirError(f"{path} is taken")


def _is_private(path: str) -> bool:
    """A real directory (no link) of ours that nobody else may enter."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _remove_tree(path: str) -> None:
    """Only sockets and the directory: whatever else is there is not ours, and stays."""
    with contextlib.suppress(OSError):
        for entry in Path(path).iterdir():
            if entry.is_socket():
                entry.unlink()
        os.rmdir(path)

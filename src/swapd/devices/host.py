"""The host: its memory, a container's own limit included, what single processes hold of it, and its cores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM

UNLIMITED: Final = 1 << 60
MOST_BYTES: Final = 16 << 10
"""More than any of these files has."""


class KernelFile:
    """A file that the kernel writes anew at each reading; kept open, because opening it costs more than reading it."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path, self._fd = path, -1

    def read(self) -> bytes:
        """Its text now.

        Raises:
            OSError: there is no such file, or what it tells of is gone.
        """
        if self._fd >= 0:
            try:
                return os.pread(self._fd, MOST_BYTES, 0)
            except OSError:  # the file was taken away; there may be a new one of its name
                os.close(self._fd)
                self._fd = -1
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._fd, MOST_BYTES, 0)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Limit:
    """The memory limit of one cgroup, and what counts against it."""

    def __init__(self, group: Path, limit_file: str, used_file: str, reclaimable: str) -> None:
        self._limit, self._used = KernelFile(group / limit_file), KernelFile(group / used_file)
        self._stat, self._reclaimable = KernelFile(group / "memory.stat"), f"\n{reclaimable} ".encode()

    def read(self) -> tuple[int, int] | None:
        """(limit, used without reclaimable file pages), in bytes; ``None`` without a limit."""
        try:
            text = self._limit.read()
            if text.startswith(b"max") or int(text) > UNLIMITED:
                return None
            stat = b"\n" + self._stat.read()
            reclaimable = _number(stat, self._reclaimable) if self._reclaimable in stat else 0
            return int(text), int(self._used.read()) - reclaimable
        except (OSError, ValueError):
            return None


class Host:
    """The host's memory, and what processes hold of it, read again and again: touches as little as it can."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._meminfo, self._cgroups = KernelFile(root / "proc/meminfo"), KernelFile(root / "proc/self/cgroup")
        self._cgroups_seen = b""
        self._limits: list[Limit] = []
        self._processes: dict[int, KernelFile] = {}

    def ram(self) -> DeviceSample:
        """``MemAvailable`` of ``MemTotal``, or of the cgroup's limit where that leaves less. Bytes."""
        try:
            text = self._meminfo.read()
            total, available = _number(text, b"MemTotal:") * 1024, _number(text, b"MemAvailable:") * 1024
        except (OSError, ValueError):
            return DeviceSample(RAM, 0, None)
        for limit in self._limits_now():
            found = limit.read()
            if found is not None and found[0] < total:
                total, available = found[0], min(available, max(0, found[0] - found[1]))
        return DeviceSample(RAM, total, available, name="host")

    def _limits_now(self) -> list[Limit]:
        """Those of every cgroup above this process: looked for anew only if it was moved."""
        try:
            text = self._cgroups.read()
            if text != self._cgroups_seen:
                self._limits = list(_limits(self._root, text.decode()))
                self._cgroups_seen = text
        except (OSError, ValueError):
            return []
        return self._limits

    def held(self, pids: Collection[int]) -> dict[int, int]:
        """Anonymous and pinned bytes by process (mapped GGUF pages are the page cache's); none that is gone."""
        for pid in self._processes.keys() - pids:
            del self._processes[pid]
        found = {}
        for pid in pids:
            if pid not in self._processes:
                self._processes[pid] = KernelFile(self._root / f"proc/{pid}/status")
            try:
                text = self._processes[pid].read()
                found[pid] = (_number(text, b"\nRssAnon:") + _number(text, b"\nRssShmem:")) * 1024
            except (OSError, ValueError):
                del self._processes[pid]
        return found


def _number(text: bytes, key: bytes) -> int:
    """The number after ``key``, in whatever unit the file has; raises ``ValueError`` if there is none."""
    start = text.index(key) + len(key)
    return int(text[start : text.index(b"\n", start)].removesuffix(b"kB"))


def _limits(root: Path, cgroups: str) -> Iterable[Limit]:
    """Those of every cgroup v2 level above this process, and of v1."""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
            group = top / path.lstrip("/")
            for level in (group, *group.parents):
                if level == top and not (top / "memory.max").exists():
                    break  # the kernel's own root has none, and never gets one; a container's has
                if level == top.parent:
                    break
                yield Limit(level, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            group = root / "sys/fs/cgroup/memory" / path.lstrip("/")
            group = group if group.exists() else root / "sys/fs/cgroup/memory"
            yield Limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def sample_ram(root: Path = Path("/")) -> DeviceSample:
    """One reading of the host's memory alone."""
    return Host(root).ram()


def physical_cores(root: Path = Path("/"), allowed: Collection[int] | None = None) -> int:
    """Physical cores among the CPUs this process may run on, as in a container with a CPU set; 0 = not known."""
    cpus = os.sched_getaffinity(0) if allowed is None else allowed
    try:
        return len({_core(root / f"sys/devices/system/cpu/cpu{cpu}/topology") for cpu in cpus})
    except (OSError, ValueError):
        return 0


def _core(topology: Path) -> tuple[int, int]:
    package, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    return package, core

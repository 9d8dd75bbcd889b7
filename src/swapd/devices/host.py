"""The host: its memory, a container's own limit included, what single processes hold of it, and its cores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM

UNLIMITED: Final = 1 << 60


def sample_ram(root: Path = Path("/")) -> DeviceSample:
    """``MemAvailable`` of ``MemTotal``, or of the cgroup's limit where that leaves less. Bytes."""
    try:
        info = _meminfo(root / "proc/meminfo")
    except (OSError, ValueError, KeyError):
        return DeviceSample(RAM, 0, None)
    total, available = info["MemTotal"], info["MemAvailable"]
    for limit, used in _cgroup_limits(root):
        if limit < total:
            total, available = limit, min(available, max(0, limit - used))
    return DeviceSample(RAM, total, available, name="host")


def _meminfo(path: Path) -> dict[str, int]:
    lines = (line.split(":", 1) for line in path.read_text().splitlines())
    return {key: int(value.split()[0]) * 1024 for key, value in lines if value.split()}


def _cgroup_limits(root: Path) -> Iterable[tuple[int, int]]:
    """(limit, used without reclaimable file pages) of every cgroup v2 level above this process, and of v1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group = root / "sys/fs/cgroup" / path.lstrip("/")
            for level in (group, *group.parents):
                if level == root / "sys/fs":
                    break
                yield from _limit(level, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            group = root / "sys/fs/cgroup/memory" / path.lstrip("/")
            group = group if group.exists() else root / "sys/fs/cgroup/memory"
            yield from _limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limit(group: Path, limit_file: str, used_file: str, reclaimable: str) -> Iterable[tuple[int, int]]:
    try:
        text = (group / limit_file).read_text().strip()
        if text == "max" or int(text) > UNLIMITED:
            return
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield int(text), int((group / used_file).read_text()) - int(stat.get(reclaimable, 0))
    except (OSError, ValueError):
        return


def held_ram(pid: int) -> int | None:
    """Anonymous and pinned bytes of a process (mapped GGUF pages are the page cache's); ``None`` if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = {}
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssShmem"):
            found[key] = int(value.split()[0]) * 1024
    return sum(found.values()) if found else None


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

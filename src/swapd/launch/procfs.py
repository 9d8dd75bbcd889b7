"""Facts about processes from ``/proc``: who is alive, since when, in which session, with which listener."""

from __future__ import annotations

import os
from collections.abc import Iterator


def start_ticks(pid: int) -> int:
    """Clock ticks since boot at which a process started; 0 if there is no such process (or only its zombie)."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else 0


def is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process, not a later one with its number, still runs."""
    return ticks != 0 and start_ticks(pid) == ticks


def environment(pid: int) -> dict[str, str]:
    """A process's environment as it was at its exec; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    decoded = (pair.decode("utf-8", "surrogateescape").partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in decoded}


def session_members(session: int) -> list[int]:
    """Live processes of a session, zombies left out."""
    return [
        pid
        for pid in _all_pids()
        if (fields := _stat(pid)) and int(fields[3]) == session and fields[0] not in ("Z", "X")
    ]


def zombie_children(parent: int) -> list[int]:
    """Dead children of a process that were not waited for."""
    return [pid for pid in _all_pids() if (fields := _stat(pid)) and fields[0] == "Z" and int(fields[1]) == parent]


def pid_namespace() -> str:
    """Names the space in which pids of this process mean something."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def boot_id() -> str:
    """Changes with every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def rss_pages(pid: int) -> int:
    """Resident pages; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def own_oom_score_adj() -> int:
    """This process's badness for the out-of-memory killer, -1000 to 1000."""
    try:
        with open("/proc/self/oom_score_adj") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def listens(session: int, port: int) -> bool:
    """Whether a process of this session holds the listening TCP socket of ``port``."""
    inodes = _listening_inodes(port)
    if not inodes:
        return False
    # The leader first: it nearly always is the one, and then /proc need not be scanned.
    if _holds(session, inodes):
        return True
    return any(_holds(pid, inodes) for pid in session_members(session))


def _listening_inodes(port: int) -> frozenset[str]:
    wanted = f":{port:04X}"
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        found |= {row[9] for row in rows if len(row) > 9 and row[1].endswith(wanted) and row[3] == "0A"}
    return frozenset(found)


def _holds(pid: int, inodes: frozenset[str]) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:  # of our session, but set-uid: it is ours, whatever it holds
        return True
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return True
    return False


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the command, whose name may hold anything; [0] is the state."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []

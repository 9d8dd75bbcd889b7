"""The first program of every child: binds its life to swapd's, waits for its word, becomes the real program.

Run by path with ``python -I -S`` before the real command line is known, so that a
start pays an ``execve`` instead of a Python start. Every import costs: only modules
that are built in or one small file each. ``argv``: swapd's pid. Descriptors: 0 the word,
then the child's stdin; 3 close-on-exec, where a failure is told as ``errno``.

The word, on descriptor 0: decimal length of the rest, a newline, then fields
separated by NUL: oom_score_adj, soft limit of open files (0 = leave it), number
of arguments, the arguments, the environment as ``NAME=value``.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9
ERROR_FD = 3


def die_with(parent: int) -> None:
    """SIGKILL when the thread that spawned us dies; gone at once if it is dead already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # not "== 1": swapd may be PID 1 of its container
        os._exit(1)


def read_word() -> list[bytes]:
    """The fields of the word; ends the process if the pipe closes first."""
    data = b""
    while b"\n" not in data:
        # One byte at a time: what follows the word belongs to the program's own stdin.
        byte = os.read(0, 1)
        if not byte:
            os._exit(0)
        data += byte
    left = int(data)
    parts = []
    while left > 0:
        part = os.read(0, left)
        if not part:
            os._exit(0)
        parts.append(part)
        left -= len(part)
    return b"".join(parts).split(b"\0")


def be_killed_first(oom_score_adj: int) -> None:
    """The kernel's out-of-memory killer shall take the model before swapd."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"%d" % oom_score_adj)
        os.close(fd)
    except OSError:
        pass


def restore_limits(nofile_soft: int) -> None:
    """The soft file limit of swapd's own start; SIGPIPE and SIGXFSZ, which Python ignores, as they were."""
    import _signal  # type: ignore[import-not-found]  # ``signal`` would bring ``enum`` with it

    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    if nofile_soft:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile_soft, hard))


def become(argv: list[bytes], environ: dict[bytes, bytes]) -> None:
    """Replace this process; a failure is told and ends it."""
    try:
        # A name without a slash is looked up in the child's own PATH.
        os.execvpe(argv[0], argv, environ)
    except OSError as problem:
        os.write(ERROR_FD, b"%d" % (problem.errno or 1))
        os._exit(127)


def main() -> None:
    die_with(int(sys.argv[1]))
    os.set_inheritable(ERROR_FD, False)  # noqa: FBT003
    os.closerange(ERROR_FD + 1, 1 << 20)
    fields = read_word()
    be_killed_first(int(fields[0]))
    restore_limits(int(fields[1]))
    count = int(fields[2])
    argv, pairs = fields[3 : 3 + count], fields[3 + count :]
    become(argv, dict(pair.split(b"=", 1) for pair in pairs))


if __name__ == "__main__":
    main()

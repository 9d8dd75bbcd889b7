"""What needs a real process is in tests/integration/test_launch_lifecycle.py."""

from __future__ import annotations

import os

from swapd.launch import process


def test_reaping_somebody_elses_child_is_survived() -> None:
    pidfd = os.pidfd_open(os.getppid())
    try:
        assert process._reap(pidfd) == process.ExitStatus(code=-1)
    finally:
        os.close(pidfd)

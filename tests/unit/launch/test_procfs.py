from __future__ import annotations

import os
import socket

from swapd.launch import procfs


def test_own_process_is_alive_and_nobody_is_pid_zero() -> None:
    ticks = procfs.start_ticks(os.getpid())
    assert ticks > 0 and procfs.is_alive(os.getpid(), ticks)
    assert not procfs.is_alive(os.getpid(), ticks + 1)
    assert not procfs.is_alive(0, 0) and procfs.start_ticks(2**22 + 1) == 0


def test_environment_and_memory_of_unknown_processes_are_empty() -> None:
    assert procfs.environment(2**22 + 1) == {} and procfs.rss_pages(2**22 + 1) == 0
    assert procfs.rss_pages(os.getpid()) > 0


def test_listener_is_found_by_its_holder() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not procfs.listens(os.getpid(), port)
        listener.listen()
        assert procfs.listens(os.getpid(), port)
        assert not procfs.listens(2**22 + 1, port)

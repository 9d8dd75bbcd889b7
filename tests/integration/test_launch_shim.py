from __future__ import annotations

import os
import subprocess
import sys

from swapd.launch.spawn import SHIM_PATH


def run_shim(parent: int, word: bytes) -> subprocess.CompletedProcess[bytes]:
    command = ["/bin/sh", "-c", f'exec 3>/dev/null; exec "{sys.executable}" -I -S {SHIM_PATH} {parent}']
    return subprocess.run(command, input=word, stdout=subprocess.PIPE, check=False)


def test_a_pipe_that_closes_without_a_word_ends_it() -> None:
    assert run_shim(os.getpid(), b"").returncode == 0
    assert run_shim(os.getpid(), b"100\nhalf a word").returncode == 0


def test_a_parent_that_is_not_the_one_named_ends_it() -> None:
    payload = b"0\0000\0001\0/bin/true"
    assert run_shim(1 if os.getpid() != 1 else 2, b"%d\n" % len(payload) + payload).returncode == 1


def test_what_follows_the_word_is_the_programs_own_input() -> None:
    payload = b"0\0000\0001\0/bin/cat\0A=b"
    result = run_shim(os.getpid(), b"%d\n" % len(payload) + payload + b"cmd_router_to_child:exit\n")
    assert result.stdout == b"cmd_router_to_child:exit\n"


def test_it_imports_next_to_nothing() -> None:
    """Its start is on the path of every swap: 11 ms on an idle machine, where importing a package costs 100."""
    script = f'exec 3>/dev/null; exec "{sys.executable}" -X importtime -I -S {SHIM_PATH} {os.getpid()}'
    result = subprocess.run(["/bin/sh", "-c", script], input=b"", stderr=subprocess.PIPE, check=False, timeout=60)
    lines = [line for line in result.stderr.decode().splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert {"ctypes", "os"} <= imported
    assert not imported & {"asyncio", "subprocess", "json", "re", "typing", "dataclasses", "swapd"}

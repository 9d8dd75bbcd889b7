from __future__ import annotations

import errno
from pathlib import Path

import pytest

from swapd.core.spec import BinarySpec
from swapd.llama.probe import Prober, cache_key, probe, read_capabilities, why_it_died, why_not_executed

HELP_NOW = """
--host HOST      IP addresses to listen on, comma-separated, or UNIX socket
                 paths
-fit,  --fit [on|off]   x
-lm,   --load-mode MODE
--slot-save-path PATH
--models-dir PATH
"""
HELP_OLD = "--host HOST  ip address to listen, or bind to an UNIX socket if the address ends with .sock\n--no-mmap  x\n"


def test_capabilities_of_a_current_build() -> None:
    report = read_capabilities("/b", "version: 11434 (abc)\nbuilt with x\n", HELP_NOW)
    assert report.version == "11434 (abc)" and report.load_mode == "--load-mode"
    assert report.unix_socket and report.fit and report.slot_save_path and report.router
    assert "router protocol" in report.capabilities


def test_an_older_build_lacks_several() -> None:
    report = read_capabilities("/b", "version: 4000 (x)", HELP_OLD)
    assert (report.unix_socket, report.fit, report.slot_save_path, report.router) == (True, False, False, False)
    assert report.load_mode == "--no-mmap" and report.capabilities == ("unix sockets", "--no-mmap")


def test_a_fork_without_anything() -> None:
    assert read_capabilities("/b", "", "--host HOST  ip address\n").capabilities == ()


@pytest.mark.parametrize(
    ("code", "output", "cause", "words"),
    [
        (-4, "", "illegal_instruction", "SIGILL"),
        (132, "", "illegal_instruction", "another CPU"),
        (127, "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file",
         "missing_library", "libcudart.so.13"),
        (1, "llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by x)", "missing_library",
         "GLIBC_2.38"),
        (-11, "", "unknown", "signal 11"),
        (3, "first\nlast words\n\n", "unknown", "last words"),
    ],
)  # fmt: skip
def test_a_build_that_dies_is_named_as_what_it_is(code: int, output: str, cause: str, words: str) -> None:
    found, sentence = why_it_died("/opt/llama-server", code, output)
    assert found == cause and words in sentence


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOENT, "no such file"), (errno.EACCES, "not executable"), (errno.ENOEXEC, "exec format"),
     (errno.EMFILE, "Too many open files")],
)  # fmt: skip
def test_why_a_program_was_not_executed(number: int, words: str) -> None:
    assert words in why_not_executed("/b", number)


def test_a_missing_binary_is_a_report_not_an_exception() -> None:
    report = probe(BinarySpec("x", "/nonexistent/llama-server"))
    assert report.cause == "missing_file" and "no such file" in report.problem


def test_a_changed_file_is_another_build(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("1")
    before = cache_key(BinarySpec("x", str(path)))
    assert before == cache_key(BinarySpec("y", str(path)))
    assert before != cache_key(BinarySpec("x", str(path), library_path=("/l",)))
    path.write_text("12")
    assert before != cache_key(BinarySpec("x", str(path)))


def test_failures_are_not_remembered(tmp_path: Path) -> None:
    prober = Prober()
    binary = BinarySpec("x", str(tmp_path / "none"))
    assert prober.report(binary).problem
    assert prober.cached(binary) is None

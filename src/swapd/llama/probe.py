"""What a llama-server build can do, and why one cannot run: asked once, by ``--version`` and ``--help``."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from swapd.core.spec import BinarySpec

PROBE_TIMEOUT_S = 15.0
EMBEDDED_MODULE = "swapd.llama.embedded"
HIDE_GPUS: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",
}
"""Set and empty: unset would mean all of them."""

LoadModeFlag: TypeAlias = Literal["--load-mode", "--no-mmap", ""]
CacheKey: TypeAlias = tuple[object, ...]

_LOST_LIBRARY = re.compile(r"error while loading shared libraries: ([^:\s]+)")
_LOST_SYMBOL = re.compile(r"(?:symbol lookup error|version `[^']+' not found).*")


@dataclass(frozen=True, slots=True)
class BinaryReport:
    """One build. ``problem`` (a sentence; ``cause`` its kind) is empty if it runs; what it lacks is not to be used.

    ``jinja``: whether chat templates are its default; ``None`` = not told.
    """

    path: str
    version: str = ""
    unix_socket: bool = False
    fit: bool = False
    slot_save_path: bool = False
    load_mode: LoadModeFlag = ""
    router: bool = False
    log_jsonl: bool = False
    jinja: bool | None = None
    problem: str = ""
    cause: str = ""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Words for ``swapd check``."""
        flags = {
            "unix sockets": self.unix_socket,
            "--fit": self.fit,
            "--slot-save-path": self.slot_save_path,
            self.load_mode: bool(self.load_mode),
            "router protocol": self.router,
        }
        return tuple(word for word, present in flags.items() if present)


def probe(binary: BinarySpec) -> BinaryReport:
    """Run a build's ``--version`` and ``--help``. Blocks, up to 15 s each; never raises."""
    path = binary.path and resolve(binary.path)
    command = [path] if path else embedded_command()
    env = {**os.environ, **HIDE_GPUS, **binary.env}
    env.pop("LD_LIBRARY_PATH", None)
    if binary.library_path:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(binary.library_path)
    try:
        version = _run([*command, "--version"], env)
        usage = _run([*command, "--help"], env)
    except subprocess.TimeoutExpired:
        problem = f"{command[0]} did not answer --version within {PROBE_TIMEOUT_S:.0f} s"
        return BinaryReport(path, problem=problem, cause="timeout")
    except OSError as error:
        return BinaryReport(path, problem=why_not_executed(command[0], error.errno), cause=exec_cause(error.errno))
    for run in (version, usage):
        # Some builds print their help with exit code 1; a help text is what counts there.
        if run.returncode < 0 or (run.returncode != 0 and (run is version or not run.stdout)):
            cause, problem = why_it_died(command[0], run.returncode, run.stdout)
            return BinaryReport(path, problem=problem, cause=cause)
    return read_capabilities(path, version.stdout, usage.stdout)


def embedded_command() -> list[str]:
    """The embedded engine as a program; the current directory must not shadow swapd."""
    return [sys.executable, "-P", "-m", EMBEDDED_MODULE]


def resolve(path: str) -> str:
    """A bare name is looked up on ``PATH``; one that is not there stays as it is."""
    return path if "/" in path else shutil.which(path) or path


def read_capabilities(path: str, version: str, usage: str) -> BinaryReport:
    """Capabilities as the help text tells them (pure)."""
    words = set(re.findall(r"--[a-z0-9-]+", usage))
    number = re.search(r"version:\s*(.+)", version)
    load_mode: LoadModeFlag = "--load-mode" if "--load-mode" in words else "--no-mmap" if "--no-mmap" in words else ""
    return BinaryReport(
        path,
        version=number[1].strip() if number else (version.strip().splitlines() or [""])[0],
        unix_socket=re.search(r"unix\s+socket", usage, re.IGNORECASE) is not None,
        fit="--fit" in words,
        slot_save_path="--slot-save-path" in words,
        load_mode=load_mode,
        router="--models-dir" in words,
        log_jsonl="--log-jsonl" in words,
        jinja=_jinja_default(usage),
    )


def _jinja_default(usage: str) -> bool | None:
    """Whether chat templates are used without ``--jinja``; ``None`` = the help does not say."""
    found = re.search(r"--jinja\b.*?\(default: (enabled|disabled)", usage, re.DOTALL)
    near = found is not None and found.end() - found.start() < 600
    return found[1] == "enabled" if found is not None and near else None


def why_it_died(path: str, returncode: int, output: str) -> tuple[str, str]:
    """Cause and sentence for a build that cannot even print its version (pure)."""
    name = os.path.basename(path)
    if returncode in (-signal.SIGILL, 128 + signal.SIGILL):
        return "illegal_instruction", (
            f"{name} died of SIGILL (illegal instruction): it was built for another CPU, with instructions like "
            "AVX-512 or AMX that this one lacks"
        )
    if lost := _LOST_LIBRARY.search(output):
        return "missing_library", f"{name} misses the shared library {lost[1]} (see library_path)"
    if symbol := _LOST_SYMBOL.search(output):
        return "missing_library", f"{name} found a wrong version of a shared library: {symbol[0][:200]}"
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    return "unknown", f"{name} --version failed ({how}): {last[:200]}"


def why_not_executed(path: str, number: int | None) -> str:
    """A sentence for a failed ``execve`` (pure)."""
    if number == errno.ENOENT:
        # The kernel says the same where only the interpreter (#! line, ELF loader) is missing.
        return f"{path}: no such file, or its interpreter is missing"
    if number == errno.EACCES:
        return f"{path} is not executable"
    if number == errno.ENOEXEC:
        return f"{path} is no program for this machine (exec format error)"
    return f"{path} cannot be executed: {os.strerror(number or 0)}"


def exec_cause(number: int | None) -> str:
    """The kind of a failed ``execve`` (pure)."""
    return {errno.ENOENT: "missing_file", errno.EACCES: "not_executable", errno.ENOEXEC: "not_executable"}.get(
        number or 0, "unknown"
    )


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=PROBE_TIMEOUT_S, check=False, encoding="utf-8", errors="replace",
    )  # fmt: skip


class Prober:
    """Reports by (path, size, mtime, library path): a build is asked again only when its file changed."""

    def __init__(self) -> None:
        self._reports: dict[CacheKey, BinaryReport] = {}

    def cached(self, binary: BinarySpec) -> BinaryReport | None:
        """The report, if this very file was probed and did run; never blocks for more than a ``stat``."""
        return self._reports.get(cache_key(binary))

    def report(self, binary: BinarySpec) -> BinaryReport:
        """The report; blocks for the first question. A failure is not remembered: it may be mended."""
        key = cache_key(binary)
        known = self._reports.get(key)
        report = known if known is not None else probe(binary)
        if not report.problem:
            self._reports[key] = report
        return report

    async def report_async(self, binary: BinarySpec) -> BinaryReport:
        """The same, without blocking the loop."""
        known = self.cached(binary)
        return known if known is not None else await asyncio.to_thread(self.report, binary)


def cache_key(binary: BinarySpec) -> CacheKey:
    """What identifies a build."""
    path = binary.path and resolve(binary.path)
    try:
        found = os.stat(path or sys.executable)
        identity = (found.st_size, found.st_mtime_ns)
    except OSError:
        identity = (-1, -1)
    return (path, *identity, binary.library_path, tuple(sorted(binary.env.items())))

"""What ``swapd doctor`` says of the machine and this process; a fact that cannot be had says so, nothing raises."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, TypeAlias

from swapd import __version__
from swapd.config.redact import is_secret_name
from swapd.units import MIB, format_size, mib

Lines: TypeAlias = list[tuple[str, str]]

PACKAGES: Final = ("click", "fastapi", "httptools", "nvidia-ml-py", "pydantic", "uvicorn", "uvloop", "xllamacpp")
LIMITS: Final = {"open files": "NOFILE", "locked memory": "MEMLOCK", "processes": "NPROC", "core files": "CORE"}
TELLING: Final = ("SWAPD_", "LLAMA_", "GGML_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "XDG_", "HF_", "LD_LIBRARY_PATH")


def versions() -> Lines:
    """swapd, Python, packages."""
    lines = [("swapd", __version__), ("Python", f"{platform.python_version()} {platform.python_implementation()}")]
    return lines + [(name, _version(name)) for name in PACKAGES]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def system() -> Lines:
    """The machine, this process's limits and its control group."""
    from swapd.devices.host import physical_cores, sample_ram
    from swapd.launch import procfs

    ram, cpus = sample_ram(), len(os.sched_getaffinity(0))
    total, free = (format_size(n) if n is not None else "?" for n in (ram.total_bytes, ram.free_bytes))
    lines = [
        ("system", _read(_os_name)),
        ("kernel", f"{platform.release()} {platform.machine()}"),
        ("processors", f"{cpus} usable, {physical_cores() or '?'} cores"),
        ("RAM", f"{total}, {free} available (a container's limit counts)"),
        ("user", f"uid {os.getuid()}, pid {os.getpid()} in pid namespace {procfs.pid_namespace()}"),
        ("container", _container()),
        ("control group", _read(lambda: Path("/proc/self/cgroup").read_text().strip().replace("\n", "; "))),
    ]
    return lines + [(f"limit: {what}", _limit(name)) for what, name in LIMITS.items()]


def _os_name() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")


def _container() -> str:
    marks = {"Docker": Path("/.dockerenv"), "Podman": Path("/run/.containerenv")}
    return next((name for name, path in marks.items() if path.exists()), "none seen")


def _limit(name: str) -> str:
    pair = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else str(n) for n in pair)
    return f"{soft} (hard: {hard})"


def _read(what: Callable[[], str]) -> str:
    try:
        return what()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def devices(source: str) -> Lines:
    """GPUs as swapd's source sees them, the driver, and the device files."""
    from swapd.devices.driver import driver_lines
    from swapd.devices.monitor import Monitor

    sample = Monitor(source).sample_now()
    lines = [("source", source), *driver_lines()]
    if not sample.gpus_known:
        lines.append(("GPUs", f"cannot be read: {sample.problem}"))
    for gpu in sample.gpus:
        free = f"{mib(gpu.free_bytes)} MiB free" if gpu.free_bytes is not None else "free memory cannot be read"
        lines.append((f"GPU {gpu.index}", f"{gpu.name}, {gpu.total_bytes // MIB} MiB, {free} [{gpu.id}]"))
    files = [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("kfd"), *Path("/dev/dri").glob("render*")]
    usable = (
        f"{p}{'' if os.access(p, os.R_OK | os.W_OK) else ' (no access)'}" for p in sorted(files) if not p.is_dir()
    )
    return [*lines, ("device files", ", ".join(usable) or "none")]


def environment(environ: Mapping[str, str] = os.environ) -> Lines:
    """Variables that matter, secrets removed."""
    names = sorted(n for n in environ if n.startswith(TELLING) or n.endswith("_VISIBLE_DEVICES"))
    return [(name, "[removed]" if is_secret_name(name) else environ[name]) for name in names]

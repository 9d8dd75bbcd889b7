"""What ``swapd check`` finds beyond the file itself: binaries that run, GGUFs that can be read, models that fit."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from swapd.config.lines import KeyPath
from swapd.config.listen import parse_listen
from swapd.config.resolve import Resolved
from swapd.core.ledger import MachineSample
from swapd.core.spec import PAGE_CACHE, BinarySpec, Footprint, LaunchSpec
from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.launch.runtime_dir import default_bases, why_unusable
from swapd.llama.probe import BinaryReport, probe
from swapd.planner.footprints import Footprints
from swapd.planner.law_setup import setup_of
from swapd.planner.laws import findings
from swapd.planner.places import find_gpu
from swapd.store import Store
from swapd.units import format_size, mib

_LONGEST_SOCKET_BYTES: Final = 107
"""Of a unix socket's path (``sun_path``)."""
_ELSEWHERE: Final = "choose another path, or ask as the user that swapd runs as"


@dataclass
class Report:
    """Mistakes are in ``Resolved.problems``; here is what to warn of, and what was found in order."""

    warnings: list[str] = field(default_factory=list)
    binaries: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, Footprint] = field(default_factory=dict)
    builds: dict[str, BinaryReport] = field(default_factory=dict)


def check_files(resolved: Resolved) -> Report:
    """Check every binary, GGUF and folder that is written to; mistakes go to ``resolved.problems``."""
    report = Report(list(resolved.warnings))
    for at, binary in _binaries(resolved):
        found = probe(binary)
        if found.problem:
            resolved.problems.add(at, found.problem)
        else:
            report.builds[binary.name] = found
            report.binaries[binary.name] = f"{found.version or 'version unknown'} ({', '.join(found.capabilities)})"
    for spec in resolved.launches.values():
        _check_gguf(resolved, spec)
        _check_program(resolved, spec)
    _check_sockets(resolved)
    _check_state_dir(resolved)
    _check_listen(resolved)
    return report


def check_gpus(resolved: Resolved, sample: MachineSample, *, files: bool) -> None:
    """Whether the GPUs that the file names are there, if it is known which are; mistakes go to ``resolved.problems``.

    A machine without any GPU is only believed if it is a simulated one: else it may lack the driver alone.
    ``files``: also whether a simulated one can be read.
    """
    is_simulated = resolved.device_source.startswith("file:")
    if not sample.gpus_known:
        if is_simulated and files:
            resolved.problems.add(("devices", "source"), sample.problem)
        return
    if not sample.gpus and not is_simulated:
        return
    there = ", ".join(f"{gpu.index} ({gpu.id})" for gpu in sample.gpus)
    for at, name in dict.fromkeys(_gpus_named(resolved)):
        if find_gpu(name, sample) is None:
            resolved.problems.add(at, f"this machine has no GPU {name}", f"it has {there or 'none'}")


def _gpus_named(resolved: Resolved) -> Iterator[tuple[KeyPath, str]]:
    """Each name of a GPU with its key; what a model has from ``[defaults]`` stands there."""
    lines = resolved.problems.lines
    yield from ((("headroom", "gpus", name), name) for name in resolved.catalog.policy.headroom_bytes)
    for id_, spec in resolved.launches.items():
        named = {"gpus": spec.gpus or (), "vram": spec.vram if isinstance(spec.vram, dict) else ()}
        for key, names in named.items():
            own = ("models", id_, key)
            yield from ((own if own in lines else ("defaults", key), str(name)) for name in names)


def size_models(resolved: Resolved, sample: MachineSample, report: Report, store: Store) -> None:
    """What each model would take on this machine; warnings of those that can never fit, and of laws broken."""
    if not sample.gpus_known:
        report.warnings.append(f"the GPUs cannot be read ({sample.problem}): the sizes are guesses")
    info = Footprints(resolved.launches, store, run="check", policy=resolved.catalog.policy)
    for id_, spec in resolved.launches.items():
        if spec.gguf and not os.path.exists(spec.gguf) and spec.vram == "auto":
            continue
        need = report.sizes[id_] = info.footprint(id_, sample)
        over = list(_over(resolved, need, sample))
        if over:
            report.warnings.append(f"{resolved.problems.file}: models.{id_} can never fit: {'; '.join(over)}")
    report.warnings += _broken(resolved, sample, report, info)


def _broken(resolved: Resolved, sample: MachineSample, report: Report, info: Footprints) -> Iterator[str]:
    """One line for each law that a model breaks, with its place in the file."""
    told = any("(M1)" in warning for warning in resolved.warnings)  # of the key itself, with its line
    for finding in findings(setup_of(resolved, sample, info, report.sizes, report.builds)):
        silenced = finding.law == "L1" and resolved.catalog.policy.page_cache == "off"
        if not silenced and not (told and finding.law == "M1"):
            line = resolved.problems.lines.get(("models", finding.model), 0)
            yield f"{resolved.problems.file}{f':{line}' if line else ''}: {finding}"


def _over(resolved: Resolved, need: Footprint, sample: MachineSample) -> Iterator[str]:
    policy = resolved.catalog.policy
    pages = need.on(PAGE_CACHE)
    if pages > sample.ram.total_bytes > 0:
        room = format_size(sample.ram.total_bytes)
        yield f"its weights read through the page cache and its memory are {format_size(pages)}, the RAM is {room} (L1)"
    for device in sample.devices():
        headroom = policy.headroom(device.id, str(device.index), device.pci_bus_id)
        size = need.on(device.id)
        if size > max(0, device.total_bytes - headroom):
            room = format_size(max(0, device.total_bytes - headroom))
            yield f"{device.id} needs {mib(size)} MiB, {room} is total minus headroom"


def _binaries(resolved: Resolved) -> Iterator[tuple[tuple[str, ...], BinarySpec]]:
    """Each configured binary, and the default one if a model uses it."""
    for name, binary in resolved.binaries.items():
        if os.path.exists(binary.path):
            yield ("binaries", name), binary
    seen: set[str] = set(resolved.binaries)
    for id_, spec in resolved.launches.items():
        if spec.binary is not None and spec.binary.name not in seen:
            seen.add(spec.binary.name)
            yield ("models", id_), spec.binary


def _check_gguf(resolved: Resolved, spec: LaunchSpec) -> None:
    if spec.gguf and os.path.exists(spec.gguf):
        try:
            read_header(spec.gguf)
        except (GgufError, OSError) as error:
            resolved.problems.add(("models", spec.id, "gguf"), str(error))


def _check_program(resolved: Resolved, spec: LaunchSpec) -> None:
    if spec.cmd and not (os.path.isfile(spec.cmd[0]) and os.access(spec.cmd[0], os.X_OK)):
        what = "is not executable" if os.path.exists(spec.cmd[0]) else "is no program on PATH"
        resolved.problems.add(("models", spec.id, "cmd"), f"{spec.cmd[0]} {what}")


def _check_sockets(resolved: Resolved) -> None:
    found = {base: why_unusable(base) for base in default_bases()}
    if all(found.values()):
        text = "; ".join(f"{base}: {why}" for base, why in found.items())
        resolved.problems.add((), f"no directory for the models' sockets: {text}", "set XDG_RUNTIME_DIR")


def _check_state_dir(resolved: Resolved) -> None:
    folder = resolved.state_dir
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if why := _why_not_written(nearest):
        resolved.problems.add(("server", "state_dir"), f"{folder} cannot be written: {why}", _ELSEWHERE)


def _check_listen(resolved: Resolved) -> None:
    """A socket's path; whether a port is free is known only when it is used."""
    path, at = parse_listen(resolved.server.listen).path, ("server", "listen")
    if not path:
        return
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        resolved.problems.add(at, f"{path}: there is no folder {folder}", "make it first")
    elif why := _why_not_written(Path(folder)):
        resolved.problems.add(at, f"{path} cannot be made: {why}", _ELSEWHERE)
    elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        resolved.problems.add(at, f"{path} is there and is no socket", "remove it, or choose another path")
    elif len(os.fsencode(path)) > _LONGEST_SOCKET_BYTES:
        resolved.problems.add(at, f"{path} is too long: a socket's path has {_LONGEST_SOCKET_BYTES} bytes at most")


def _why_not_written(folder: Path) -> str:
    """Empty if files can be made there."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable for this user"

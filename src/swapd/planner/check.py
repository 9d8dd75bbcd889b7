"""What ``swapd check`` finds beyond the file itself: binaries that run, GGUFs that can be read, models that fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

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
from swapd.store import Store
from swapd.units import format_size, mib


@dataclass
class Report:
    """Mistakes are in ``Resolved.problems``; here is what to warn of, and what was found in order."""

    warnings: list[str] = field(default_factory=list)
    binaries: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, Footprint] = field(default_factory=dict)
    builds: dict[str, BinaryReport] = field(default_factory=dict)


def check_files(resolved: Resolved) -> Report:
    """Check every binary, GGUF and the sockets' directory; mistakes go to ``resolved.problems``."""
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
    return report


def size_models(resolved: Resolved, sample: MachineSample, report: Report, store: Store) -> None:
    """What each model would take on this machine; warnings of those that can never fit, and of laws broken."""
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

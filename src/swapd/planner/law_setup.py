"""From a configuration and a sample to what the laws are judged by: headers are read, links followed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from swapd.config.resolve import Resolved
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import PAGE_CACHE, DeviceId, Footprint, LaunchSpec, ModelId
from swapd.devices.host import physical_cores
from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import flags_for, flags_of, llama_server_args
from swapd.llama.probe import BinaryReport
from swapd.planner.footprints import Footprints
from swapd.planner.law_facts import ModelFacts, Setup
from swapd.planner.places import find_gpu

_HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES."""


def setup_of(
    resolved: Resolved,
    sample: MachineSample,
    info: Footprints,
    sizes: Mapping[ModelId, Footprint],
    builds: Mapping[str, BinaryReport],
) -> Setup:
    """All models of a file on a machine; ``builds``: what each binary that was asked can do, by its name.

    ``sample``: with none of the models loaded. Of a simulated machine the cores are not known.
    """
    policy = resolved.catalog.policy
    headroom = {d.id: policy.headroom(d.id, str(d.index), d.pci_bus_id) for d in sample.devices()}
    known = resolved.device_source != "none" and sample.gpus_known
    room = {d.id: (d.free_bytes or 0) - headroom[d.id] for d in sample.devices()}
    room[PAGE_CACHE] = sample.ram.free_bytes or 0
    seen = sample if known else None
    models = [_facts(spec, seen, info, sizes, builds, room) for spec in resolved.launches.values()]
    return Setup(
        models=tuple(models),
        together=tuple(_together(resolved, sizes, sample.devices(), headroom)),
        gpus=sample.gpus if known else (),
        ram=sample.ram,
        headroom_bytes=headroom,
        cores=0 if resolved.device_source.startswith("file:") else physical_cores(),
    )


def _facts(
    spec: LaunchSpec,
    sample: MachineSample | None,
    info: Footprints,
    sizes: Mapping[ModelId, Footprint],
    builds: Mapping[str, BinaryReport],
    room: Mapping[DeviceId, int],
) -> ModelFacts:
    size, gpus = sizes.get(spec.id), _gpus(spec, sample)
    if size is not None and size.larger:
        size = size.best_for(room)
        spec = replace(spec, args=(*spec.args, *size.args))
    flags = flags_for(spec, info.default_ctx(spec.id))
    binary = spec.binary
    build = builds.get(binary.name) if binary else None
    args = (*(binary.args if binary else ()), *spec.args) if spec.gguf else llama_server_args(spec.cmd) or ()
    path = spec.gguf or next((f.value or "" for f in flags_of(args) if f.name in ("-m", "--model")), "")
    return ModelFacts(
        id=spec.id,
        flags=flags,
        args=args,
        env=_env(spec),
        header=_header(path),
        draft=_header(flags.draft_model),
        mmproj=_header(flags.mmproj),
        gpus=gpus,
        overhead_bytes={g.id: info.overhead(spec.id, g.id) for g in gpus or ()},
        need_bytes={} if size is None or size.alone_on else size.need_bytes,
        load_mode_flag=build.load_mode if build else "",
        jinja_default=build.jinja if build else None,
        dangling_link=_dangling(path),
    )


def _env(spec: LaunchSpec) -> dict[str, str]:
    """What of its environment the laws look at: ggml's switches, inherited ones too, and its own."""
    inherited = {k: v for k, v in os.environ.items() if k.startswith("GGML_") and k not in spec.scrub_env}
    return {**inherited, **(spec.binary.env if spec.binary else {}), **spec.env}


def _header(path: str) -> GgufHeader | None:
    try:
        return read_header(path) if path else None
    except (GgufError, OSError):
        return None


def _dangling(path: str) -> str:
    """Where a link leads that leads nowhere; empty for anything else."""
    if not os.path.islink(path) or os.path.exists(path):
        return ""
    return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _gpus(spec: LaunchSpec, sample: MachineSample | None) -> tuple[DeviceSample, ...] | None:
    """The GPUs a model may use, in its order; none if they are hidden, ``None`` if that cannot be told."""
    own = {**(spec.binary.env if spec.binary else {}), **spec.env}
    embedded = bool(spec.gguf) and spec.binary is not None and not spec.binary.path
    if embedded or spec.gpus == () or own.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return ()
    if sample is None or "CUDA_VISIBLE_DEVICES" in own:
        return None
    if spec.gpus is None:
        return sample.gpus
    found = [gpu for name in spec.gpus if (gpu := find_gpu(name, sample))]
    return tuple(found) if len(found) == len(spec.gpus) else None


def _together(
    resolved: Resolved,
    sizes: Mapping[ModelId, Footprint],
    devices: Sequence[DeviceSample],
    headroom: Mapping[DeviceId, int],
) -> Iterable[tuple[ModelId, ...]]:
    """Groups that stay loaded together; and the models in no group, if nothing swaps them and all of them fit."""
    catalog = resolved.catalog
    yield from (g.members for g in catalog.groups.values() if not g.swap and len(g.members) > 1)
    grouped = {m for g in catalog.groups.values() for m in g.members}
    free = tuple(m for m in catalog.models if m not in grouped)
    if catalog.policy.ungrouped != "headroom" or len(free) < 2 or any(m not in sizes for m in free):
        return
    if all(sum(sizes[m].on(d.id) for m in free) <= (d.free_bytes or 0) - headroom[d.id] for d in devices):
        yield free

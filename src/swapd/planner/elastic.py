"""The ways an elastic model can run (``ctx``, ``n_cpu_moe`` = "auto", a ladder), the best first, each with its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from swapd.core.flags import USUAL_CTX_TOKENS, EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import Footprint, LaunchSpec, Policy
from swapd.gguf.layers import layer_bytes
from swapd.gguf.memory import Prediction
from swapd.gguf.types import GgufHeader
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.planner.fit import even_split, offloaded_sizes, placed
from swapd.planner.machine import PlanGpu, measured_gpu
from swapd.planner.search import CONTEXTS

LEAST_CTX_TOKENS = 4096
"""With less an agent's system prompt does not fit."""
EVERY_LAYER_UP_TO = 48
"""Layers; of more, every second is tried."""

Predict = Callable[[EngineFlags], Prediction]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked: the model, its flags without the choices, and GPUs with their room if nothing were loaded."""

    spec: LaunchSpec
    header: GgufHeader
    flags: EngineFlags
    gpus: Sequence[PlanGpu]
    predict: Predict


def ways_of(
    spec: LaunchSpec,
    header: GgufHeader,
    flags: EngineFlags,
    gpus: Sequence[DeviceSample],
    policy: Policy,
    predict: Predict,
) -> list[Footprint]:
    """``ways`` for GPUs as they were read (free: if none of our models were loaded), under this headroom."""
    rooms = [measured_gpu(g, OVERHEAD_BYTES, policy.headroom(g.id, str(g.index), g.pci_bus_id)) for g in gpus]
    return ways(Case(spec, header, flags, rooms, predict))


def ways(case: Case) -> list[Footprint]:
    """The best way first, the smallest last; never empty.

    Fewer experts on the CPU come before more context, since they cost more speed: with both "auto" the usual context
    is tried with ever more experts on the CPU, then smaller contexts. A ladder's step is the last to give way.
    """
    if case.spec.ladder is not None:
        return list(_ladder(case))
    if not (case.spec.auto_n_cpu_moe and case.gpus and layer_bytes(case.header, case.flags).is_moe):
        return list(_contexts(case, _context_steps(case)))
    steps = _context_steps(case)
    usual = [ctx for ctx in steps if ctx <= max(USUAL_CTX_TOKENS, steps[-1])]
    first = replace(case.flags, ctx_tokens=usual[0])
    smaller = (replace(case.flags, ctx_tokens=ctx) for ctx in usual[1:])
    all_out = layer_bytes(case.header, first).count
    return [*_experts(case, first), *(_with_experts_out(case, flags, all_out) for flags in smaller)]


def _context_steps(case: Case) -> list[int]:
    if not case.spec.auto_ctx:
        return [case.flags.ctx_tokens]
    trained = case.header.n_ctx_train or USUAL_CTX_TOKENS
    slots = case.flags.parallel if case.flags.parallel > 1 and not case.flags.kv_unified else 1
    return [slots * ctx for ctx in (trained, *(c for c in CONTEXTS if LEAST_CTX_TOKENS <= c < trained))]


def _contexts(case: Case, steps: Sequence[int]) -> Iterator[Footprint]:
    for ctx in steps:
        found = case.predict(replace(case.flags, ctx_tokens=ctx)).footprint()
        yield replace(found, args=_ctx_args(case, ctx))


def _ctx_args(case: Case, ctx: int) -> tuple[str, ...]:
    return ("-c", str(ctx)) if case.spec.auto_ctx else ()


def _ladder(case: Case) -> Iterator[Footprint]:
    ladder = case.spec.ladder
    assert ladder is not None
    base = case.predict(case.flags).footprint()
    for step, size in zip(ladder.steps, ladder.size_bytes, strict=True):
        need = dict(base.need_bytes)
        if case.gpus:
            first = case.gpus[0].gpu.id
            need[first] = need.get(first, 0) + size
        yield replace(base, need_bytes=need, args=(ladder.flag, step))


def _experts(case: Case, flags: EngineFlags) -> Iterator[Footprint]:
    """One way for each number of layers whose experts lie on the host, from none to all; of many, every second."""
    layers = layer_bytes(case.header, flags)
    step = 1 if layers.count <= EVERY_LAYER_UP_TO else 2
    for shed in sorted({*range(0, layers.count + 1, step), layers.count}):
        yield _with_experts_out(case, flags, shed)


def _with_experts_out(case: Case, flags: EngineFlags, shed: int) -> Footprint:
    """Predicted twice: the second time with the split that what is not layers leaves room for."""
    layers = layer_bytes(case.header, flags)
    sizes, fixed = offloaded_sizes(layers, shed), [g.gpu.overhead_bytes for g in case.gpus]
    split = _split(case, sizes, fixed)
    found = case.predict(placed(flags, layers, shed, split))
    if len(case.gpus) > 1:
        start = 0
        for index, (device, count) in enumerate(zip(found.devices, split, strict=True)):
            fixed[index] = device.peak - sum(sizes[start : start + count])
            start += count
        split = _split(case, sizes, fixed)
        found = case.predict(placed(flags, layers, shed, split))
    words: tuple[str, ...] = ("--n-cpu-moe", str(shed)) if shed else ()
    words += ("-ts", ",".join(map(str, split))) if len(split) > 1 else ()
    return replace(found.footprint(), args=(*_ctx_args(case, flags.ctx_tokens), *words))


def _split(case: Case, sizes: Sequence[int], fixed: Sequence[int]) -> tuple[int, ...]:
    return even_split(sizes, [g.room_bytes - taken for g, taken in zip(case.gpus, fixed, strict=True)])[1]

"""The ways an elastic model can run (``ctx``, ``n_cpu_moe`` = "auto", a ladder), the best first, each with its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM, Footprint, LaunchSpec, Policy
from swapd.gguf.layers import layer_bytes
from swapd.gguf.memory import Prediction
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import has_flag
from swapd.planner.fit import even_split, offloaded_sizes, placed
from swapd.planner.machine import OVERHEAD_BYTES, PlanGpu, measured_gpu
from swapd.planner.search import CONTEXTS, USUAL_CTX_TOKENS

LEAST_CTX_TOKENS = 4096
"""With less an agent's system prompt does not fit."""
SPLIT_FLAGS = frozenset(["-ts", "--tensor-split"])
SLACK_BYTES = 4 << 20
"""Rounding of buffers between two predictions."""

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
    usual = [ctx for ctx in steps if ctx <= USUAL_CTX_TOKENS] or steps
    first = replace(case.flags, ctx_tokens=usual[0])
    found = list(_experts(case, first))
    return found + [_with_all_experts_out(case, ctx) for ctx in usual[1:]]


def _context_steps(case: Case) -> list[int]:
    if not case.spec.auto_ctx:
        return [case.flags.ctx_tokens]
    trained = case.header.n_ctx_train or USUAL_CTX_TOKENS
    return [trained, *(ctx for ctx in CONTEXTS if LEAST_CTX_TOKENS <= ctx < trained)]


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
    """One way for each number of layers whose experts lie on the host, from none to all.

    Predicted at a few numbers; between them what is not layers is the larger of both neighbours.
    """
    layers = layer_bytes(case.header, flags)
    anchors = sorted({0, 1, layers.count // 2, layers.count})
    known = {shed: _anchor(case, flags, shed) for shed in anchors}
    for shed in range(layers.count + 1):
        low = max(a for a in anchors if a <= shed)
        high = min(a for a in anchors if a >= shed)
        fixed = [max(pair) for pair in zip(known[low].fixed, known[high].fixed, strict=True)]
        sizes = offloaded_sizes(layers, shed)
        split = known[shed].split if shed in known else _split(case, sizes, fixed)
        need, start = {}, 0
        for gpu, count, rest in zip(case.gpus, split, fixed, strict=True):
            need[gpu.gpu.id] = sum(sizes[start : start + count]) + rest + (0 if shed in known else SLACK_BYTES)
            start += count
        share = (shed - low) / (high - low) if high > low else 0.0
        need[RAM] = round(known[low].ram + share * (known[high].ram - known[low].ram))
        words: tuple[str, ...] = ("--n-cpu-moe", str(shed)) if shed else ()
        words += ("-ts", ",".join(map(str, split))) if len(split) > 1 and not _keeps_split(case) else ()
        yield Footprint(need, known[high].growth, args=(*_ctx_args(case, flags.ctx_tokens), *words))


@dataclass(frozen=True, slots=True)
class _Anchor:
    fixed: list[int]
    split: tuple[int, ...]
    ram: int
    growth: dict[str, int]


def _anchor(case: Case, flags: EngineFlags, shed: int) -> _Anchor:
    layers = layer_bytes(case.header, flags)
    sizes = offloaded_sizes(layers, shed)
    split = _split(case, sizes, [g.gpu.overhead_bytes for g in case.gpus])
    found = case.predict(placed(flags, layers, shed, () if _keeps_split(case) else split))
    print_ = found.footprint()
    fixed, start = [], 0
    for device, count in zip(found.devices, split, strict=True):
        fixed.append(device.peak - sum(sizes[start : start + count]))
        start += count
    return _Anchor(fixed, split, print_.on(RAM), dict(print_.growth_bytes))


def _keeps_split(case: Case) -> bool:
    return has_flag(case.spec.args, SPLIT_FLAGS)


def _split(case: Case, sizes: Sequence[int], fixed: Sequence[int]) -> tuple[int, ...]:
    return even_split(sizes, [g.room_bytes - taken for g, taken in zip(case.gpus, fixed, strict=True)])[1]


def _with_all_experts_out(case: Case, ctx: int) -> Footprint:
    *_, least = _experts(case, replace(case.flags, ctx_tokens=ctx))
    return least

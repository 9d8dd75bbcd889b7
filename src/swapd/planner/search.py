"""The choices of ``swapd plan``: placement, context, KV cache types, ubatch, threads, load mode; one model or a set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

from swapd.core.flags import USUAL_CTX_TOKENS, EngineFlags, usual_ctx
from swapd.gguf.layers import layer_bytes
from swapd.gguf.model import Model
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import CTX_FLAGS, GPU_LAYER_FLAGS, has_flag, parse_flags
from swapd.planner.estimate import prediction
from swapd.planner.fit import Fit, as_asked, fit, may_be_whole, over_room
from swapd.planner.machine import Machine, PlanGpu
from swapd.planner.options import CACHE_TYPES, Ask, ModelPlan, Option, quality
from swapd.planner.speed import estimate_speed
from swapd.units import format_size

PLACEMENT_FLAGS = GPU_LAYER_FLAGS | {
    "-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor", "-ts", "--tensor-split", "-sm",
    "--split-mode", "-dev", "--device", "-mg", "--main-gpu",
}  # fmt: skip
CACHE_FLAGS = frozenset(["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"])
UBATCH_FLAGS = frozenset(["-ub", "--ubatch-size"])
THREAD_FLAGS = frozenset(["-t", "--threads"])
LOAD_FLAGS = frozenset(["-lm", "--load-mode", "--no-mmap", "--mmap", "--mlock", "-dio", "--direct-io"])
CONTEXTS = (262_144, 196_608, 131_072, 98_304, 65_536, 49_152, 32_768, 24_576, 16_384, 12_288, 8_192, 4_096, 2_048)
UBATCHES = (512, 2048)
"""llama-server's own, and the one that prefill with CPU experts wants (M5). Less frees little and costs 38 % (N6)."""
OPTIONS_KEPT = 6


def plan_set(asks: Sequence[Ask], machine: Machine) -> list[ModelPlan]:
    """Models that stay loaded together: VRAM to the smallest first (L8), each beside those before it; in given order.

    Raises:
        GgufError, OSError: a draft model or projector that the flags name cannot be read.
    """
    plans: dict[int, ModelPlan] = {}
    for ask in sorted(asks, key=lambda a: a.header.file_bytes):
        found = plans[id(ask)] = plan_model(ask, machine)
        if found.best is not None:
            taken = found.best.taken()
            gpus = tuple(g.less(taken.get(g.gpu.id, 0)) for g in machine.gpus)
            machine = replace(machine, gpus=gpus, ram_bytes=machine.ram_bytes - found.best.prediction.host.need)
    return [plans[id(ask)] for ask in asks]


def plan_model(ask: Ask, machine: Machine) -> ModelPlan:
    """Every sensible way that fits, ordered by what it costs in speed, context and quality of the cache."""
    flags = parse_flags(ask.args)
    trained = ask.header.n_ctx_train or USUAL_CTX_TOKENS
    fixed_ctx = ask.ctx_tokens or ((flags.ctx_tokens or trained) if has_flag(ask.args, CTX_FLAGS) else 0)
    usual = fixed_ctx or usual_ctx(trained)
    found: list[Option] = []
    for start in _variants(ask, replace(flags, ctx_tokens=usual)):
        found += _options(ask, start, machine, usual)
    if not fixed_ctx:
        found += _other_contexts(ask, found, machine, usual, trained)
    found = sorted(_undominated(found), key=lambda o: (o.step_bytes, o.utility), reverse=True)[:OPTIONS_KEPT]
    if not found:
        return ModelPlan(ask, (), _why_nothing(ask, replace(flags, ctx_tokens=usual), machine))
    return ModelPlan(ask, tuple(found), hints=tuple(_hints(found[0], machine)))


def _undominated(found: Sequence[Option]) -> list[Option]:
    """Options of which none is at least as good in everything; of equal ones the first."""
    kept: list[Option] = []
    for option in sorted(found, key=lambda o: (o.merits(), -len(o.gpus)), reverse=True):
        if not any(all(a >= b for a, b in zip(k.merits(), option.merits(), strict=True)) for k in kept):
            kept.append(option)
    return kept


def _variants(ask: Ask, flags: EngineFlags) -> Iterator[EngineFlags]:
    """Cache types and ubatches that the arguments leave open."""
    caches = [(flags.cache_type_k, flags.cache_type_v)]
    if not has_flag(ask.args, CACHE_FLAGS):
        flash = flags.flash_attention != "off"  # V is not quantized without it
        caches = [(k, v) for k, v, _ in CACHE_TYPES if flash or v == "f16"]
    is_moe = layer_bytes(ask.header, flags).is_moe
    sizes = UBATCHES if is_moe and not has_flag(ask.args, UBATCH_FLAGS) else (flags.ubatch_tokens,)
    for key, value in caches:
        for size in sizes:
            batch = max(flags.batch_tokens, size)
            yield replace(flags, cache_type_k=key, cache_type_v=value, ubatch_tokens=size, batch_tokens=batch)


def _other_contexts(ask: Ask, found: Sequence[Option], machine: Machine, usual: int, trained: int) -> list[Option]:
    """More context where everything is on the GPUs anyway; less where that brings it there, or fits at all."""
    more: list[Option] = []
    for start in {o.flags.cache_type_k + o.flags.cache_type_v: o for o in found if o.whole}.values():
        for ctx in (c for c in (trained, *CONTEXTS) if usual < c <= trained):
            larger = [o for o in _options(ask, _plain(start.flags, ctx), machine, usual) if o.whole]
            if larger:
                more += larger
                break
    if more or any(o.whole for o in found):
        return more
    for variant in _variants(ask, parse_flags(ask.args)):
        for ctx in (c for c in CONTEXTS if c < usual):
            less = replace(variant, ctx_tokens=ctx)
            if found and not may_be_whole(ask.header, less, machine.gpus):
                continue
            smaller = _options(ask, less, machine, usual)
            more += smaller
            if any(o.whole for o in smaller) or (smaller and not found):
                break
    return more


def _plain(flags: EngineFlags, ctx_tokens: int) -> EngineFlags:
    return replace(flags, ctx_tokens=ctx_tokens, gpu_layers=999, n_cpu_moe=0, tensor_split=())


def _options(ask: Ask, flags: EngineFlags, machine: Machine, usual: int) -> list[Option]:
    """This context and cache on the GPUs of the machine: on one, on several, and on none."""
    found = []
    if has_flag(ask.args, PLACEMENT_FLAGS):
        found = _on(ask, flags, machine.gpus, machine, usual, search=False)
    else:
        for gpus in _sets(ask.header, flags, machine.gpus):
            found += _on(ask, flags, gpus, machine, usual, search=True)
            if any(o.whole for o in found):
                break
        found += _on(ask, flags, (), machine, usual, search=False)
    return found


def _sets(header: GgufHeader, flags: EngineFlags, gpus: tuple[PlanGpu, ...]) -> Iterator[tuple[PlanGpu, ...]]:
    """One GPU, the smallest room first, then more of the largest, where all might fit; at last all, in CUDA's order."""
    sets: list[tuple[PlanGpu, ...]] = [(one,) for one in sorted(gpus, key=lambda g: g.room_bytes)]
    largest = sorted(gpus, key=lambda g: g.room_bytes, reverse=True)
    sets += [tuple(g for g in gpus if g in largest[:count]) for count in range(2, len(gpus) + 1)]
    yield from (some for some in sets[:-1] if may_be_whole(header, flags, some))
    yield from sets[-1:]


def _on(
    ask: Ask, flags: EngineFlags, gpus: tuple[PlanGpu, ...], machine: Machine, usual: int, *, search: bool
) -> list[Option]:
    steps = range(len(ask.ladder.steps)) if ask.ladder and gpus else (None,)
    for step in steps:
        pool = ask.ladder.sizes[step] if ask.ladder and step is not None else 0
        rooms = tuple(g.less(pool) if not i else g for i, g in enumerate(gpus))
        found = fit(ask.header, flags, rooms) if search and gpus else as_asked(ask.header, flags, rooms)
        if found is not None:
            option = _finished(ask, found, gpus, rooms, machine, usual, step)
            return [option] if option else []
    return []


def _finished(
    ask: Ask,
    found: Fit,
    gpus: tuple[PlanGpu, ...],
    rooms: tuple[PlanGpu, ...],
    machine: Machine,
    usual: int,
    step: int | None,
) -> Option | None:
    """Threads and load mode for what runs on the host; ``None`` if the RAM is not enough."""
    flags, result = found.flags, found.prediction
    on_host = not gpus or flags.n_cpu_moe > 0 or flags.cpu_moe or flags.gpu_layers < Model(ask.header).all_layers + 1
    if on_host and machine.cores and not has_flag(ask.args, THREAD_FLAGS):
        flags = replace(flags, threads=machine.cores)
    if on_host and gpus and not has_flag(ask.args, LOAD_FLAGS):
        read = prediction(ask.header, replace(flags, load_mode="none"), [g.gpu for g in gpus])
        if read.host.need <= machine.ram_bytes and all(n <= 0 for n in over_room(read, rooms)):
            flags, result = replace(flags, load_mode="none"), read
    if result.host.need > machine.ram_bytes:
        return None
    speed = estimate_speed(ask.header, flags, result, machine.ram_bytes)
    utility = quality(flags) * sqrt(result.n_ctx / usual) / speed.turn_s()
    return Option(ask, flags, gpus, result, speed, utility, found.shed, step, bool(gpus) and not on_host)


def _why_nothing(ask: Ask, flags: EngineFlags, machine: Machine) -> str:
    """The least it would take, and what there is."""
    hidden = prediction(ask.header, flags, [])
    ram = f"RAM: {format_size(hidden.host.need)} of {format_size(max(machine.ram_bytes, 0))} without a GPU"
    if not machine.gpus:
        return ram
    if not has_flag(ask.args, PLACEMENT_FLAGS):
        sizes = layer_bytes(ask.header, flags)
        flags = replace(flags, n_cpu_moe=sizes.count) if sizes.is_moe else flags
    found = prediction(ask.header, flags, [g.gpu for g in machine.gpus])
    parts = [
        f"{d.id}: {format_size(d.peak)} of {format_size(g.room_bytes)}"
        for d, g in zip(found.devices, machine.gpus, strict=True)
    ]
    return "; ".join([*parts, ram])


def _hints(best: Option, machine: Machine) -> Iterator[str]:
    """What would bring more onto the GPUs, with its price."""
    ask, flags = best.ask, best.flags
    if best.whole or not machine.gpus or has_flag(ask.args, PLACEMENT_FLAGS):
        return
    layers = layer_bytes(ask.header, flags)
    if best.gpus:
        sizes = layers.experts if layers.is_moe else layers.dense
        what = "experts of one more layer" if layers.is_moe else "one more layer"
        yield f"{what}: {format_size(sizes[best.shed - 1])} more VRAM"
        missing = sum(sizes[: best.shed])
    else:
        everything = prediction(ask.header, _plain(flags, best.prediction.n_ctx), [g.gpu for g in machine.gpus])
        missing = sum(d.peak for d in everything.devices) - sum(g.room_bytes for g in machine.gpus)
    yield f"everything on the GPU: about {format_size(max(missing, 0))} more VRAM"
    cache = sum(layers.cache)
    if best.prediction.n_ctx > 8192:
        yield f"half the context ({best.prediction.n_ctx // 2:,} tokens) frees {format_size(cache // 2)}"
    if flags.cache_type_k == "f16" and not has_flag(ask.args, CACHE_FLAGS):
        yield f"a q8_0 KV cache frees {format_size(cache * 15 // 32)}"

"""Laws about what fits where: they compare footprints, as they are and with other flags, with the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from swapd.core.spec import PAGE_CACHE, RAM
from swapd.gguf.host import uses_mmap
from swapd.gguf.placement import EXPERTS
from swapd.planner.law_checks import Broken, Problem
from swapd.planner.law_facts import ModelFacts, Setup
from swapd.planner.page_cache import CacheVerdict, cache_room, judge_cache
from swapd.units import format_size

M5_UBATCH_TOKENS = 2048
"""The physical batch that made a prefill eight times as fast."""
ALL_LAYERS = 999


# ---- the page cache, and memory that is pinned


def beyond_the_page_cache(setup: Setup) -> Iterator[Broken]:
    """L1: weights mapped from the file exceed the RAM left to cache them; alone, or loaded together."""
    if setup.ram.free_bytes is None:
        return
    slow = {m.id for m in setup.models if not _cache(setup, [m]).fits}
    for model in setup.models:
        if model.id in slow:
            yield model.id, _cache(setup, [model]).problem, "take a smaller quantization"
    for ids in setup.together:
        members = [m for m in setup.models if m.id in ids and m.cached_bytes]
        verdict = _cache(setup, members)
        if not verdict.fits and not slow & {m.id for m in members}:
            largest = max(members, key=lambda m: m.cached_bytes)
            others = ", ".join(m.id for m in members if m is not largest)
            yield largest.id, f"together with {others}: {verdict.problem}", "take smaller files, or let them swap"


def _cache(setup: Setup, members: list[ModelFacts]) -> CacheVerdict:
    room = cache_room(setup.ram.free_bytes or 0, (m.need.get(RAM, 0) for m in members))
    return judge_cache((m.cached_bytes for m in members), room)


def pinned_beyond_ram(model: ModelFacts, setup: Setup) -> Problem | None:
    """L6: weights locked or registered in RAM that has no room for them."""
    locks = "mlock" in model.flags.load_mode
    registers = "GGML_CUDA_REGISTER_HOST" in model.env and uses_mmap(model.flags) and model.sees_gpus
    room = setup.ram.total_bytes - setup.headroom_bytes.get(RAM, 0)
    if not (locks or registers) or not setup.ram.total_bytes or model.host_bytes <= room:
        return None
    how, remedy = ("mlock", "leave --mlock off") if locks else ("GGML_CUDA_REGISTER_HOST", "leave it unset")
    size = format_size(model.host_bytes)
    return f"{how} pins {size} of weights, and RAM has {format_size(room)} beside its headroom", remedy


def mapped_cpu_experts(model: ModelFacts, setup: Setup) -> Problem | None:
    """M6: experts on the CPU, mapped although RAM has room for a copy of them."""
    if not (model.sees_gpus and model.cached_bytes and model.cpu_experts):
        return None
    beside = setup.beside(model)
    room = setup.room(RAM, beside)
    need = model.need.get(RAM, 0) + model.host_bytes + sum(m.cached_bytes for m in beside)
    if room is None or need > room:
        return None
    flag = {"--load-mode": "--load-mode none", "--no-mmap": "--no-mmap"}.get(model.load_mode_flag, "")
    size = format_size(model.host_bytes)
    return (
        f"experts on the CPU are mapped from the file, and RAM has room for their {size}",
        flag or "--load-mode none (older builds: --no-mmap)",
    )


# ---- VRAM


def spare_vram(model: ModelFacts, setup: Setup) -> Problem | None:
    """L3: more layers' experts on the CPU than VRAM asks for."""
    flags, layout = model.flags, model.model
    if layout is None or not model.sees_gpus or not (flags.cpu_moe or flags.n_cpu_moe):
        return None
    given = layout.layers if flags.cpu_moe else min(flags.n_cpu_moe, layout.layers)
    enough = _fewest_on_cpu(model, setup, given)
    moved = [t.nbytes for at in range(enough, given) for t in layout.by_layer.get(at, []) if EXPERTS.search(t.name)]
    if not moved:
        return None
    size = format_size(sum(moved))
    return (
        f"the experts of {given} layers are on the CPU, and VRAM has room for {given - enough} of them ({size})",
        f"--n-cpu-moe {enough}",
    )


def _fewest_on_cpu(model: ModelFacts, setup: Setup, given: int) -> int:
    """Layers whose experts must stay on the CPU: the fewer, the more each GPU holds."""
    low, high = 0, given
    while low < high:
        middle = (low + high) // 2
        if _fits_with(model, setup, n_cpu_moe=middle, cpu_moe=False):
            high = middle
        else:
            low = middle + 1
    return high


def larger_ubatch(model: ModelFacts, setup: Setup) -> Problem | None:
    """M5: experts on the CPU, a small physical batch, and VRAM for a large one."""
    flags = model.flags
    if not (model.sees_gpus and model.cpu_experts) or flags.embedding:
        return None
    tokens = min(flags.ubatch_tokens, flags.batch_tokens)
    batch = max(flags.batch_tokens, M5_UBATCH_TOKENS)
    if tokens >= M5_UBATCH_TOKENS:
        return None
    if not _fits_with(model, setup, ubatch_tokens=M5_UBATCH_TOKENS, batch_tokens=batch):
        return None
    also = f"-b {batch} " if batch > flags.batch_tokens else ""
    text = f"prefill goes in batches of {tokens} tokens, and VRAM has room for {M5_UBATCH_TOKENS}"
    return text, f"{also}-ub {M5_UBATCH_TOKENS}"


def _fits_with(model: ModelFacts, setup: Setup, **changes: object) -> bool:
    need = model.need_with(**changes)
    return need is not None and setup.fits(need, setup.beside(model))


def heavy_last_gpu(model: ModelFacts, setup: Setup) -> Problem | None:
    """N1: ``--n-cpu-moe`` lightens the first layers, which ``-sm layer`` gives to one GPU: another is too full."""
    flags, placement = model.flags, model.placement
    if placement is None or not model.gpus or len(placement.devices) < 2 or flags.tensor_split:
        return None
    need = model.need_with()
    if flags.n_cpu_moe <= 0 or flags.cpu_moe or flags.split_mode != "layer" or need is None:
        return None
    over = [d for d, size in need.items() if d != RAM and not setup.fits({d: size}, setup.beside(model))]
    split = _split_that_fits(model, setup) if over else ""
    if not split:
        return None
    full = ", ".join(f"{d} needs {format_size(need[d])} of {format_size(setup.room(d) or 0)}" for d in over)
    return f"--n-cpu-moe {flags.n_cpu_moe} lightens the layers of the first GPU only, and {full}", f"-ts {split}"


def _split_that_fits(model: ModelFacts, setup: Setup) -> str:
    """The share of layers that leaves the most, empty if none fits; on more than two GPUs only described."""
    assert model.model is not None and model.placement is not None
    layers, beside = model.model.layers, setup.beside(model)
    if len(model.placement.devices) > 2:
        need = {d: size for d, size in model.need.items() if d != RAM}
        room = sum(setup.room(d, beside) or 0 for d in need)
        return "with more layers for the first GPU" if sum(need.values()) <= room else ""
    low, high = 1, layers - 1
    while low < high:  # with every layer more, the first GPU has less left and the second more
        middle = (low + high + 1) // 2
        first, second = _left(model, setup, middle)
        low, high = (middle, high) if first >= second else (low, middle - 1)
    least, layers_of_first = max((min(_left(model, setup, n)), n) for n in {low, min(low + 1, layers - 1)})
    return f"{layers_of_first},{layers - layers_of_first}" if least >= 0 else ""


def _left(model: ModelFacts, setup: Setup, first: int) -> tuple[int, int]:
    """Bytes that two GPUs have left beside the headroom, with so many layers on the first; negative if too few."""
    assert model.model is not None and model.gpus is not None and model.placement is not None
    need = model.need_with(tensor_split=(float(first), float(model.model.layers - first)))
    if need is None:
        return -1, -1
    gpus = [model.gpus[at].id for at in model.placement.devices]
    one, two = ((setup.room(g, setup.beside(model)) or 0) - need.get(g, 0) for g in gpus)
    return one, two


def vram_for_the_larger(setup: Setup) -> Iterator[Broken]:
    """L8: of two models loaded together the larger holds VRAM that would take the smaller one whole."""
    for ids in setup.together:
        members = [m for m in setup.models if m.id in ids]
        for small in members:
            for large in members:
                if small.header and large.header and small.header.file_bytes < large.header.file_bytes:
                    yield from _vram_wasted(small, large, setup)


def _vram_wasted(small: ModelFacts, large: ModelFacts, setup: Setup) -> Iterator[Broken]:
    held = sum(size for device, size in large.need.items() if device not in (RAM, PAGE_CACHE))
    if small.flags.embedding or small.gpus is None or not held or (small.placement and small.placement.full_offload):
        return
    whole = replace(
        small.flags, gpu_layers=ALL_LAYERS, n_cpu_moe=0, cpu_moe=False, override_tensors=(), fit=False, devices=""
    )
    then = small.predicted(whole, small.gpus or setup.gpus)
    others = [m for m in setup.beside(small) if m.id != large.id]
    if then is None or not then.devices or not setup.fits(then.footprint().need_bytes, others):
        return
    vram = format_size(sum(d.peak for d in then.devices))
    text = f"{large.id}, the larger file, holds {format_size(held)} of VRAM beside it, and it is not wholly on the GPU"
    yield small.id, text, f"give it the GPU (-ngl 999 takes {vram}) and hide it from {large.id} (gpus = [])"

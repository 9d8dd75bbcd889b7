"""Laws that flags, environment and header decide by themselves; each returns the problem and the remedy, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from swapd.core.spec import ModelId
from swapd.llama.flags import flags_of
from swapd.planner.law_facts import ModelFacts, Setup
from swapd.units import GIB, format_size

Problem: TypeAlias = tuple[str, str]
"""What is wrong here, and the remedy."""
Broken: TypeAlias = tuple[ModelId, str, str]
"""The same with the model in front; empty for the machine's settings."""

L5_MOSTLY = 0.5
"""M7 gained with the experts mostly on the GPU, L5 lost with them on the CPU."""
L11_ACCURATE = frozenset(["f32", "f16", "bf16", "q8_0"])
"""Types of K within the gate of +0.5 perplexity; q4_0 and turbo2 were measured outside."""
M1_HEADROOM_BYTES = GIB
"""Held for four minutes at full load; 637 MiB and less collapsed."""
N3_DESKTOP_BYTES = GIB
"""Host N's desktop held about 1.1 GiB; what a driver keeps for itself is less."""
N6_UBATCH_TOKENS = 512


def draft_with_cpu_experts(model: ModelFacts, _setup: Setup) -> Problem | None:
    """L5: a draft model or MTP head while most experts are computed by the CPU."""
    flags, share = model.flags, model.cpu_experts
    if not (flags.draft_model or "draft-" in flags.spec_type) or share is None or share < L5_MOSTLY:
        return None
    what = f"--spec-type {flags.spec_type}" if flags.spec_type else "a draft model"
    return f"{what} with {share:.0%} of the experts on the CPU", "leave speculative decoding off"


def ngram_with_cpu_experts(model: ModelFacts, _setup: Setup) -> Problem | None:
    """N5: n-gram speculation with any expert on the CPU."""
    kinds = [k.strip() for k in model.flags.spec_type.split(",") if k.strip().startswith("ngram")]
    if any(flag.name == "--spec-default" for flag in flags_of(model.args)):
        kinds.append("--spec-default")
    if not kinds or not model.has_cpu_experts:
        return None
    return f"speculative decoding ({', '.join(kinds)}) with experts on the CPU", "leave it off"


def visible_gpu_without_layers(model: ModelFacts, _setup: Setup) -> Problem | None:
    """L9: no layer on the GPU, but the GPU not hidden."""
    if model.flags.gpu_layers != 0 or not model.sees_gpus or model.flags.fit:
        return None
    devices = model.prediction.devices if model.prediction else ()
    sizes = ", ".join(f"{format_size(d.peak)} on {d.id}" for d in devices if d.peak)
    takes = f" (predicted: {sizes})" if sizes else ""
    return f"-ngl 0 still takes memory on every GPU it sees{takes}", "hide them: gpus = []"


def inaccurate_k(model: ModelFacts, _setup: Setup) -> Problem | None:
    """L11: K of the cache below q8_0, or in a type nobody knows."""
    kind = model.flags.cache_type_k
    if kind in L11_ACCURATE:
        return None
    return f"--cache-type-k {kind} is below q8_0", "keep K at q8_0 or better and let V go lower, or measure this model"


def thin_headroom(setup: Setup) -> Iterator[Broken]:
    """M1: less than 1 GiB kept free on a GPU of the models' own."""
    for name, headroom, desktop in _headrooms(setup):
        if headroom < M1_HEADROOM_BYTES and desktop < N3_DESKTOP_BYTES:
            yield (
                "",
                f"{format_size(headroom)} of headroom on {name} is less than 1 GiB",
                "keep 1 GiB ([headroom] vram)",
            )


def thin_headroom_beside_a_desktop(setup: Setup) -> Iterator[Broken]:
    """N3: the same on a GPU that other programs use."""
    for name, headroom, desktop in _headrooms(setup):
        if headroom < M1_HEADROOM_BYTES and desktop >= N3_DESKTOP_BYTES:
            text = f"{format_size(headroom)} of headroom on {name}, where other programs hold {format_size(desktop)}"
            yield "", text, "keep 1 GiB there ([headroom.gpus])"


def _headrooms(setup: Setup) -> Iterator[tuple[str, int, int]]:
    for gpu in setup.gpus:
        if gpu.id in setup.headroom_bytes:
            free = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
            yield f"GPU {gpu.index}", setup.headroom_bytes[gpu.id], gpu.total_bytes - free


def graphs_off(model: ModelFacts, _setup: Setup) -> Problem | None:
    """M4: CUDA graphs off; ggml only asks whether the variable is there."""
    value = model.env.get("GGML_CUDA_DISABLE_GRAPHS")
    if value is None or not model.sees_gpus:
        return None
    return f'GGML_CUDA_DISABLE_GRAPHS="{value}" turns CUDA graphs off, as any value does', "leave it unset"


def threads_above_cores(model: ModelFacts, setup: Setup) -> Problem | None:
    """N2: more threads than physical cores."""
    threads = model.flags.threads
    if not setup.cores or threads <= setup.cores:
        return None
    return f"--threads {threads} on {setup.cores} physical cores", f"--threads {setup.cores}"


def small_ubatch(model: ModelFacts, _setup: Setup) -> Problem | None:
    """N6: a physical batch below 512, where a GPU does the prefill."""
    tokens = min(model.flags.ubatch_tokens, model.flags.batch_tokens)
    if tokens >= N6_UBATCH_TOKENS or not model.sees_gpus:
        return None
    return f"a physical batch of {tokens} tokens saves little memory and slows prefill down", "-ub 512 or more"


def dangling_link(model: ModelFacts, _setup: Setup) -> Problem | None:
    """N8: the GGUF is a link, and what it leads to is not here."""
    target = model.dangling_link
    if not target:
        return None
    folder = target.split("/blobs/")[0] if "/blobs/" in target else ""
    what = f"mount the whole repository folder{f' ({folder})' if folder else ''}, not only the snapshot"
    return f"its GGUF is a link to {target}, which is not there", what


def tools_without_jinja(model: ModelFacts, _setup: Setup) -> Problem | None:
    """N10: a template that knows tools, and a server told (or built) not to use it."""
    template = model.header.text("tokenizer.chat_template") if model.header else ""
    given = [flag.name for flag in flags_of(model.args) if flag.name in ("--jinja", "--no-jinja")]
    on = given[-1] == "--jinja" if given else model.jinja_default
    if on is not False or "tool" not in template:
        return None
    how = "--no-jinja" if given else "this build without --jinja"
    return f"its chat template calls tools, and {how} does not apply it", "--jinja"

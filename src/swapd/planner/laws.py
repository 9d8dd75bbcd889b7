"""The laws: what was measured on three machines, each as a check of a configuration (docs/laws.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from swapd.planner import law_checks as checks
from swapd.planner import law_memory as memory
from swapd.planner.law_checks import Broken, Problem
from swapd.planner.law_facts import Finding, ModelFacts, Setup
from swapd.planner.page_cache import FIGURE as CLIFF

Check: TypeAlias = Callable[[Setup], Iterable[Broken]]


@dataclass(frozen=True, slots=True)
class Law:
    """One law: what it says, the figure that was measured, and who breaks it."""

    id: str
    title: str
    figure: str
    check: Check

    def findings(self, setup: Setup) -> Iterator[Finding]:
        """Everything that breaks it."""
        for model, problem, remedy in self.check(setup):
            yield Finding(self.id, model, f"{problem} ({self.figure})", remedy)


def each(check: Callable[[ModelFacts, Setup], Problem | None]) -> Check:
    """A check of one model, asked of all."""

    def of_all(setup: Setup) -> Iterator[Broken]:
        for model in setup.models:
            if problem := check(model, setup):
                yield model.id, *problem

    return of_all


LAWS: tuple[Law, ...] = (
    Law("L1", "What is mapped must fit the page cache", CLIFF, memory.beyond_the_page_cache),
    Law(
        "L3",
        "No more experts on the CPU than must be",
        "three layers' experts in spare VRAM: +16 % decode, +32 % prefill",
        each(memory.spare_vram),
    ),
    Law(
        "L5",
        "No draft model or MTP with experts on the CPU",
        "-20 % even at 80 % acceptance",
        each(checks.draft_with_cpu_experts),
    ),
    Law(
        "L6",
        "No pinning beyond RAM",
        "17.7 GB on 15 GiB of RAM reads 650 MB from disk a token, with nothing pinned yet",
        each(memory.pinned_beyond_ram),
    ),
    Law(
        "L8",
        "VRAM goes to the small model",
        "the small one from 5.8 to 43 tokens/s, the large one from 10.6 to 8.0",
        memory.vram_for_the_larger,
    ),
    Law(
        "L9",
        "Hide the GPU instead of -ngl 0",
        "about 1 GB for the prompt's compute buffer, and a crash where another model owns the GPU",
        each(checks.visible_gpu_without_layers),
    ),
    Law(
        "L11",
        "K at q8_0 or better",
        "perplexity 18.03 with q8_0, 19.03 with K q4_0, 404 with K turbo2; V turbo2 18.12",
        each(checks.inaccurate_k),
    ),
    Law(
        "M1",
        "Keep 1 GiB of VRAM free",
        "637 MiB free: 5.5 tokens/s over 10 tokens, 0.71 over 250; 1 GiB held",
        checks.thin_headroom,
    ),
    Law("M4", "CUDA graphs stay on", "18.75 tokens/s with them, 13.57 without", each(checks.graphs_off)),
    Law(
        "M5",
        "A large physical batch where experts are on the CPU",
        "-ub 128 to 2048: a prefill of 63K tokens from 184.6 to 1,460 tokens/s",
        each(memory.larger_ubatch),
    ),
    Law(
        "M6",
        "No mmap for experts on the CPU that fit RAM",
        "prefill from 1,293 to 2,145 tokens/s",
        each(memory.mapped_cpu_experts),
    ),
    Law(
        "N1",
        "--n-cpu-moe over several GPUs needs -ts",
        "every value from 12 to 4 died allocating the cache on the second GPU; -ts 24,16 ran",
        each(memory.heavy_last_gpu),
    ),
    Law(
        "N2",
        "Threads are physical cores",
        "on 8 cores 8 threads 57.3 tokens/s, 16 threads 39.8",
        each(checks.threads_above_cores),
    ),
    Law(
        "N3",
        "Keep 1 GiB free beside a desktop",
        "at 388 MiB free a browser tab made the service crash in a loop",
        checks.thin_headroom_beside_a_desktop,
    ),
    Law(
        "N5",
        "No n-gram speculation with experts on the CPU",
        "55.6 to 40.6 tokens/s on a rewrite, 55.3 to 27.2 on code",
        each(checks.ngram_with_cpu_experts),
    ),
    Law(
        "N6", "A physical batch of 512 or more", "-ub 256: 80 MiB less, 38 % of prefill lost", each(checks.small_ubatch)
    ),
    Law(
        "N8",
        "Mount the whole Hugging Face repository folder",
        "a snapshot's entry is a relative link into ../../blobs",
        each(checks.dangling_link),
    ),
    Law(
        "N10",
        "A template that calls tools needs --jinja",
        "a reasoning model with tool calls in XML does not work without",
        each(checks.tools_without_jinja),
    ),
)


def findings(setup: Setup) -> list[Finding]:
    """Everything that breaks a law, in the order of the table; each names its figure."""
    return [finding for law in LAWS for finding in law.findings(setup)]

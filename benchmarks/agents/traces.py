"""Three kinds of agent traffic, as actors that ask, read the answer, think and ask again.

T1: a coding agent with bursts of subagents and a tiny model for titles. T2: two agents and a chat user
with retrieval. T3: a batch and a person. Sizes, rates and think times as measured (docs/why/scheduling.md).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field

from swapd.core.spec import RAM, ModelSpec
from swapd.units import GIB, MIB

DISK_BYTES_PER_S = 3e9
LOAD_OVERHEAD_S = 0.4
GPU = "GPU-0"
TOTALS = {GPU: 23_900 * MIB, RAM: 256 * GIB}


@dataclass(frozen=True)
class Model:
    """File in GB, VRAM in MiB, prefill and decode in tokens/s, slots."""

    file_gb: float
    vram_mib: int
    prefill_tps: float
    decode_tps: float
    slots: int

    @property
    def load_s(self) -> float:
        return self.file_gb * 1e9 / DISK_BYTES_PER_S + LOAD_OVERHEAD_S


@dataclass(frozen=True)
class Ask:
    """One request: ``prompt`` tokens in all, ``new`` of them not seen in this conversation, ``answer`` tokens."""

    model: str
    conversation: str
    prompt: int
    new: int
    answer: int
    weight: float = 1.0


@dataclass(frozen=True)
class Think:
    seconds: float


@dataclass(frozen=True)
class Spawn:
    """Start actors; ``join``: wait for all of them."""

    actors: tuple[Actor, ...]
    join: bool


Actor = Generator["Ask | Think | Spawn", None, None]


@dataclass
class Trace:
    name: str
    models: dict[str, Model]
    actors: list[Actor]
    specs: dict[str, ModelSpec] = field(default_factory=dict)


def t1(rng: random.Random) -> Trace:
    """A coding agent: 18K growing to 60K tokens, four bursts of three subagents, titles and commit messages."""
    models = {
        "main": Model(16.8, 17_400, 2000, 80, 2),
        "sub": Model(2.5, 4_000, 4000, 120, 4),
        "tiny": Model(1.8, 2_600, 8000, 180, 2),
    }

    def small(number: int) -> Actor:
        yield Ask("tiny", f"tiny{number}", 700, 700, 20)

    def subagent(number: int) -> Actor:
        prompt = new = 3_500
        for _ in range(rng.choice([4, 5])):
            yield Ask("sub", f"sub{number}", prompt, new, rng.randint(30, 70))
            yield Think(rng.uniform(0.02, 0.15))
            prompt, new = prompt + 800, 800

    def main() -> Actor:
        turns, prompt = 33, 18_000
        step = (60_000 - prompt) // (turns - 1)
        new = prompt
        for turn in range(turns):
            yield Ask("main", "main", prompt, new, rng.randint(80, 400))
            think = rng.uniform(0.5, 5.0)
            if turn in (6, 13, 20, 27):
                subagents = tuple(subagent(turn * 10 + i) for i in range(3))
                yield Spawn((small(turn),), join=False)
                yield Spawn(subagents, join=True)
                think = 0.0
            elif turn in (5, 12, 19, 26):
                yield Spawn((small(turn),), join=False)
            yield Think(think)
            prompt, new = prompt + step, step

    return Trace("T1", models, [main()])


def t2(rng: random.Random) -> Trace:
    """Two agents whose big models exclude each other, and a chat user; two of the three retrieve."""
    models = {
        "coder": Model(14.3, 15_600, 1200, 35, 2),
        "research": Model(12.1, 13_800, 1800, 45, 2),
        "chat": Model(5.0, 5_600, 3000, 75, 2),
        "embed": Model(0.64, 1_250, 15_000, 1e9, 8),
        "rerank": Model(0.64, 1_250, 12_000, 1e9, 8),
    }

    def retrieve(who: str, number: int) -> Actor:
        yield Ask("embed", f"{who}e{number}", 300, 300, 0)
        yield Ask("rerank", f"{who}r{number}", 4_000, 4_000, 0)

    def coder() -> Actor:
        prompt = new = 9_000
        for _ in range(14):
            yield Ask("coder", "coder", prompt, new, rng.randint(40, 160))
            yield Think(rng.uniform(0.3, 4.0))
            prompt, new = prompt + 1_150, 1_150

    def researcher() -> Actor:
        prompt = new = 7_000
        for turn in range(12):
            yield from retrieve("res", turn)
            yield Ask("research", "research", prompt, new, rng.randint(40, 160))
            yield Think(rng.uniform(0.3, 4.0))
            prompt, new = prompt + 1_090, 1_090

    def person() -> Actor:
        prompt = new = 600
        for question in range(6):
            yield Think(rng.uniform(8, 20))
            if question % 2:
                yield from retrieve("chat", question)
            yield Ask("chat", "chat", prompt, new, rng.randint(80, 250))
            prompt, new = prompt + 700, 700

    return Trace("T2", models, [coder(), researcher(), person()])


def t3(rng: random.Random) -> Trace:
    """Three workers push a batch through one model without a pause; a person asks the other, six times."""
    models = {"a": Model(14.3, 17_000, 1200, 32, 4), "b": Model(18.6, 20_500, 1800, 90, 2)}

    def worker(number: int) -> Actor:
        for item in range(28):
            prompt = rng.randint(900, 2_600)
            yield Ask("a", f"w{number}-{item}", prompt, prompt, rng.randint(60, 200), weight=0.1)

    def person() -> Actor:
        prompt = new = 1_200
        for _ in range(6):
            yield Think(rng.uniform(6, 25))
            yield Ask("b", "person", prompt, new, rng.randint(80, 300))
            prompt, new = prompt + 700, 700

    specs = {"b": ModelSpec("b", priority=1, linger=30.0)}
    return Trace("T3", models, [worker(0), worker(1), worker(2), person()], specs)


KINDS = {"T1": t1, "T2": t2, "T3": t3}

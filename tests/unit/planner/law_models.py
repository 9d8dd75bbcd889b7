"""Headers and machines of the measured hosts, as far as the laws look at them (docs/field-measurements.md)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM, ModelId
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import parse_flags
from swapd.planner.law_facts import Finding, ModelFacts, Setup
from swapd.planner.laws import LAWS, findings
from swapd.units import GIB, MIB
from tests.unit.gguf.measured import header_of, models

Q2_K, Q4_K, IQ4_XS = 10, 12, 23

GPU_L = DeviceSample("GPU-l", 4096 * MIB, 4096 * MIB)
GPU_M = DeviceSample("GPU-m", 16376 * MIB, 15900 * MIB)
GPUS_N = (
    DeviceSample("GPU-n0", 12288 * MIB, 11162 * MIB),
    DeviceSample("GPU-n1", 10240 * MIB, 10240 * MIB, 1),
)


@cache
def qwen35b(expert_type: int = Q4_K) -> GgufHeader:
    """The 35B-A3B: 40 layers, every fourth with full attention, 256 experts; layers as in a file that was measured."""
    return _stretched("hyb", 40, [0, 1, 1, 2, 0, 1, 1, 3], expert_type)


@cache
def gpt_oss() -> GgufHeader:
    """gpt-oss-20b: 24 layers in MXFP4."""
    return _stretched("oss", 24, [0], None)


@cache
def qwen4b() -> GgufHeader:
    """qwen3-4b in 4 bits: 36 dense layers, tied embeddings."""
    kv = {"block_count": 36, "context_length": 40960, "embedding_length": 2560, "feed_forward_length": 9728}
    kv |= {"attention.head_count": 32, "attention.head_count_kv": 8, "vocab_size": 151936}
    kv |= {"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128}
    rows = {"attn_q": (2560, 4096), "attn_k": (2560, 1024), "attn_v": (2560, 1024), "attn_output": (4096, 2560)}
    rows |= {"ffn_gate": (2560, 9728), "ffn_up": (2560, 9728), "ffn_down": (9728, 2560)}
    tensors = [("token_embd.weight", (2560, 151936), Q4_K), ("output_norm.weight", (2560,), 0)]
    tensors += [(f"blk.{i}.{name}.weight", shape, Q4_K) for i in range(36) for name, shape in rows.items()]
    values: dict[str, Any] = {f"qwen3.{key}": value for key, value in kv.items()}
    return header_of({"general.architecture": "qwen3", **values}, tensors)


def _stretched(name: str, layers: int, kinds: list[int], expert_type: int | None) -> GgufHeader:
    """A measured model's header with more layers of its kinds, and experts of another type."""
    measured = models()[name]
    first = _FIRST_OF_KIND[name]
    tensors = [(t.name, t.shape, t.type_id) for t in measured.tensors if not t.name.startswith("blk.")]
    for layer in range(layers):
        source = first[kinds[layer % len(kinds)]]
        for tensor in measured.tensors:
            if tensor.name.startswith(f"blk.{source}."):
                new = tensor.name.replace(f"blk.{source}.", f"blk.{layer}.")
                kind = expert_type if "_exps" in new and expert_type is not None else tensor.type_id
                tensors.append((new, tensor.shape, kind))
    arch = measured.architecture
    return header_of({**measured.kv, f"{arch}.block_count": layers, f"{arch}.nextn_predict_layers": 0}, tensors)


_FIRST_OF_KIND = {"hyb": {0: 0, 1: 1, 2: 3, 3: 7}, "oss": {0: 0}}
"""In tests/data/vram: the first layer of each kind."""


def model(args: str, header: GgufHeader | None = None, id_: ModelId = "m", **more: Any) -> ModelFacts:
    """A model of these arguments."""
    words = tuple(args.split())
    return ModelFacts(id=id_, flags=parse_flags(words), args=words, header=header, **more)


def laptop(*members: ModelFacts, vram_headroom: int = 256 * MIB, available: int = 13000 * MIB) -> Setup:
    """Host L: a small GPU, 15 GiB of RAM of which services use two; several models are a duo."""
    duo = (tuple(m.id for m in members),) if len(members) > 1 else ()
    headroom = {"GPU-l": vram_headroom, RAM: GIB}
    return Setup(members, duo, (GPU_L,), DeviceSample(RAM, 15360 * MIB, available), headroom, cores=6)


def big_gpu(*members: ModelFacts) -> Setup:
    """Host M."""
    return Setup(members, (), (GPU_M,), DeviceSample(RAM, 96 * GIB, 90000 * MIB), {"GPU-m": GIB, RAM: GIB}, cores=24)


def two_gpus(*members: ModelFacts, headrooms: tuple[int, int] = (1024, 512)) -> Setup:
    """Host N: the first GPU shared with a desktop."""
    headroom = {g.id: size * MIB for g, size in zip(GPUS_N, headrooms, strict=True)}
    ram = DeviceSample(RAM, 63488 * MIB, 58000 * MIB)
    return Setup(members, (), GPUS_N, ram, headroom | {RAM: GIB}, cores=8)


def of_law(law: str, setup: Setup) -> list[Finding]:
    """What breaks one law."""
    return [f for entry in LAWS if entry.id == law for f in entry.findings(setup)]


def broken(setup: Setup) -> set[str]:
    """The laws that are broken."""
    return {f.law for f in findings(setup)}


def texts(found: Iterable[Finding]) -> str:
    """All of them, a line each."""
    return "\n".join(map(str, found))

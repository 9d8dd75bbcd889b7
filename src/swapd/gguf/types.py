"""What a GGUF header says, as plain data: tensor types, tensors, key-values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import NamedTuple, TypeAlias, TypeGuard


class TensorType(NamedTuple):
    """Elements of a type are stored in blocks of ``block`` elements, ``block_bytes`` each."""

    name: str
    block: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
}
"""Block sizes as declared in ggml-common.h; a fork's own types are measured by their place in the file."""


@dataclass(frozen=True, slots=True)
class SkippedValue:
    """A value too big to keep: the type of its elements, and how many there are (characters of a string)."""

    element: str
    length: int


Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[Scalar, ...] | SkippedValue


def _is_number(value: object) -> TypeGuard[int | float]:
    """A float of a file may be no number, or infinite."""
    return isinstance(value, int | float) and isfinite(value)


class TensorInfo(NamedTuple):
    """One tensor: ``shape`` fastest dimension first, ``nbytes`` on disk, ``offset`` in the data of file ``part``."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    nbytes: int
    offset: int
    part: int = 0


@dataclass(frozen=True)
class GgufHeader:
    """The header of one model, all parts of a split file together; bytes."""

    version: int
    architecture: str
    kv: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    file_bytes: int = 0
    data_bytes: int = 0
    path: str = ""
    parts: tuple[str, ...] = field(default=())
    big_endian: bool = False

    def get(self, key: str) -> Value | None:
        """A value of this architecture: ``get("block_count")`` reads ``llama.block_count``."""
        return self.kv.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        """A whole number of this architecture; the largest where the file gives one for each layer."""
        value = self.get(key)
        if isinstance(value, tuple):
            return max((int(v) for v in value if _is_number(v)), default=default)
        return int(value) if _is_number(value) else default

    def per_layer(self, key: str, layer: int, default: int = 0) -> int:
        """A whole number that may differ between layers."""
        value = self.get(key)
        if isinstance(value, tuple):
            item = value[layer] if 0 <= layer < len(value) else default
            return int(item) if _is_number(item) else default
        return int(value) if _is_number(value) else default

    def text(self, key: str, default: str = "") -> str:
        """A string by its full key."""
        value = self.kv.get(key)
        return value if isinstance(value, str) else default

    @property
    def name(self) -> str:
        """What the file calls itself."""
        return self.text("general.name")

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context the model was trained for; 0 if the file does not say."""
        return self.number("context_length")

    @property
    def block_count(self) -> int:
        """Layers in the file, prediction heads (MTP) included."""
        return self.number("block_count")

    @property
    def has_chat_template(self) -> bool:
        """Whether the file brings a chat template."""
        return "tokenizer.chat_template" in self.kv

    @cached_property
    def tensor(self) -> Mapping[str, TensorInfo]:
        """Tensors by name."""
        return {t.name: t for t in self.tensors}

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary: rows of the embedding, else what the tokenizer or the model says."""
        embedding = self.tensor.get("token_embd.weight")
        if embedding is not None and len(embedding.shape) > 1:
            return embedding.shape[1]
        tokens = self.kv.get("tokenizer.ggml.tokens")
        if isinstance(tokens, SkippedValue):
            return tokens.length
        return len(tokens) if isinstance(tokens, tuple) else self.number("vocab_size")

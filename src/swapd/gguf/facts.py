"""What a GGUF tells its users without being loaded: name, size, context, and what it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final, TypeGuard

from swapd.core.flags import EngineFlags
from swapd.core.spec import ModelFacts
from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader, Scalar, Value

DEFAULT_SLOTS: Final = 4
"""What llama-server chooses itself."""
MAX_VALUE_CHARS: Final = 1024
"""Longer texts of a header (licenses, templates) are left out of ``ModelFacts.header``."""

FILE_TYPES: Final[Mapping[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""``general.file_type`` is llama.cpp's ``llama_ftype``."""
_THINKS: Final = ("<think>", "enable_thinking", "reasoning_content", "<|channel|>", "[THINK]")


def read_facts(path: str, flags: EngineFlags) -> ModelFacts:
    """The facts of a file and of the flags it is run with; few of a file that cannot be read."""
    facts = ModelFacts(path=path, slots=flags.parallel or DEFAULT_SLOTS, vision=bool(flags.mmproj))
    try:
        facts = of_header(read_header(path), facts)
        facts = replace(facts, modified_at_s=os.stat(path).st_mtime)
    except (GgufError, OSError):
        return facts
    facts = replace(facts, embeddings=facts.embeddings or flags.embedding)
    return _with_projector(facts, flags.mmproj) if flags.mmproj else facts


def of_header(header: GgufHeader, facts: ModelFacts | None = None) -> ModelFacts:
    """``facts`` with what a model's header tells."""
    template = header.text("tokenizer.chat_template")
    return replace(
        facts or ModelFacts(path=header.path),
        name=header.name,
        architecture=header.architecture,
        quantization=_quantization(header),
        size_bytes=header.file_bytes,
        parameters=sum(prod(tensor.shape) for tensor in header.tensors),
        trained_ctx_tokens=header.n_ctx_train,
        vocabulary=header.vocab_size,
        width=header.number("embedding_length"),
        has_chat_template=header.has_chat_template,
        chat_template=template,
        tools="tools" in template,
        reasoning=any(word in template for word in _THINKS),
        embeddings=header.number("pooling_type") > 0 or "bert" in header.architecture,
        header={key: value for key, value in header.kv.items() if _is_shown(value)},
    )


def _quantization(header: GgufHeader) -> str:
    value = header.kv.get("general.file_type")
    return FILE_TYPES.get(value, "") if isinstance(value, int) else ""


def _is_shown(value: Value) -> TypeGuard[Scalar]:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_VALUE_CHARS)


def _with_projector(facts: ModelFacts, path: str) -> ModelFacts:
    """What an encoder beside the model takes in; one that cannot be read or does not say is for pictures."""
    try:
        told = read_header(path).kv
    except (GgufError, OSError):
        return facts
    audio = told.get("clip.has_audio_encoder") is True
    return replace(facts, audio=audio, vision=told.get("clip.has_vision_encoder", not audio) is True)

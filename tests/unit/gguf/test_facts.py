"""What a header tells of a model that is not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swapd.core.flags import EngineFlags
from swapd.gguf.facts import read_facts
from tests.unit.gguf.writer import SMALL, TENSORS, gguf


def written(tmp_path: Path, name: str = "m.gguf", **kv: Any) -> str:
    path = tmp_path / name
    path.write_bytes(gguf({**SMALL, **{key.replace("__", "."): value for key, value in kv.items()}}, TENSORS))
    return str(path)


def test_name_size_and_context_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, general__name="Small", general__file_type=15)
    facts = read_facts(path, EngineFlags(parallel=2))
    assert (facts.path, facts.name, facts.architecture, facts.quantization) == (path, "Small", "llama", "Q4_K_M")
    assert facts.size_bytes == Path(path).stat().st_size and facts.modified_at_s > 0
    assert facts.trained_ctx_tokens == SMALL["llama.context_length"] and facts.parameters > 0
    assert facts.slots == 2 and not facts.has_chat_template and not facts.embeddings
    assert facts.header["general.name"] == "Small"


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{% for m in messages %}{{ m }}{% endfor %}", False, False),
        ("{% if tools %}…{% endif %}", True, False),
        ("{% if enable_thinking is defined %}…{% endif %}", False, True),
        ("{{ tools }}<think>", True, True),
    ],
)
def test_template_tells_of_tools_and_reasoning(tmp_path: Path, template: str, tools: bool, reasoning: bool) -> None:
    facts = read_facts(written(tmp_path, tokenizer__chat_template=template), EngineFlags())
    assert (facts.chat_template, facts.has_chat_template) == (template, True)
    assert (facts.tools, facts.reasoning) == (tools, reasoning)


def test_long_texts_are_no_part_of_what_is_listed(tmp_path: Path) -> None:
    facts = read_facts(written(tmp_path, general__license="x" * 5000), EngineFlags())
    assert "general.license" not in facts.header


@pytest.mark.parametrize(
    ("kv", "flags", "embeds"),
    [
        ({"llama__pooling_type": 1}, EngineFlags(), True),
        ({"llama__pooling_type": 0}, EngineFlags(), False),
        ({}, EngineFlags(embedding=True), True),
    ],
)
def test_embedding_models_by_pooling_or_flag(
    tmp_path: Path, kv: dict[str, Any], flags: EngineFlags, embeds: bool
) -> None:
    assert read_facts(written(tmp_path, **kv), flags).embeddings is embeds


@pytest.mark.parametrize(
    ("kv", "vision", "audio"),
    [
        ({}, True, False),
        ({"clip__has_vision_encoder": True, "clip__has_audio_encoder": True}, True, True),
        ({"clip__has_audio_encoder": True}, False, True),
    ],
)
def test_encoder_beside_the_model_tells_what_it_takes(
    tmp_path: Path, kv: dict[str, Any], vision: bool, audio: bool
) -> None:
    flags = EngineFlags(mmproj=written(tmp_path, "mmproj.gguf", **kv))
    facts = read_facts(written(tmp_path), flags)
    assert (facts.vision, facts.audio) == (vision, audio)


def test_unreadable_files_tell_only_what_is_configured(tmp_path: Path) -> None:
    facts = read_facts(str(tmp_path / "none.gguf"), EngineFlags(mmproj="x"))
    assert facts.path.endswith("none.gguf") and facts.vision and not facts.architecture
    missing = read_facts(written(tmp_path), EngineFlags(mmproj=str(tmp_path / "none.gguf")))
    assert missing.vision and not missing.audio

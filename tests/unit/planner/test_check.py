"""``swapd check`` on files that break laws: one warning each, with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from swapd import wiring
from swapd.cli.main import swapd
from tests.unit.gguf.writer import gguf

FILE = """\
[headroom]
vram = "512 MiB"
[binaries.b]
path = "/opt/b/llama-server"
args = ["--no-jinja"]
env = { GGML_CUDA_DISABLE_GRAPHS = "0" }
[models.here]
gguf = "here.gguf"
binary = "b"
args = "-ub 256 --cache-type-k turbo2"
[models.hidden]
gguf = "here.gguf"
binary = "b"
gpus = []
args = "-ngl 0 --jinja"
[models.gone]
gguf = "link.gguf"
binary = "b"
args = "-ngl 0"
env = { CUDA_VISIBLE_DEVICES = "" }
[models.other]
cmd = ["vllm", "--port", "${PORT}"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The file, a machine, a GGUF with a template that calls tools, and a link as a Hugging Face cache has it."""
    (tmp_path / "swapd.toml").write_text(FILE)
    gpu = {"id": "GPU-0", "index": 0, "total_mib": 8192, "free_mib": 8000}
    machine = {"gpus": [gpu], "ram_total_mib": 16000, "ram_available_mib": 12000}
    (tmp_path / "sim.json").write_text(json.dumps(machine))
    kv = {"general.architecture": "llama", "llama.block_count": 1, "tokenizer.chat_template": "{% if tools %}"}
    (tmp_path / "here.gguf").write_bytes(gguf(kv, [("output_norm.weight", (4,), 0, 16)]))
    (tmp_path / "link.gguf").symlink_to("../../blobs/0a1b")
    return tmp_path


def laws(folder: Path) -> dict[str, list[str]]:
    """What is warned of, by law."""
    resolved = wiring.configure(str(folder / "swapd.toml"), devices=str(folder / "sim.json"), files=False)
    found: dict[str, list[str]] = {}
    for warning in wiring.check(resolved, files=False).warnings:
        place, _, text = warning.removeprefix(f"{folder}/").partition(": ")
        found.setdefault(text.split(":")[0], []).append(f"{place} {text}")
    return found


def test_each_law_broken_is_one_warning_with_its_line(folder: Path) -> None:
    found = laws(folder)
    assert set(found) == {"headroom.vram", "L11", "M4", "N6", "N8", "N10"}
    assert all(len(lines) == 1 for lines in found.values())
    assert found["N6"][0].startswith("swapd.toml:7 N6: models.here: a physical batch of 256 tokens")
    assert "models.here" in found["N10"][0]


def test_a_hidden_gpu_and_a_programs_own_args_break_nothing(folder: Path) -> None:
    found = [line for lines in laws(folder).values() for line in lines]
    assert not [line for line in found if "models.hidden" in line or "models.other" in line]


def test_thin_headroom_is_told_once(folder: Path) -> None:
    found = laws(folder)
    assert "M1" not in found and "(M1)" in found["headroom.vram"][0]


def test_the_command_prints_them_as_warnings(folder: Path) -> None:
    args = ["check", str(folder / "swapd.toml"), "--devices", str(folder / "sim.json"), "--no-files"]
    result = CliRunner().invoke(swapd, args)
    assert result.exit_code == 0
    assert 'M4: models.here: GGML_CUDA_DISABLE_GRAPHS="0" turns CUDA graphs off' in result.stderr
    assert "blobs/0a1b, which is not there" in result.stderr and "models.gone" in result.stderr

"""``swapd check`` on files that break laws: one warning each, with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from swapd import wiring
from swapd.cli.main import swapd
from swapd.errors import ConfigError
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


# ---- the machine and the places that are written to


def mistakes(folder: Path, text: str, *flags: str) -> list[str]:
    """What ``swapd check`` refuses a file for."""
    (folder / "own.toml").write_text(text)
    result = CliRunner().invoke(swapd, ["check", str(folder / "own.toml"), *flags])
    if result.exit_code == 0:
        return []
    assert isinstance(result.exception, ConfigError), result.exception
    return result.exception.message.replace(f"{folder}/", "").splitlines()


GPUS_NAMED = """\
[headroom.gpus]
nonsense = "3 GiB"
0 = "3 GiB"
[defaults]
gpus = [0, 7]
cmd = ["sh", "${PORT}"]
[models.a]
gpus = ["GPU-0", 9]
vram = { 5 = "1 GiB", GPU-0 = "1 GiB" }
[models.b]
[models.c]
"""


def test_gpus_that_the_machine_does_not_have_are_mistakes_each_in_its_place(folder: Path) -> None:
    for more in ((), ("--no-files",)):
        found = mistakes(folder, GPUS_NAMED, "--devices", str(folder / "sim.json"), *more)
        assert found == [
            "own.toml:2: headroom.gpus.nonsense: this machine has no GPU nonsense (it has 0 (GPU-0))",
            "own.toml:5: defaults.gpus: this machine has no GPU 7 (it has 0 (GPU-0))",
            "own.toml:8: models.a.gpus: this machine has no GPU 9 (it has 0 (GPU-0))",
            "own.toml:9: models.a.vram: this machine has no GPU 5 (it has 0 (GPU-0))",
        ]


def test_where_the_gpus_are_not_known_none_is_missing(folder: Path) -> None:
    assert mistakes(folder, '[devices]\nsource = "none"\n' + GPUS_NAMED, "--no-files") == []


def test_mistakes_of_gpus_are_told_with_those_of_files(folder: Path) -> None:
    text = '[models.a]\ncmd = ["no-such-program", "${PORT}"]\ngpus = [1]\n'
    found = mistakes(folder, text, "--devices", str(folder / "sim.json"))
    assert [line.split(": ")[0] for line in found] == ["own.toml:2", "own.toml:3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("{", "no JSON"), ('{"gpus": [{"id": "x"}]}', "'total_mib' is missing"), ("[]", "not as")],
)
def test_a_simulated_machine_that_cannot_be_read_is_a_mistake(folder: Path, text: str | None, words: str) -> None:
    machine = folder / "broken.json"
    if text is not None:
        machine.write_text(text)
    for more in ((), ("--no-files",)):
        (line,) = mistakes(folder, "", "--devices", str(machine), *more)
        assert line.startswith("--devices: broken.json: ") and words in line
    (line,) = mistakes(folder, '[devices]\nsource = "file:broken.json"\n')
    assert line.startswith("own.toml:2: devices.source: broken.json: ") and words in line
    assert mistakes(folder, '[devices]\nsource = "file:broken.json"\n', "--no-files") == []


def test_a_state_directory_that_cannot_be_made_is_a_mistake(folder: Path) -> None:
    assert mistakes(folder, '[server]\nstate_dir = "deep/er"\n') == []
    text = '[server]\nstate_dir = "here.gguf/x"\n'
    (line,) = mistakes(folder, text)
    assert line.startswith("own.toml:2: server.state_dir: here.gguf/x cannot be written: here.gguf is no folder (")
    assert mistakes(folder, text, "--no-files") == []


def test_a_state_directory_that_is_not_writable_is_a_mistake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != folder)  # root may write everywhere
    (line,) = mistakes(folder, '[server]\nstate_dir = "deep/er"\n')
    assert "is not writable for this user (choose another path" in line


@pytest.mark.parametrize(
    ("path", "words"),
    [("gone/swapd.sock", "there is no folder"), ("here.gguf", "is no socket"), ("x" * 108, "too long")],
)
def test_a_socket_that_cannot_be_made_is_a_mistake(folder: Path, path: str, words: str) -> None:
    text = f'[server]\nlisten = "{folder}/{path}"\nstate_dir = "."\n'
    (line,) = mistakes(folder, text)
    assert line.startswith(f"own.toml:2: server.listen: {path}") and words in line
    assert mistakes(folder, text, "--no-files") == []
    assert mistakes(folder, f'[server]\nlisten = "{folder}/swapd.sock"\n') == []

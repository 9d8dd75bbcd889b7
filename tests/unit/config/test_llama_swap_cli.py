"""``swapd import``: exit codes, and what goes where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swapd.config.load import load_text

WORKSTATION = Path(__file__).parents[2] / "data" / "llama-swap" / "workstation.yaml"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swapd", "import", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "", "HOME": "/home/u"})


def test_toml_goes_to_stdout_and_what_is_lost_to_both() -> None:
    result = run(str(WORKSTATION))
    assert result.returncode == 0, result.stderr
    environ = dict.fromkeys(("HOUSE_KEY", "BOX2_KEY", "VLLM_MODEL", "VLLM_ARGS", "HOME"), "x")
    assert "chat" in load_text(result.stdout, None, environ=environ).file.models
    comments = [line[2:] for line in result.stdout.splitlines() if line.startswith(("# not imported", "# differs"))]
    assert len(comments) > 20 and all(f"{WORKSTATION}: {comment}" in result.stderr for comment in comments)
    assert "warning: the environment variable VLLM_MODEL is not set here" in result.stderr


@pytest.mark.parametrize("text", ["models: [\n", "globalTTL: soon\n", None, b"\xff"])
def test_mistakes_are_bad_usage_and_print_nothing(tmp_path: Path, text: str | bytes | None) -> None:
    file = tmp_path / "f.yaml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = run(str(file))
    assert (result.returncode, result.stdout) == (2, "") and str(file) in result.stderr


def test_result_that_is_not_valid_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("models: {load: {cmd: 'llama-server --port ${PORT} -m /m.gguf'}}\n")
    result = run(str(file))
    assert result.returncode == 1 and "'load' is a reserved name" in result.stderr and "[models.load]" in result.stdout


def test_other_commands_do_not_import_yaml() -> None:
    code = "import sys, swapd.cli.status, swapd.cli.serve, swapd.wiring; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

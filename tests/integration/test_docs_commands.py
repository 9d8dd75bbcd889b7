"""The documentation at work: its command blocks run beside a running swapd, and its site builds without a dead link.

A block that cannot run here says what it needs, in a comment right before it: ``<!-- needs: docker -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.swapd_process import Gpu, Swapd
from tests.unit.gguf.writer import SMALL, TENSORS, gguf

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "docker").glob("*.md")])
BLOCK = re.compile(r"^(<!-- needs: [^>]* -->\n)?```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, (needs, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            if not needs:
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")


def model(path: Path) -> None:
    """A GGUF that can be read and is small."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gguf(SMALL, TENSORS))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Swapd]:
    """A running swapd with a model ``a``, its ``swapd.toml`` and a folder of models in the current directory."""
    swapd = Swapd(tmp_path, {"a": {}}, gpus=(Gpu(24000),))
    swapd.write()
    model(tmp_path / "model.gguf")
    model(tmp_path / "models" / "coder-Q4_K_M.gguf")
    swapd.launch()
    try:
        swapd.wait_listening()
        assert swapd.chat("a").status == 200
        yield swapd
    finally:
        swapd.stop()


@pytest.mark.parametrize("text", list(blocks()))
def test_command_block_runs(world: Swapd, text: str) -> None:
    programs = world.folder / "programs"
    programs.mkdir()
    (programs / "swapd").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m swapd "$@"\n')
    (programs / "swapd").chmod(0o755)
    environment = {
        **world.environment(), "SWAPD_CONFIG": str(world.config), "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=world.folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_some_blocks_do_run() -> None:
    assert len(list(blocks())) >= 6


def test_site_builds_strictly_and_draws_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pictures = (tmp_path / "guide" / "headroom-in-pictures.html").read_text()
    assert pictures.count('class="mermaid"') == 4
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page
    assert "github" not in (tmp_path / "index.html").read_text().partition("<body")[0]


def test_dead_link_fails_the_site(tmp_path: Path) -> None:
    """The strictness itself: without it the test above says nothing."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# x\n\n[gone](gone.md)\n")
    settings = re.sub(
        r"^nav:.*", "nav: [{x: index.md}]\n", (ROOT / "mkdocs.yml").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    (tmp_path / "mkdocs.yml").write_text(settings.replace("tools/mkdocs_hooks.py", str(ROOT / "tools/mkdocs_hooks.py")))
    command = [sys.executable, "-m", "mkdocs", "build"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "gone.md" in done.stderr

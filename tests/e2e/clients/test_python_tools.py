"""aider, llm and litellm, run as their pages say, get an answer of a real model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swapd.llama import demo
from tests.e2e.clients.desk import ADDRESS, PAGES, ROOT, Desk
from tests.e2e.clients.test_agents_real_engine import CTX, serving
from tests.integration.swapd_process import Swapd

VENVS = ROOT / ".cache" / "clients"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(demo.what_is_missing()), reason=demo.what_is_missing()),
]


def bin_of(name: str) -> Path:
    found = VENVS / name / "bin"
    if not found.exists():
        pytest.skip(f"no {name}: make test-clients installs it")
    return found


def assert_answered(swapd: Swapd, *, streamed: bool) -> None:
    rows = swapd.get("/api/activity").json["requests"]
    assert rows and all((row["status"], row["outcome"]) == (200, "ok") for row in rows), rows
    assert all(row["completion_tokens"] for row in rows) and {row["stream"] for row in rows} == {streamed}


@pytest.mark.parametrize(("program", "venv"), [("aider", "aider"), ("llm", "llm")])
def test_program_of_a_page_gets_an_answer(program: str, venv: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, program, program, bin_of(venv))
    with serving(tmp_path, CTX) as swapd:
        done = desk.run(desk.set_up(swapd.url), 300)
        assert done.code == 0 and done.out.strip(), done
        assert_answered(swapd, streamed=True)


def test_litellms_example_gets_an_answer(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "sdks", "python", bin_of("llm"))
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / "sdks.md").read_text(), re.MULTILINE | re.DOTALL)
    block = next(block for block in blocks if "litellm" in block)
    with serving(tmp_path, CTX) as swapd:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "ask.py").write_text(block.replace(ADDRESS, swapd.url))
        done = desk.run("LITELLM_LOCAL_MODEL_COST_MAP=True python ask.py", 300)
        assert done.code == 0 and done.out.strip(), done
        assert_answered(swapd, streamed=False)

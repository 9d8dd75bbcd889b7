"""The five agents against real llama.cpp: their whole first prompts are prefilled and streamed answers reach them.

A model of 135M parameters writes no sense, so none of them may run what it says: the pages' commands are used without
what approves tools, and answers are cut short by the model's own ``params``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.llama import demo
from tests.e2e.clients.desk import NPM, Desk
from tests.integration.swapd_process import Swapd

HARMLESS = {
    "pi": ("pi", (("pi -p ", "pi -p --no-tools "),)),
    "opencode": ("opencode", ((" --auto ", " "),)),
    "codex": ("codex", (("danger-full-access", "read-only"),)),
    "claude": ("claude-code", ((" --allowedTools Bash", ""),)),
    "qwen": (
        "qwen-code",
        (("--approval-mode yolo", "--approval-mode plan"), ("qwen -p", "qwen --system-prompt 'You write code.' -p")),
    ),
}
CTX = 8192
"""As the model was trained: llama-server gives a request no more."""
TOKENS = 200

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not NPM.exists(), reason="no agents: make test-clients installs them (needs node and npm)"),
    pytest.mark.skipif(bool(demo.what_is_missing()), reason=demo.what_is_missing()),
]


def serving(folder: Path, ctx: int) -> Swapd:
    """Answers end at a full stop, for an answer that was cut short is an error to Claude Code."""
    limits = dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), TOKENS)
    ends = {key: [".", "\n", "!", "?"] for key in ("stop", "stop_sequences")}
    coder = {
        "gguf": str(demo.demo_model_path()),
        "binary": "",
        "vram": "auto",
        "gpus": [],
        "ctx": ctx,
        "args": "--parallel 1 --threads 1 --threads-batch 1",
        "params": {"set": {**limits, **ends, "temperature": 0}},
    }
    return Swapd(folder, {"coder": coder}, gpus=(), devices={"source": "none"})


@pytest.mark.parametrize("program", HARMLESS)
def test_first_prompt_is_answered_by_a_real_model(program: str, tmp_path: Path) -> None:
    page, edits = HARMLESS[program]
    desk = Desk(tmp_path, page, program)
    with serving(tmp_path, CTX) as swapd:
        done = desk.run(desk.set_up(swapd.url, edits), 560)
        rows = swapd.get("/api/activity").json["requests"]
        assert done.code == 0 and done.out.strip(), (done, rows)
        assert rows and all(row["status"] == 200 and row["outcome"] == "ok" for row in rows), rows
        longest = max(rows, key=lambda row: row["prompt_tokens"] or 0)
        assert longest["prompt_tokens"] > 400 and 0 < longest["completion_tokens"] <= TOKENS, longest


@pytest.mark.parametrize(("program", "words"), [("claude", "rompt is too long"), ("codex", "ran out of room")])
def test_prompt_that_is_too_long_is_understood_as_that(program: str, words: str, tmp_path: Path) -> None:
    page, edits = HARMLESS[program]
    desk = Desk(tmp_path, page, program)
    with serving(tmp_path, 1024) as swapd:
        done = desk.run(desk.set_up(swapd.url, edits), 300)
        assert done.code == 1 and words in done.out + done.err, done

"""Five coding agents, run as their pages say, finish a task whatever happens to the model between and in their turns.

The models are scripted (``scripted_model.py``): a model that would fit a test's time writes no code. What a real
engine answers to the same agents is in ``test_agents_real_engine.py``.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.desk import NPM, Desk, Done
from tests.integration.swapd_process import Swapd, in_background, log_rows, wait_for

HERE = Path(__file__).parent
AGENTS = {"pi": "pi", "opencode": "opencode", "codex": "codex", "claude": "claude-code", "qwen": "qwen-code"}

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not NPM.exists(), reason="no agents: make test-clients installs them (needs node and npm)"),
]


@dataclass
class Office:
    """A swapd with the agent's model ``coder`` and another that does not fit beside it, and the agent's desk."""

    desk: Desk
    steps: tuple[str, ...] = ()
    knobs: dict[str, object] = field(default_factory=dict)
    server: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.desk.folder
        self.word = f"word-{secrets.token_hex(4)}"
        self.log = self.folder / "turns.jsonl"
        command = [sys.executable, str(HERE / "scripted_model.py"), "--port", "${PORT}"]
        env = {"STEPS": str(len(self.steps)), "LOG": str(self.log), **self.knobs}
        coder = {"gguf": "", "cmd": command, "vram": "6000 MiB", "takes": 0, "knobs": env}
        self.swapd = Swapd(self.folder, {"coder": coder, "small": {"vram": "5000 MiB"}}, server=self.server)

    def __enter__(self) -> Office:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.swapd)
            self.command = self.desk.set_up(self.swapd.url)
            lines = [f'{n}) exec "{sys.executable}" "{HERE / "step.py"}" {self.swapd.url} {what} {self.word} ;;'
                     for n, what in enumerate(self.steps, 1)]  # fmt: skip
            (self.folder / "work" / "step.sh").write_text("\n".join(["case $1 in", *lines, "esac", ""]))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *what: Any) -> None:
        self.stack.__exit__(*what)

    def run(self, timeout_s: float = 120) -> Done:
        return self.desk.run(self.command, timeout_s)

    def turns(self) -> list[dict[str, Any]]:
        """The agent's own requests that reached the model, without titles and the like."""
        rows = log_rows(self.log)
        return [row for row in rows if not row["text"].endswith("nothing to run")]

    def starts(self) -> int:
        """How often the agent's model was loaded."""
        loads: int = self.swapd.model("coder")["loads"]
        return loads


@pytest.fixture(params=AGENTS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(tmp_path, AGENTS[request.param], request.param)


def assert_finished(done: Done, answer: str) -> None:
    assert done.code == 0 and answer in done.out, (done.code, done.out[-2000:], done.err[-4000:])


def test_task_goes_on_through_a_swap_and_a_killed_model_between_its_turns(desk: Desk) -> None:
    with Office(desk, ("swap small", "kill coder")) as office:
        done = office.run()
        assert_finished(done, f"Done: {office.word}")
        assert [bool(turn["tool"]) for turn in office.turns()] == [True, True, False]
        assert all(turn["stream"] for turn in office.turns())
        assert office.starts() == 3 and office.swapd.model("small")["loads"] == 1


def test_load_of_30_seconds_is_waited_for(desk: Desk) -> None:
    """Most of it after the headers, which are held for 5 s here: the keep-alives must do."""
    server = {"header_hold": "5s", "heartbeat": "5s"}
    with Office(desk, knobs={"LOAD_S": 30}, server=server) as office:
        assert_finished(office.run(), "Done: ")
        assert office.starts() == 1
        rows = [row for row in office.swapd.get("/api/activity").json["requests"] if row["model"] == "coder"]
        assert rows and all(row["status"] == 200 for row in rows)


def test_503_while_another_program_holds_the_gpu_is_asked_again(desk: Desk) -> None:
    with Office(desk) as office:
        swapd = office.swapd
        swapd.take_vram(7000)
        running = in_background(office.run)
        wait_for(lambda: refusals(swapd), 60, "no refusal")
        swapd.take_vram(-7000)
        assert_finished(running.result(120), "Done: ")
        assert refusals(swapd) and office.turns()


def test_model_that_dies_in_mid_stream_is_asked_again(desk: Desk) -> None:
    """In the middle of a tool call, of which half is with the agent."""
    with Office(desk, ("swap small",), knobs={"DIE_ONCE": desk.folder / "died"}) as office:
        assert_finished(office.run(240), f"Done: {office.word}")
        assert [turn["dies"] for turn in office.turns()].count(True) == 1
        assert office.starts() >= 2


def refusals(swapd: Swapd) -> list[dict[str, Any]]:
    return [row for row in swapd.get("/api/activity").json["requests"] if row["status"] == 503]

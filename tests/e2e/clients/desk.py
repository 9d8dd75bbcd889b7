"""A client's desk: a home with the settings of its page in ``docs/clients``, and the page's own command to run there.

So what the documentation says is what is tried, but for the address of swapd.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "clients"
NPM = ROOT / ".cache" / "clients" / "node_modules" / ".bin"
ADDRESS = "http://127.0.0.1:8080"
SETTINGS = re.compile(r'^```\w+ title="~/([^"\n]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = "^<!-- needs: {} -->\n```sh\n(.*?)^```$"
PRIVATE = (
    "SWAPD_",
    "XDG_",
    "ANTHROPIC_",
    "OPENAI_",
    "CLAUDE",
    "CODEX_",
    "OPENCODE",
    "QWEN_",
    "PI_",
    "LITELLM_",
    "npm_",
)
"""Beginnings of variables that could bend a client's settings."""


@dataclass(frozen=True)
class Done:
    """How a client ended."""

    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Desk:
    """``home`` and ``work`` (the current directory) of a client whose page is ``docs/clients/PAGE.md``."""

    folder: Path
    page: str
    program: str
    bin: Path = NPM

    @property
    def text(self) -> str:
        return (PAGES / f"{self.page}.md").read_text(encoding="utf-8")

    def set_up(self, url: str, edits: tuple[tuple[str, str], ...] = ()) -> str:
        """Write the page's settings for a swapd at ``url``; returns the page's command. ``edits`` must all apply."""
        (self.folder / "work").mkdir(parents=True, exist_ok=True)
        found = re.search(COMMAND.format(self.program), self.text, re.MULTILINE | re.DOTALL)
        assert found is not None, f"{self.page}.md has no command for {self.program}"
        texts = {"": found[1], **dict(SETTINGS.findall(self.text))}
        whole = "".join(texts.values())
        assert ADDRESS in whole and all(old in whole for old, _ in edits)
        for old, new in ((ADDRESS, url), *edits):
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        command = texts.pop("")
        for name, text in texts.items():
            path = self.folder / "home" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return command

    def environment(self) -> dict[str, str]:
        """Of this user's, what a client needs; no proxies, and nothing of another client."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)}
        kept = {name: value for name, value in kept.items() if not name.lower().endswith("_proxy") and name != "CI"}
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        return {**kept, "HOME": str(self.folder / "home"), "PATH": path, "NO_COLOR": "1", "TERM": "dumb"}

    def run(self, command: str, timeout_s: float = 120) -> Done:
        """Run it to its end; what is left of it after ``timeout_s`` is killed, and that fails."""
        begun = time.monotonic()
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        out, err = self.folder / "out.txt", self.folder / "err.txt"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                ["sh", "-c", command], cwd=self.folder / "work", env=self.environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            )  # fmt: skip
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                said = f"{out.read_text(errors='replace')[-2000:]}\n{err.read_text(errors='replace')[-4000:]}"
                raise AssertionError(f"{self.program} had not ended after {timeout_s} s:\n{said}") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        texts = (out.read_text(errors="replace"), err.read_text(errors="replace"))
        return Done(code, *texts, time.monotonic() - begun)

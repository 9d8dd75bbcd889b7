"""What ``swapd reload`` prints."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from swapd.cli.client import Client
from swapd.cli.main import swapd

NOTHING: dict[str, Any] = {"added": [], "changed": [], "removed": [], "at_restart": [], "warnings": []}


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        ({}, "reloaded; no model was added, changed or removed\n"),
        (
            {"added": ["c", "d"], "changed": ["b"], "removed": ["a"]},
            "added: c, d\nchanged: b\nremoved: a\n",
        ),
        ({"at_restart": ["server.listen"]}, "not before swapd is started again: server.listen\n"),
        ({"warnings": ["w"]}, "warning: w\nreloaded; no model was added, changed or removed\n"),
    ],
)
def test_each_kind_of_change_is_a_line(answer: dict[str, Any], printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "post", lambda self, path: {**NOTHING, **answer})
    done = CliRunner().invoke(swapd, ["reload", "--url", "http://127.0.0.1:1"])
    assert (done.exit_code, done.output) == (0, printed)

from __future__ import annotations

import pytest

from swapd.launch.process import ExitStatus
from swapd.launch.spawn import Word, oom_score_for_children


def test_word_is_length_then_fields_separated_by_nul() -> None:
    word = Word(["/bin/x", "a b", "ü"], {"A": "1=2"}, oom_score_adj=200, nofile_soft=1024, nonce="n")
    length, _, payload = word.encode().partition(b"\n")
    assert int(length) == len(payload)
    assert payload.split(b"\0") == [
        b"200", b"1024", b"3", b"/bin/x", b"a b", "ü".encode(), b"A=1=2", b"SWAPD_NONCE=n",
    ]  # fmt: skip


@pytest.mark.parametrize(("own", "child"), [(0, 200), (900, 1000), (1000, 1000), (-1000, -800)])
def test_children_are_killed_first(own: int, child: int) -> None:
    assert oom_score_for_children(own) == child


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ExitStatus(code=3), "exit code 3"),
        (ExitStatus(signal=9), "signal SIGKILL"),
        (ExitStatus(signal=40), "signal 40"),
    ],
)
def test_exit_status_in_words(status: ExitStatus, text: str) -> None:
    assert str(status) == text

"""What people look at all day."""

from __future__ import annotations

from typing import Any

import pytest

from swapd.cli.status import show

LONG = "unsloth/Qwen3-Coder-30B-A3B-Instruct-1M-GGUF:UD-Q4_K_XL"


def model(id_: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "id": id_, "state": "stopped", "reason": None, "pid": None, "progress": None, "active": 0, "queued": 0,
        "idle_s": None, "loaded_s": None, "group": None, "reserved_mib": {}, "measured_mib": {}, "ram_mib": 0,
        "last_error": None, "loads": 0, "load_s": None, "context_saved": False,
    }  # fmt: skip
    return empty | fields


def status(*models: dict[str, Any], **fields: Any) -> dict[str, Any]:
    device = {"id": "GPU-0", "index": 0, "name": "NVIDIA GeForce RTX 3090 Ti Founders Edition", "total_mib": 24576,
              "free_mib": 1000, "headroom_mib": 1024}  # fmt: skip
    tree = {
        "version": "0.1.0", "uptime_s": 90061.5, "config": {"path": "/etc/swapd/swapd.toml", "error": None},
        "known": True, "problem": None, "devices": [device],
        "ram": {"total_mib": 32000, "available_mib": 30000, "headroom_mib": 1024}, "models": list(models),
    }  # fmt: skip
    return tree | fields


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_it_fits_80_columns_with_long_names_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        model(LONG, state="ready", pid=1, active=12, queued=1000, measured_mib={"GPU-0": 23456}, reason="x " * 60),
        model("b", state="starting", pid=2, progress=0.42, reserved_mib={"GPU-0": 1, "GPU-1": 2}),
        model("c", state="ready", pid=3, idle_s=3723.0),
    ]
    show(status(*rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, "\n".join(lines)
    text = "\n".join(lines)
    for words in ("starting 42%", "23,456", "1000", "1h02m", "1,000 MiB", "1,024 MiB", "up 1d01h"):
        assert words in text, words
    assert LONG[:12] in text


def test_speed_of_the_last_answers_is_shown_where_there_were_some(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = dict.fromkeys(("decode_tps", "prefill_tps", "cached", "draft_accepted", "first_byte_s"))
    told = {
        "decode_tps": 1234.56,
        "prefill_tps": 12345.6,
        "cached": 0.973,
        "draft_accepted": 0.5,
        "first_byte_s": 1234.5,
    }
    show(status(model("a"), answers={LONG: {"answers": 7, **told}, "b[1]": {"answers": 1, **unknown}}))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80, text
    for words in ("1,234.6 t/s", "12,346 t/s", "97%", "50%", "1,234.50 s", "b[1]"):
        assert words in text, words
    show(status(model("a"), answers={}))
    assert "LAST ANSWERS" not in capsys.readouterr().out


def test_failed_models_are_told_with_their_error_word_for_word(capsys: pytest.CaptureFixture[str]) -> None:
    error = "exit code 1: error: invalid argument: --foo [/bar] [bold]x"
    show(status(model("a[1]", state="failed", last_error=error), model("d", state="ready", reason="degraded: n_ctx 4")))
    text = capsys.readouterr().out
    assert f"a[1]: {error}" in text and "d: degraded: n_ctx 4" in text


def test_unknown_devices_are_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    device = {"id": "G", "index": 0, "name": "x", "total_mib": 0, "free_mib": None, "headroom_mib": 1024}
    show(status(known=False, problem="NVML [broken]: Unknown Error", devices=[device]))
    text = capsys.readouterr().out
    assert "GPUs unknown: NVML [broken]: Unknown Error" in text and "cannot be read" in text

"""``swapd doctor`` as people run it: alone, beside a running swapd, with mistakes, and never with a secret."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.swapd_process import Swapd

SECRETS = {
    "api key": "k-one-7f3a",
    "admin key": "k-two-91cc",
    "environment": "k-three-aa07",
    "child": "k-four-5e5e",
    "variable": "k-five-c0de",
    "peer": "k-six-beef",
    "argument": "k-seven-d00d",
    "own variable": "k-eight-f00d",
}


def secretive(folder: Path) -> Swapd:
    """A swapd with a secret in every place that has one, and a model that tells some as it dies."""
    telling = f"cannot use {SECRETS['child']} nor {SECRETS['environment']} in {folder}\n"
    models = {
        "a": {"api_key": SECRETS["child"]},
        "bad": {"knobs": {"LOAD_EXIT": 3, "STDERR": telling}, "env": {"HF_TOKEN": SECRETS["variable"]}},
        "other": {"args": f"--hf-token {SECRETS['argument']}"},
    }
    extra = (
        f'[vars]\nmine = "{SECRETS["own variable"]}"\n[peers.p]\nurl = "http://box:1"\napi_key = "{SECRETS["peer"]}"\n'
    )
    server = {
        "api_keys": [SECRETS["api key"], "${env:SECRET_OF_MINE}", "${mine}"],
        "admin_keys": [SECRETS["admin key"]],
    }
    environ = {"SECRET_OF_MINE": SECRETS["environment"], "SWAPD_TEST_PASSWORD": "k-nine-0000"}
    return Swapd(folder, models, server=server, extra=extra, environ=environ)


def leaks(text: str) -> list[str]:
    return [secret for secret in [*SECRETS.values(), "k-nine-0000"] if secret in text]


def test_page_has_what_a_bug_report_needs_and_no_secret(tmp_path: Path) -> None:
    with secretive(tmp_path) as swapd:
        admin = {"Authorization": f"Bearer {SECRETS['admin key']}"}
        assert swapd.ask("POST", "/api/models/bad/load", headers=admin).status == 502
        done = swapd.cli("doctor")
        assert done.returncode == 0, done.stderr
        page = done.stdout
        titles = [line for line in page.splitlines() if line.startswith("## ")]
        assert titles == [
            "## versions", "## machine", "## devices", "## builds", "## environment", "## running", "## configuration"
        ]  # fmt: skip
        assert "GPU 0" in page and "sim, 8192 MiB" in page
        assert "exit code 3" in page and "model bad" in page, "the last error of a running swapd"
        assert "cannot use [removed] nor [removed]" in page, "the model's own last words"
        assert 'api_keys = ["[removed]", "[removed]", "[removed]"]' in page
        assert "builds" in page and "unix sockets" in page
        assert str(tmp_path) not in page, "the home directory is ~"
        assert leaks(page) == [] and leaks(done.stderr) == []
        as_json = swapd.cli("doctor", "--json").stdout
        assert leaks(as_json) == []
        assert set(json.loads(as_json)) == {t.removeprefix("## ") for t in titles} | {"toml"}


def test_key_of_the_command_line_is_not_shown_either(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}) as swapd:
        page = swapd.cli("doctor", "--api-key", "k-ten-4242", "--url", "http://k-ten-4242.invalid:1").stdout
        assert "k-ten" not in page


def test_page_is_printed_without_a_swapd_and_with_mistakes(tmp_path: Path) -> None:
    swapd = secretive(tmp_path)
    swapd.write()
    swapd.config.write_text(swapd.config.read_text() + f'[models.x]\ngguf = "gone.gguf"\nkee = "{SECRETS["peer"]}"\n')
    done = swapd.cli("doctor", SWAPD_URL="http://127.0.0.1:1")  # the file does not tell: :8080 may be somebody's
    assert done.returncode == 0, done.stderr
    assert "no swapd answers" in done.stdout
    assert "models.x.kee: no such key" in done.stdout
    assert leaks(done.stdout + done.stderr) == []


def test_page_is_printed_with_a_file_that_is_no_toml(tmp_path: Path) -> None:
    swapd = secretive(tmp_path)
    swapd.write()
    swapd.config.write_text(f'[server]\napi_keys = ["{SECRETS["api key"]}"\nlisten = "x"\n')
    done = swapd.cli("doctor")
    assert done.returncode == 0, done.stderr
    assert "mistake" in done.stdout
    assert leaks(done.stdout + done.stderr) == []

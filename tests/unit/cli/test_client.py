"""Where a command looks for swapd, and which key it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.cli.client import Client, find, model_path
from swapd.cli.exits import Unreachable
from swapd.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with nothing set."""
    monkeypatch.chdir(tmp_path)
    for name in ("SWAPD_URL", "SWAPD_API_KEY", "SWAPD_CONFIG", "SWAPD_SERVER__LISTEN", "SWAPD_SERVER__STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("8080", "http://127.0.0.1:8080"),
        (":9000", "http://127.0.0.1:9000"),
        ("0.0.0.0:9000", "http://127.0.0.1:9000"),
        ("[::]:9000", "http://127.0.0.1:9000"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("box:9000", "http://box:9000"),
        ("/run/swapd.sock", "/run/swapd.sock"),
        ("${env:L:-:7000}", "http://127.0.0.1:7000"),
    ],
)
def test_address_of_the_configuration_is_reached_on_loopback(home: Path, listen: str, url: str) -> None:
    (home / "swapd.toml").write_text(f'[server]\nlisten = "{listen}"\n')
    assert find(None, None, None) == (url, "")


def test_order_is_flag_environment_endpoint_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(None, None, None)[0] == "http://127.0.0.1:8080"
    (home / "swapd.toml").write_text('[server]\nlisten = ":1"\n')
    assert find(None, None, None)[0] == "http://127.0.0.1:1"
    state = home / "XDG_STATE_HOME" / "swapd"
    state.mkdir(parents=True)
    (state / "endpoint").write_text("http://127.0.0.1:2\n")
    assert find(None, None, None)[0] == "http://127.0.0.1:2"
    monkeypatch.setenv("SWAPD_URL", "http://127.0.0.1:3")
    assert find(None, None, None)[0] == "http://127.0.0.1:3"
    assert find("http://127.0.0.1:4", None, None)[0] == "http://127.0.0.1:4"


def test_key_is_the_first_admin_key_else_the_first_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN", "from-env")
    file = home / "swapd.toml"
    file.write_text('[server]\napi_keys = ["user"]\n')
    assert find(None, None, None)[1] == "user"
    file.write_text('[server]\napi_keys = ["user"]\nadmin_keys = ["${env:ADMIN}", "other"]\n')
    assert find(None, None, None)[1] == "from-env"
    file.write_text('[vars]\nk = "by-var"\n[server]\napi_keys = ["${k}"]\n')
    assert find(None, None, None)[1] == "by-var"
    monkeypatch.setenv("SWAPD_API_KEY", "env")
    assert find(None, None, None)[1] == "env"
    assert find(None, "flag", None)[1] == "flag"


def test_state_directory_of_the_configuration_is_relative_to_it(home: Path) -> None:
    folder = home / "etc"
    (folder / "state").mkdir(parents=True)
    (folder / "s.toml").write_text('[server]\nstate_dir = "state"\n')
    (folder / "state" / "endpoint").write_text("/run/s.sock\n")
    assert find(None, None, str(folder / "s.toml"))[0] == "/run/s.sock"


def test_configuration_that_was_named_must_be_there_and_sound(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        find(None, None, str(home / "gone.toml"))
    broken = home / "broken.toml"
    broken.write_text("[server")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        find(None, None, str(broken))


def test_broken_configuration_that_was_only_found_does_not_keep_status_from_working(home: Path) -> None:
    for text in ("[server", "server = 3", "[server]\nadmin_keys = 'x'\nlisten = 8080\n"):
        (home / "swapd.toml").write_text(text)
        assert find("http://127.0.0.1:4", "k", None) == ("http://127.0.0.1:4", "k")


def test_nobody_at_the_address_is_told_with_what_to_do() -> None:
    with pytest.raises(Unreachable, match="swapd serve"):
        Client("http://127.0.0.1:1", "").get("/api/status")
    with pytest.raises(Unreachable):
        Client("/nowhere/swapd.sock", "").get("/api/status")
    with pytest.raises(ConfigError, match="no URL"):
        Client("ftp://x", "").get("/")


@pytest.mark.parametrize(
    ("model", "path"), [("a", "/api/models/a/load"), ("org/m: 4B", "/api/models/org%2Fm%3A%204B/load")]
)
def test_any_id_can_stand_in_a_path(model: str, path: str) -> None:
    assert model_path(model, "load") == path

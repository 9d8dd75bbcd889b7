"""Every command of the first release against a running swapd, and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.swapd_process import Gpu, Swapd, in_background, wait_for

LONG = "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M"


@pytest.fixture(scope="module")
def swapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    models = {
        "a": {"knobs": {"STDERR": "hello from the child"}},
        LONG: {"vram": "3000 MiB"},
        "broken": {"knobs": {"LOAD_EXIT": 3, "STDERR": "unknown model architecture: 'quux'"}},
        "huge": {"vram": "20000 MiB", "gpus": [0]},
    }
    folder = tmp_path_factory.mktemp("cli")
    with Swapd(folder, models, gpus=(Gpu(), Gpu(24576))) as one:
        yield one


def test_status_is_readable_at_80_columns(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200 and swapd.load("broken").status == 502
    result = swapd.cli("status", COLUMNS="80")
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    tables = lines[: next(i for i, line in enumerate(lines) if line.startswith("broken:"))]
    assert max(map(len, tables[1:])) <= 80, result.stdout
    for word in ("0: sim", "1: sim", "RAM", "FREE", "HEADROOM", "ACTIVE", "QUEUED", "VRAM", "IDLE", "ready", "stopped"):
        assert word in result.stdout, word
    assert "".join(re.findall(r"^\S+", "\n".join(lines), re.MULTILINE)).count("Q4_K_M") <= 1
    assert "failed" in result.stdout and "quux" in result.stdout
    assert "\x1b" not in result.stdout


def test_status_json_is_what_the_api_answers(swapd: Swapd) -> None:
    result = swapd.cli("status", "--json")
    tree = json.loads(result.stdout)
    assert result.returncode == 0
    assert tree.keys() == swapd.status().keys() and [m["id"] for m in tree["models"]][:2] == ["a", LONG]


def test_load_and_unload(swapd: Swapd) -> None:
    result = swapd.cli("load", LONG)
    assert (result.returncode, result.stdout) == (0, f"{LONG}: ready\n")
    assert swapd.state(LONG) == "ready"
    result = swapd.cli("unload", LONG)
    assert (result.returncode, result.stdout) == (0, f"{LONG}: unloaded\n")
    swapd.wait_state(LONG, "stopped")
    assert swapd.cli("load", "a").returncode == 0
    result = swapd.cli("unload", "--all", "--force")
    assert result.returncode == 0 and "a" in result.stdout
    assert swapd.loaded() == set()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("load", "broken"), 1, "quux"),
        (("load", "huge"), 1, "20000 MiB"),
        (("load", "no-such"), 1, "no-such"),
        (("load",), 2, "Missing argument"),
        (("unload",), 2, "--all"),
        (("unload", "a", "--all"), 2, "--all"),
        (("logs", "-f"), 2, "needs a model"),
        (("status", "--bogus"), 2, "--bogus"),
        (("nonsense",), 2, "nonsense"),
        (("status", "--url", "http://127.0.0.1:1"), 3, "no swapd answers"),
        (("status", "--url", "ftp://x"), 2, "no URL"),
        (("status", "--config", "/nowhere.toml"), 2, "/nowhere.toml"),
    ],
)
def test_exit_codes_and_messages_on_stderr(swapd: Swapd, args: tuple[str, ...], code: int, words: str) -> None:
    result = swapd.cli(*args)
    assert (result.returncode, result.stdout) == (code, "")
    assert words in result.stderr and "Traceback" not in result.stderr


def test_logs_show_the_childs_output(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200
    assert "hello from the child" in swapd.cli("logs", "a").stdout
    everything = swapd.cli("logs").stdout
    assert "==> a <==" in everything and f"==> {LONG} <==" in everything


def test_followed_logs_go_on_until_interrupted(swapd: Swapd) -> None:
    assert swapd.load("a").status == 200
    command = [sys.executable, "-m", "swapd", "logs", "-f", "a", "--url", swapd.url]
    environment = swapd.environment()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout and following.stderr
        os.set_blocking(following.stdout.fileno(), False)
        seen = b""

        def shown(text: bytes) -> bool:
            nonlocal seen
            seen += following.stdout.read() or b""  # type: ignore[union-attr]
            return text in seen

        swapd.unload("a")
        wait_for(lambda: shown(b"stopping: "))
        seen = b""
        swapd.load("a")
        wait_for(lambda: shown(b"hello from the child"))
        following.send_signal(signal.SIGINT)
        assert following.wait(5) == 130
        assert b"Traceback" not in following.stderr.read()


def test_followed_logs_end_with_swapd(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"STDERR": "hello from the child"}}}) as one:
        one.load("a")
        command = [sys.executable, "-m", "swapd", "logs", "-f", "a", "--url", one.url]
        environment = one.environment()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
            assert following.stdout and following.stderr
            while b"hello from the child" not in following.stdout.readline():
                assert following.poll() is None
            one.signal()
            assert one.wait_ended() == 0
            assert following.wait(5) == 3
            assert following.stderr.read().decode() == f"swapd: swapd at {one.url} has ended or closed the connection\n"


def test_explain_says_what_a_request_would_do_and_why(swapd: Swapd) -> None:
    swapd.load("a")
    assert "is served at once" in swapd.cli("explain", "a").stdout
    result = swapd.cli("explain", "huge")
    assert result.returncode == 0 and "is refused" in result.stdout and "20,000 MiB" in result.stdout
    tree = json.loads(swapd.cli("explain", LONG, "--json").stdout)
    assert tree["action"] == "start" and sum(tree["needed_mib"].values()) >= 3000


def test_explain_for_a_simulated_machine_asks_no_swapd(tmp_path: Path) -> None:
    swapd = Swapd(tmp_path, {"a": {}, "huge": {"vram": "6000 MiB"}}, gpus=(Gpu(4096),))
    swapd.write()
    machine = str(swapd.machine)
    assert "starts the model" in swapd.cli("explain", "a", "--devices", machine).stdout
    assert "is refused" in swapd.cli("explain", "huge", "--devices", machine).stdout
    assert swapd.cli("explain", "no", "--devices", machine).returncode == 1


def test_version() -> None:
    result = subprocess.run([sys.executable, "-m", "swapd", "version"], capture_output=True, text=True, timeout=20)
    assert result.returncode == 0 and re.fullmatch(r"swapd \d+\.\d+\.\d+\S*\n", result.stdout)


def test_status_imports_neither_pydantic_nor_httpx(swapd: Swapd) -> None:
    code = (
        "import sys; sys.argv = ['swapd', 'status'];\n"
        "from swapd.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end\n"
        "heavy = {'pydantic', 'httpx', 'fastapi', 'uvicorn', 'numpy', 'asyncio'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    environment = {**swapd.environment(), "SWAPD_URL": swapd.url}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr


def test_serve_imports_no_numpy_and_no_gguf_library(swapd: Swapd) -> None:
    maps = Path(f"/proc/{swapd.pid}/maps").read_text()
    assert "numpy" not in maps


def test_address_and_key_are_found_in_the_contracts_order(tmp_path: Path) -> None:
    keys = {"admin_keys": ["${env:ADMIN_KEY}"], "api_keys": ["user"]}
    with Swapd(tmp_path, {"a": {}}, server=keys, environ={"ADMIN_KEY": "admin"}) as swapd:
        endpoint = swapd.state_dir / "endpoint"
        assert endpoint.stat().st_mode & 0o777 == 0o600 and endpoint.read_text().strip() == swapd.url
        assert swapd.cli("load", "a").returncode == 0  # the file's first admin key
        assert swapd.cli("load", "a", "--api-key", "user").returncode == 1  # no admin
        assert swapd.cli("status", SWAPD_API_KEY="wrong").returncode == 1
        assert swapd.cli("status", "--api-key", "user", SWAPD_API_KEY="wrong").returncode == 0
        assert swapd.cli("status", SWAPD_URL="http://127.0.0.1:1").returncode == 3
        assert swapd.cli("status", "--url", swapd.url, SWAPD_URL="http://127.0.0.1:1").returncode == 0
        endpoint.unlink()
        found = swapd.cli("status", SWAPD_SERVER__LISTEN=swapd.url.removeprefix("http://"))
        assert found.returncode == 0  # else the configuration's address


def test_listens_at_a_socket_path(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with Swapd(tmp_path / "home", {"a": {}}, listen=str(path)) as swapd:
        assert swapd.url == str(path)
        assert swapd.chat("a").status == 200
        assert swapd.cli("status").returncode == 0
        assert swapd.cli("unload", "a", SWAPD_URL=str(path)).returncode == 0
        swapd.signal()
        assert swapd.wait_ended() == 0
        assert not path.exists()
        assert swapd.cli("status", SWAPD_URL=str(path)).returncode == 3


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file, environment, flag = (str(tmp_path / f"{name}.sock") for name in ("file", "env", "flag"))
    swapd = Swapd(tmp_path / "home", {"a": {}}, server={"listen": file}, environ={"SWAPD_SERVER__LISTEN": environment})
    swapd.listen = flag
    with swapd:
        assert swapd.url == flag
    serve = [sys.executable, "-m", "swapd", "serve", "--config", str(swapd.config)]
    for environ, expected in (({"SWAPD_SERVER__LISTEN": environment}, environment), ({}, file)):
        variables = {k: v for k, v in swapd.environment().items() if not k.startswith("SWAPD_SERVER")} | environ
        with subprocess.Popen(serve, env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            swapd.url = expected
            wait_for(lambda expected=expected: os.path.exists(expected))  # type: ignore[misc]
            assert swapd.get("/health").status == 200
            process.terminate()
            assert process.wait(10) == 0


def test_address_that_is_taken_is_said_so(swapd: Swapd, tmp_path: Path) -> None:
    other = Swapd(tmp_path, {"a": {}})
    other.write()
    address = swapd.url.removeprefix("http://")
    result = other.cli("serve", "--listen", address)
    assert result.returncode == 1 and "another program listens there" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_with_a_broken_configuration_exits_2_with_every_mistake(tmp_path: Path) -> None:
    swapd = Swapd(tmp_path, {"a": {"ttll": 5, "vram": "much"}}, extra="[sevrer]\n")
    swapd.write()
    result = swapd.cli("serve")
    assert result.returncode == 2 and result.stdout == ""
    for words in ("ttll", "vram", "sevrer"):
        assert f"swapd.toml:{_line(swapd.config, words)}" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def _line(path: Path, word: str) -> int:
    """The last line of a file that has a word."""
    lines = path.read_text().splitlines()
    return max(number for number, line in enumerate(lines, 1) if word in line)


def test_serve_on_a_simulated_machine_by_flag(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other.json"
    elsewhere.write_text(json.dumps({"gpus": [Gpu(2048).row(0), Gpu(2048).row(1)]}))
    with Swapd(tmp_path / "home", {"a": {}}, flags=("--devices", str(elsewhere))) as swapd:
        assert [device["total_mib"] for device in swapd.status()["devices"]] == [2048, 2048]


def test_check_tells_every_mistake_with_its_place(tmp_path: Path) -> None:
    models = {"a": {"idle_timout": "5s", "gguf": "modle.gguf"}, "b": {"args": ["--port", "1"]}}
    groups = {"g": {"members": ["a", "bb"]}}
    swapd = Swapd(tmp_path, models, groups)
    swapd.write()
    result = swapd.cli("check", str(swapd.config))
    assert result.returncode == 2 and result.stdout == ""
    assert f"swapd.toml:{_line(swapd.config, 'idle_timout')}" in result.stderr
    assert "idle_timeout" in result.stderr and "Traceback" not in result.stderr

    swapd.config.write_text(swapd.config.read_text().replace("idle_timout", "idle_timeout"))
    result = swapd.cli("check", str(swapd.config))
    assert result.returncode == 2
    for words in ("did you mean 'model.gguf'", "--port is set by swapd itself", "'bb' is no model"):
        assert words in result.stderr, result.stderr
    assert result.stderr.count("swapd.toml:") == 3

    broken = tmp_path / "broken.toml"
    broken.write_text("[server]\nlisten = \n")
    result = swapd.cli("check", str(broken))
    assert result.returncode == 2 and "broken.toml:2" in result.stderr


def test_check_without_mistakes_shows_binaries_sizes_and_warnings(tmp_path: Path) -> None:
    swapd = Swapd(tmp_path, {"a": {"vram": "1000 MiB", "keep_context": True}, "huge": {"vram": "20000 MiB"}})
    swapd.write()
    result = swapd.cli("check", "--no-files", str(swapd.config))
    assert result.returncode == 0, result.stderr
    assert "model a: GPU-0 1000 MiB" in result.stdout
    assert "huge can never fit" in result.stderr and "not yet effective" in result.stderr
    assert "is less than 1 GiB" in result.stderr
    tree = json.loads(swapd.cli("check", "--json", "--no-files", str(swapd.config)).stdout)
    assert tree["models"]["huge"]["GPU-0"] == 20000 and len(tree["warnings"]) == 3
    machine = tmp_path / "big.json"
    machine.write_text(json.dumps({"gpus": [Gpu(32768).row(0)]}))
    result = swapd.cli("check", "--no-files", "--devices", str(machine), str(swapd.config))
    assert result.returncode == 0 and "never fit" not in result.stderr


def test_lists_of_the_environment_that_are_none_are_bad_configuration(tmp_path: Path) -> None:
    swapd = Swapd(tmp_path, {"a": {}})
    swapd.write()
    for words in (("serve", "--config", str(swapd.config)), ("check", "--no-files")):
        result = swapd.cli(*words, SWAPD_SERVER__API_KEYS="top-secret")
        assert result.returncode == 2 and result.stdout == ""
        assert result.stderr.startswith("swapd: SWAPD_SERVER__API_KEYS: should be a JSON list")
        assert "top-secret" not in result.stderr and len(result.stderr.splitlines()) == 1
    empty = swapd.cli("check", "--no-files", SWAPD_SERVER__API_KEYS="")
    assert empty.returncode == 2 and "SWAPD_SERVER__API_KEYS is empty" in empty.stderr


def test_a_simulated_machine_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    swapd = Swapd(tmp_path, {"a": {}})
    swapd.write()
    result = swapd.cli("check", "--no-files", "--devices", str(tmp_path / "none.json"))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == f"swapd: --devices: {tmp_path}/none.json: No such file or directory\n"


def test_check_runs_binaries_and_reads_headers(tmp_path: Path) -> None:
    extra = "".join(f'[binaries.{name}]\npath = "./{name}"\n' for name in ("illegal", "plain", "good"))
    swapd = Swapd(tmp_path, {"a": {}}, extra=extra)
    swapd.write()
    for name, text in (("illegal", "#!/bin/sh\nkill -ILL $$\n"), ("plain", "no program"), ("good", "")):
        (tmp_path / name).write_text(text or (tmp_path / "llama-server").read_text())
        (tmp_path / name).chmod(0o644 if name == "plain" else 0o755)
    result = swapd.cli("check", str(swapd.config))
    assert result.returncode == 2
    assert "illegal instruction" in result.stderr
    assert re.search(r"binaries\.plain.*not executable", result.stderr), result.stderr
    assert re.search(r"models\.a.*gguf", result.stderr), result.stderr  # an empty file is no GGUF
    assert "binaries.good" not in result.stderr


def test_interrupted_load_is_130_and_the_load_goes_on(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"LOAD_S": 1.5}}}) as swapd:
        command = [sys.executable, "-m", "swapd", "load", "a", "--url", swapd.url]
        with subprocess.Popen(command, env=swapd.environment(), stderr=subprocess.PIPE) as loading:
            swapd.wait_fake("start")
            loading.send_signal(signal.SIGINT)
            assert loading.wait(5) == 130
            assert loading.stderr and b"Traceback" not in loading.stderr.read()
        swapd.wait_state("a", "ready")


def test_status_shows_progress_of_a_load(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"LOAD_S": 30, "SPEAK_ROUTER": 1}}}) as swapd:
        loading = in_background(swapd.load, "a")
        wait_for(lambda: (swapd.model("a")["progress"] or 0) > 0.01)
        assert re.search(r"starting \d+%", swapd.cli("status").stdout)
        assert swapd.unload("a").status == 200 and loading.result(10).status == 503

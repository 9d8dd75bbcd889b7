"""From a valid file to core types: names, groups, flags that swapd sets, paths, and what is only warned about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swapd.config.load import load_text
from swapd.config.resolve import Resolved, resolve
from swapd.errors import ConfigError

ENV = {"HOME": "/home/u", "PATH": "/nowhere"}
TWO = '[models.a]\ngguf = "x"\n[models.b]\ngguf = "y"\n'


def resolved(text: str, *, files: bool = False, path: Path | None = None) -> Resolved:
    return resolve(load_text(text, path, environ=ENV, name="f.toml"), files=files, environ=ENV)


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(text)
    return caught.value.message.splitlines()


@pytest.mark.parametrize(
    ("more", "place", "words"),
    [
        ('aliases = ["a"]', "5: models.b.aliases", "'a' is used already (by models.a)"),
        ('aliases = ["gpt", "gpt"]', "5: models.b.aliases", "'gpt' is used already"),
        ("[models.b.variants]\na = {}", "6: models.b.variants.a", "'a' is used already"),
        ('[selectors.a]\ntargets = ["b"]', "5: selectors.a", "'a' is used already"),
        ('[models.load]\ngguf = "z"', "5: models.load", "reserved name"),
        ('[models.unload]\ngguf = "z"', "5: models.unload", "reserved name"),
        ('[models."x\\u0001"]\ngguf = "z"', "5: models.", "control characters"),
        ('[models.""]\ngguf = "z"', "5: models.", "must not be empty"),
        ('[groups.g]\nmembers = ["a", "bb"]', "6: groups.g.members", "'bb' is no model (did you mean 'b'?)"),
        ('[groups.g]\nmembers = ["a"]\n[groups.h]\nmembers = ["a"]', "8: groups.h.members", "'a' is in two groups"),
        ('[selectors.s]\ntargets = ["aa"]', "6: selectors.s.targets", "'aa' is no model"),
        ('[profiles.p]\npins = { x = "c" }', "6: profiles.p.pins.x", "'c' is no model"),
        ("[models.c]", "5: models.c", "gguf"),
        ('[models.c]\ngguf = "x"\ncmd = ["x", "${PORT}"]', "5: models.c", "gguf"),
        ('[models.c]\ncmd = ["x"]', "6: models.c.cmd", "neither ${PORT} nor ${SOCKET}"),
        ('[models.c]\ncmd = ["x", "${PORT}"]\nctx = 4096', "7: models.c.ctx", "only for gguf models"),
        ('binary = "turbo"\n[binaries.turboquant]\npath = "x"', "5: models.b.binary", "did you mean 'turboquant'?"),
        ('binary = "turbo"', "5: models.b.binary", "there is no [binaries] table"),
        ('gpus = [0]\nenv = { CUDA_VISIBLE_DEVICES = "1" }', "6: models.b.env", "set both here and by gpus"),
        ('[devices]\nsource = "nvidia"', "6: devices.source", '"auto", "none" or "file:PATH"'),
        ('[scheduling]\nbackoff = ["5m", "5s"]', "6: scheduling.backoff", "longer than the last"),
        ('[server]\ndefault_model = "c"', "6: server.default_model", "'c' is no model"),
        ('aliases = ["gpt-4"]\n[server]\ndefault_model = "gpt4"', "7: server.default_model", "did you mean 'gpt-4'?"),
        ("params = { set = { model = 'x' } }", "5: models.b.params.set", "cannot be edited (use upstream_model)"),
        ('params = { strip = ["stream"] }', "5: models.b.params.strip", "'stream' cannot be edited"),
        ("[models.b.variants]\nv = { model = 'x' }", "6: models.b.variants.v", "'model' cannot be edited"),
        ('[profiles.""]\npins = { x = "a" }', "5: profiles.", "must not be empty"),
        ('[peers."a/b"]\nurl = "http://x"', "5: peers.", "a peer's name has no /"),
        ('[peers.p]\nurl = "box2:8080"', "6: peers.p.url", 'is no address of a peer (as in "http://box2:8080")'),
        ('[peers.p]\nurl = "http://x:port"', "6: peers.p.url", "is no address: "),
        ('[peers.p]\nurl = "http://me:key@x"', "6: peers.p.url", "the key goes into api_key"),
    ],
)  # fmt: skip
def test_mistakes_that_only_the_whole_file_shows(more: str, place: str, words: str) -> None:
    lines = mistakes(TWO + more)
    assert any(line.startswith(f"f.toml:{place}") and words in line for line in lines), lines


def test_all_of_them_are_told_at_once() -> None:
    more = 'aliases = ["a"]\nargs = "--port 1 -m x"\n[groups.g]\nmembers = ["c", "d"]\n[models.load]\ngguf = "z"\n'
    lines = mistakes(TWO + more)
    assert [line.split(": ")[0] for line in lines] == [f"f.toml:{n}" for n in (5, 6, 6, 8, 8, 9)]


@pytest.mark.parametrize(
    "flag", ["--host", "--port", "-m", "--model", "--alias", "-a", "--slot-save-path", "--slot_save_path", "--port=1"]
)
def test_flags_that_swapd_sets_are_mistakes_in_args(flag: str) -> None:
    (line,) = mistakes(TWO + f'args = ["--jinja", "{flag}", "x"]')
    assert line.startswith("f.toml:5: models.b.args: ") and "is set by swapd itself" in line


def test_flags_that_swapd_sets_are_mistakes_in_a_binarys_args_too() -> None:
    (line,) = mistakes(TWO + '[binaries.x]\npath = "x"\nargs = ["--host", "0.0.0.0"]')
    assert line.startswith("f.toml:7: binaries.x.args: ") and "--host is set by swapd itself" in line


def test_the_words_of_a_cmd_are_the_operators() -> None:
    text = '[models.c]\ncmd = "vllm serve m --host 127.0.0.1 --port ${PORT}"\n'
    assert resolved(text).launches["c"].cmd[1:] == ("serve", "m", "--host", "127.0.0.1", "--port", "${PORT}")


# ---- not yet effective


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("keep_context = true", "5: models.b.keep_context"),
        ("[context]\nmin_tokens = 1", "5: context"),
    ],
)
def test_what_later_releases_will_do_is_warned_about_not_ignored(more: str, place: str) -> None:
    warnings = [w for w in resolved(TWO + more).warnings if "not yet effective" in w]
    assert len(warnings) == 1 and warnings[0].startswith(f"f.toml:{place}: "), warnings


def test_captures_that_nobody_could_read_are_warned_about() -> None:
    (warning,) = resolved(TWO + "[server]\ncapture = true").warnings
    assert warning.startswith("f.toml:6: server.capture: ") and "admin_keys" in warning
    assert resolved(TWO + '[server]\ncapture = true\nadmin_keys = ["boss"]').warnings == ()


def test_defaults_of_these_keys_warn_of_nothing() -> None:
    text = 'aliases = []\nkeep_context = false\nctx = 0\n[headroom]\npage_cache = "warn"\n[server]\ncapture = false'
    assert resolved(TWO + text).warnings == ()


def test_little_headroom_is_warned_about_where_it_stands() -> None:
    text = '[headroom]\nvram = "256 MiB"\n[headroom.gpus]\n0 = "2 GiB"\n"GPU-1" = "512 MiB"\n'
    warnings = resolved(TWO + text).warnings
    assert [w.split(": ")[:2] for w in warnings] == [
        ["f.toml:6", "headroom.vram"], ["f.toml:9", "headroom.gpus.GPU-1"]
    ]  # fmt: skip
    assert all("1 GiB" in w for w in warnings)


def test_listening_beyond_loopback_without_keys_warns_loudly() -> None:
    for listen, keys, count in (
        (":8080", "[]", 1), ("0.0.0.0:8080", "[]", 1), ("192.168.1.2:8080", "[]", 1), ("[::]:8080", "[]", 1),
        ("127.0.0.1:8080", "[]", 0), ("[::1]:8080", "[]", 0), ("8080", "[]", 0), ("/run/s.sock", "[]", 0),
        ("localhost:8080", "[]", 0), (":8080", '["k"]', 0),
    ):  # fmt: skip
        warnings = resolved(f'[server]\nlisten = "{listen}"\napi_keys = {keys}\n').warnings
        assert len(warnings) == count, (listen, warnings)
        assert all("api_keys" in w and w.startswith("f.toml:2: ") for w in warnings)


# ---- results


def test_paths_are_relative_to_the_file_and_home_works(tmp_path: Path) -> None:
    text = """
[server]
state_dir = "state"
[devices]
source = "file:machine.json"
[binaries.own]
path = "bin/llama-server"
library_path = ["../lib", "~/lib"]
[models.a]
gguf = "models/x.gguf"
binary = "own"
[models.b]
gguf = "/abs/y.gguf"
[models.c]
cmd = ["./serve.sh", "${PORT}"]
"""
    found = resolved(text, path=tmp_path / "swapd.toml")
    here = str(tmp_path)
    binary = found.binaries["own"]
    assert binary.path == f"{here}/bin/llama-server"
    assert binary.library_path[0] == str(tmp_path.parent / "lib") and binary.library_path[1] == str(Path.home() / "lib")
    assert found.launches["a"].gguf == f"{here}/models/x.gguf" and found.launches["b"].gguf == "/abs/y.gguf"
    assert found.launches["c"].cmd[0] == f"{here}/serve.sh"
    assert found.state_dir == tmp_path / "state" and found.device_source == f"file:{here}/machine.json"


def test_state_goes_to_the_users_state_directory() -> None:
    assert resolved("").state_dir == Path("/home/u/.local/state/swapd")
    loaded = load_text("", None, environ=ENV)
    assert resolve(loaded, environ={**ENV, "XDG_STATE_HOME": "/s"}).state_dir == Path("/s/swapd")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ('"all"', None),
        ("[]", ()),
        ("[1, 0]", (1, 0)),
        ('["GPU-abc", "00000000:01:00.0"]', ("GPU-abc", "00000000:01:00.0")),
    ],
)
def test_gpus_keep_their_order(gpus: str, expected: tuple[object, ...] | None) -> None:
    assert resolved(TWO + f"gpus = {gpus}").launches["b"].gpus == expected


def test_scheduling_and_groups_reach_the_core() -> None:
    text = """
priority = 3
concurrency = 2
linger = "5s"
on_conflict = "refuse"
persistent = true
[scheduling]
max_wait = "7s"
linger = "1s"
ungrouped = "swap"
[headroom.gpus]
0 = "1300 MiB"
[groups.duo]
members = ["a", "b"]
swap = false
"""
    catalog = resolved(TWO + text).catalog
    a, b, duo = catalog.models["a"], catalog.models["b"], catalog.groups["duo"]
    assert (a.linger, b.linger, b.priority, b.concurrency, b.on_conflict) == (1.0, 5.0, 3, 2, "refuse")
    assert b.persistent and not a.persistent
    assert (duo.members, duo.swap, duo.exclusive, duo.persistent) == (("a", "b"), False, True, False)
    assert catalog.policy.max_wait_s == 7 and catalog.policy.ungrouped == "swap"
    assert catalog.policy.headroom("GPU-x", "0") == 1300 << 20 and catalog.policy.headroom("GPU-y", "1") == 1 << 30


def test_missing_files_are_named_with_the_nearest_there_is(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    text = (
        '[binaries.x]\npath = "./gone"\n[models.a]\ngguf = "modle.gguf"\nbinary = "x"\n[models.b]\ngguf = "no/x.gguf"\n'
    )
    with pytest.raises(ConfigError) as caught:
        resolved(text, files=True, path=tmp_path / "f.toml")
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert "f.toml:2: binaries.x.path" in lines[0] and "no such program" in lines[0]
    assert "f.toml:4: models.a.gguf" in lines[1] and "did you mean 'model.gguf'?" in lines[1]
    assert "f.toml:7: models.b.gguf" in lines[2] and f"there is no folder {tmp_path}/no" in lines[2]


def test_variables_read_from_the_environment_do_not_reach_children() -> None:
    text = '[server]\napi_keys = ["${env:KEY}"]\n' + TWO
    loaded = load_text(text, None, environ={**ENV, "KEY": "k"})
    assert resolve(loaded, files=False, environ=ENV).launches["a"].scrub_env == {"KEY"}


def test_size_tables_and_cpu_moe_reach_the_launch() -> None:
    text = 'vram = { 0 = "3 GiB", 1 = "2 GiB" }\nram = "1 GiB"\nn_cpu_moe = 12\nargs = ["--jinja"]\n'
    launch = resolved(TWO + text).launches["b"]
    assert launch.vram == {"0": 3 << 30, "1": 2 << 30} and launch.ram == 1 << 30
    assert launch.args == ("--jinja", "--n-cpu-moe", "12")
    assert resolved(TWO).launches["a"].vram == "auto"
    assert json.dumps(sorted(resolved(TWO).routes)) == '["a", "b"]'

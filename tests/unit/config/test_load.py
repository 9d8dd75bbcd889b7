"""The file as written: units, mistakes with their places, variables, defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swapd.config.load import Loaded, find_config, load, load_text
from swapd.errors import ConfigError

ENV = {"HOME": "/home/u", "KEY": "secret", "EMPTY": ""}


def loaded(text: str, environ: dict[str, str] | None = None, **flags: Any) -> Loaded:
    return load_text(text, None, flags=flags, environ=ENV if environ is None else environ, name="f.toml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return caught.value.message.splitlines()


# ---- units


@pytest.mark.parametrize(
    ("text", "size"),
    [('"1 GiB"', 1 << 30), ('"512 MiB"', 512 << 20), ('"2GB"', 2 * 10**9), ("4096", 4096), ('"1.5 GiB"', 3 << 29),
     ('"0"', 0), ('"8 kb"', 8000)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert loaded(f"[headroom]\nvram = {text}").file.headroom.vram == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("250ms", 0.25), ("10m", 600), ("1h30m", 5400), ("0s", 0), ("1d", 86400), ("1m 30s", 90)],
)
def test_durations(text: str, seconds: float) -> None:
    assert loaded(f'[server]\ndrain = "{text}"').file.server.drain == seconds


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("headroom", "vram", '"1 XiB"', "not a size"),
        ("headroom", "vram", "-1", "negative"),
        ("headroom", "vram", "true", "not a size"),
        ("server", "drain", '"soon"', "not a duration"),
        ("server", "drain", "5", "not a duration"),
        ("scheduling", "queue_timeout", '"0s"', "longer than 0"),
        ("scheduling", "queue_limit", "-1", "greater than or equal to 0"),
        ("scheduling", "backoff", '["5s"]', "at least 2"),
        ("scheduling", "ungrouped", '"never"', "'headroom'"),
        ("server", "log_format", '"xml"', "'console'"),
        ("models.a", "gpus", '"none"', "list of indices"),
        ("models.a", "gpus", "[true]", "list of indices"),
        ("models.a", "ctx", "-5", "whole number"),
        ("models.a", "vram", '{ 0 = "x" }', "not a size"),
        ("models.a", "args", "'--a \"b'", "shell quoting"),
        ("models.a", "linger", '"long"', "not a duration"),
        ("models.a", "keep_context", '"sometimes"', 'true, false or "auto"'),
        ("models.a", "concurrency", '"many"', "integer"),
        ("groups.g", "members", '"a"', "list"),
        ("defaults", "unlisted", '"yes"', "valid boolean, got 'yes'"),
        ("models.a", "preload", '"no"', "valid boolean, got 'no'"),
        ("models.a", "persistent", "1", "valid boolean, got 1"),
        ("models.a", "priority", '"3"', "valid integer, got '3'"),
        ("models.a", "priority", "true", "valid integer, got True"),
        ("models.a", "concurrency", "2.0", "valid integer, got 2.0"),
        ("scheduling", "queue_limit", '"10"', "valid integer, got '10'"),
        ("context", "min_tokens", '"10"', "valid integer, got '10'"),
        ("server", "capture", '"on"', "valid boolean, got 'on'"),
        ("server", "listen", "8080", "valid string, got 8080"),
        ("selectors.s", "targets", "[]", "at least 1"),
    ],
)
def test_wrong_values_name_file_line_key_and_what_is_expected(table: str, key: str, value: str, words: str) -> None:
    (line,) = mistakes(f"[{table}]\n# a comment\n{key} = {value}\n")
    assert line.startswith(f"f.toml:3: {table}.{key}: "), line
    assert words in line, line


@pytest.mark.parametrize(
    ("text", "name"),
    [("box.example", "box.example"), ("Box.Example.:8443", "box.example"), ("::1", "::1"), ("[fd00::1]", "fd00::1"),
     ("[fd00::1]:8443", "fd00::1"), ("10.0.0.1:80", "10.0.0.1")],
)  # fmt: skip
def test_hosts_are_names_whatever_the_port(text: str, name: str) -> None:
    assert loaded(f'[server]\nhosts = ["{text}"]').file.server.hosts == [name]


@pytest.mark.parametrize(
    "text", ["https://box.example", "box.example/api", ":8443", "box:port", "me@box", "a, b", "[::1"]
)
def test_what_is_no_host_name_is_refused(text: str) -> None:
    (line,) = mistakes(f'[server]\nhosts = ["{text}"]')
    assert line.startswith(f"f.toml:2: server.hosts: no host name: {text!r}") and "box.example" in line


# ---- mistakes


def test_every_mistake_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
[server]
lisen = "8080"
drain = "soon"
[headroom]
vram = "1 XiB"
[models.a]
gguf = "x.gguf"
ttl = 5
[models.b.variants]
[modles.c]
"""
    lines = mistakes(text)
    assert [line.split(": ")[0] for line in lines] == [f"f.toml:{n}" for n in (2, 3, 5, 8, 10)]
    assert "did you mean 'listen'?" in lines[0]
    assert "did you mean 'idle_timeout'?" in lines[3]
    assert "did you mean 'models'?" in lines[4]


@pytest.mark.parametrize(
    ("key", "hint"),
    [("idle_timout", "idle_timeout"), ("ttl", "idle_timeout"), ("model", "gguf"), ("cmdStop", "stop_cmd"),
     ("checkEndpoint", "health"), ("unloadTimeout", "stop_grace"), ("ngpu", "gpus")],
)  # fmt: skip
def test_unknown_keys_get_the_nearest_valid_one_other_programs_words_too(key: str, hint: str) -> None:
    (line,) = mistakes(f'[models."org/m"]\ngguf = "x"\n{key} = 1\n')
    assert line == f"f.toml:3: models.\"org/m\".{key}: no such key (did you mean '{hint}'?)"


def test_unknown_key_in_an_inline_or_nested_table_has_its_line() -> None:
    lines = mistakes('[models.a]\ngguf = "x"\nparams = { set = {}, stirp = [] }\n[models.a.ladder]\nflags = "--x"\n')
    assert any(
        line.startswith("f.toml:3: models.a.params.stirp: no such key (did you mean 'strip'?)") for line in lines
    )
    assert any(line.startswith("f.toml:5: models.a.ladder.flags: no such key") for line in lines)
    assert any("models.a.ladder.flag: this key is needed" in line for line in lines)


def test_syntax_error_ends_the_list_with_its_line() -> None:
    (line,) = mistakes('[server]\nlisten = "8080"\nmodels = \n')
    assert line.startswith("f.toml:3: ")


def test_mistake_in_defaults_is_told_once_where_it_stands() -> None:
    (line,) = mistakes('[defaults]\nidle_timeout = "soon"\n[models.a]\ngguf = "x"\n[models.b]\ngguf = "y"\n')
    assert line.startswith("f.toml:2: defaults.idle_timeout: ")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "swapd.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"not UTF-8 at byte 0"):
        load(binary)
    with pytest.raises(ConfigError, match=r"gone\.toml: No such file"):
        load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml: no such file"):
        find_config(str(tmp_path / "gone.toml"))


# ---- variables


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("${base}/x", "/srv/x"),
        ("${env:KEY}", "secret"),
        ("${env:NO:-fallback}", "fallback"),
        ("${env:EMPTY:-fallback}", "fallback"),
        ("${env:NO:-}", ""),
        ("$${base}", "${base}"),
        ("$${env:KEY}", "${env:KEY}"),
        ("${n}", "3"),
        ("$base $", "$base $"),
        ("${PORT} ${SOCKET} ${MODEL_ID} ${PID}", "${PORT} ${SOCKET} ${MODEL_ID} ${PID}"),
    ],
)
def test_variables_are_expanded_value_by_value(value: str, expanded: str) -> None:
    text = f'[vars]\nbase = "/srv"\nn = 3\n[models.a]\ngguf = "x"\ndescription = "{value}"\n'
    assert loaded(text).file.models["a"].description == expanded


def test_variables_work_in_arrays_and_nested_tables_but_not_in_keys() -> None:
    text = '[vars]\nv = "1"\n[models."${v}"]\nargs = ["--a", "${v}"]\nenv = { X = "${v}" }\n'
    model = loaded(text).file.models["${v}"]
    assert model.args == ["--a", "1"] and model.env == {"X": "1"}


def test_unknown_variables_are_mistakes_with_their_places() -> None:
    text = '[models.a]\ngguf = "${nope}/x"\nargs = ["--k", "${env:NO}"]\n'
    first, second = mistakes(text)
    assert first.startswith("f.toml:2: models.a.gguf: ${nope} is no entry of [vars]")
    assert second.startswith("f.toml:3: models.a.args: the environment variable NO is not set")


@pytest.mark.parametrize("key", ["api_keys", "admin_keys"])
@pytest.mark.parametrize("value", ["${env:EMPTY}", "${env:NO:-}", "", "  "])
def test_empty_key_never_opens_the_server(key: str, value: str) -> None:
    (line,) = mistakes(f'[server]\n{key} = ["good", "{value}"]\n')
    assert line.startswith(f"f.toml:2: server.{key}: a key is empty")


def test_variables_that_were_read_are_remembered() -> None:
    assert loaded('[server]\napi_keys = ["${env:KEY}", "${env:NO:-x}"]').env_read == {"KEY", "NO"}


# ---- defaults, environment, flags


def test_models_args_replace_the_defaults_and_its_env_is_laid_over() -> None:
    text = """
[defaults]
args = ["--jinja"]
env = { A = "1", B = "1" }
idle_timeout = "15m"
[models.own]
args = "--ctx-size 4096 --name 'a b'"
env = { B = "2" }
idle_timeout = "0s"
[models.plain]
"""
    own, plain = (loaded(text).file.models[name] for name in ("own", "plain"))
    assert own.args == ["--ctx-size", "4096", "--name", "a b"] and own.env == {"A": "1", "B": "2"}
    assert own.idle_timeout == 0
    assert plain.args == ["--jinja"] and plain.env == {"A": "1", "B": "1"} and plain.idle_timeout == 900


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("""'--chat-template-kwargs \\'{"a": "b c"}\\''""", None),
        ('''"--chat-template-kwargs '{\\"a\\": \\"b c\\"}'"''', ["--chat-template-kwargs", '{"a": "b c"}']),
        ("'''--kw '{\"a\": \"b c\"}' '''", ["--kw", '{"a": "b c"}']),
        ('"""\n--a 1 \\\\\n --b 2 # a comment\n"""', ["--a", "1", "--b", "2"]),
        ('["--kw", "{\\"a\\": 1}"]', ["--kw", '{"a": 1}']),
    ],
)
def test_command_lines_take_shell_quoting_or_arrays(args: str, words: list[str] | None) -> None:
    text = f"[models.a]\nargs = {args}\n"
    if words is None:
        mistakes(text)  # TOML's literal strings have no escapes
    else:
        assert loaded(text).file.models["a"].args == words


def test_environment_beats_the_file_and_flags_beat_both() -> None:
    text = '[server]\nlisten = "1"\ndrain = "1s"\n[devices]\nsource = "auto"\n'
    assert loaded(text).file.server.listen == "1"
    both = loaded(text, server={"listen": "3"}, devices={"source": "none"}).file
    assert (both.server.listen, both.server.drain, both.devices.source) == ("3", 1.0, "none")


def test_environment_settings_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAPD_SERVER__LISTEN", ":9000")
    monkeypatch.setenv("SWAPD_SERVER__DRAIN", "5s")
    monkeypatch.setenv("SWAPD_SERVER__API_KEYS", '["k1", "k2"]')
    monkeypatch.setenv("SWAPD_SERVER__MAX_BODY", "1 MiB")
    server = loaded('[server]\nlisten = "1"\n').file.server
    assert (server.listen, server.drain, server.api_keys, server.max_body) == (":9000", 5.0, ["k1", "k2"], 1 << 20)
    assert loaded("", server={"listen": "8080"}).file.server.listen == "8080"


LISTS = ("api_keys", "admin_keys", "cors_origins", "hosts")


@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize("text", ["top-secret", '"top-secret"', "[top-secret]", '{"a": "top-secret"}', "[1]"])
def test_a_list_of_the_environment_that_is_none_names_the_variable_and_how_to_write_it(
    key: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SWAPD_SERVER__{key.upper()}", text)
    (line,) = mistakes("[server]\napi_keys = []\n")
    assert line.startswith(f"SWAPD_SERVER__{key.upper()}: should be a JSON list") and '\'["one", "two"]\'' in line
    assert "top-secret" not in line


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [("DRAIN", "soon", "not a duration"), ("CAPTURE", "perhaps", "valid boolean"), ("LOG_LEVEL", "loud", "'debug'"),
     ("API_KEYS", '["a", " "]', "open by accident")],
)  # fmt: skip
def test_other_mistakes_of_the_environment_name_the_variable_too(
    key: str, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SWAPD_SERVER__{key}", text)
    (line,) = mistakes('[server]\ndrain = "1s"\n')
    assert line.startswith(f"SWAPD_SERVER__{key}: ") and words in line


def test_reference_may_say_a_number_or_a_switch_where_one_is_wanted() -> None:
    text = """
    [vars]
    few = 2
    on = true
    [defaults]
    gguf = "m.gguf"
    priority = "${env:RANK:-7}"
    [models.a]
    concurrency = "${few}"
    preload = "${on}"
    persistent = "${env:KEEP:-1}"
    ctx = "${env:CTX:-8192}"
    env = { N = "${few}" }
    """
    model = load_text(text, None, environ={}).file.models["a"]
    assert (model.concurrency, model.preload, model.persistent) == (2, True, True)
    assert (model.ctx, model.priority) == (8192, 7)
    assert model.env == {"N": "2"}


def test_reference_that_says_no_number_is_a_mistake_in_its_place() -> None:
    with pytest.raises(ConfigError, match=r":4: models\.a\.concurrency: .*got 'few'"):
        load_text('[vars]\nn = "few"\n[models.a]\nconcurrency = "${n}"\ngguf = "m"\n', None, environ={})


def test_optional_host_that_is_empty_is_none() -> None:
    assert loaded('[server]\nhosts = ["${env:NO_SUCH_HOST:-}"]\n').file.server.hosts == []


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (*LISTS, "listen", "drain", "capture"):
        monkeypatch.setenv(f"SWAPD_SERVER__{key.upper()}", "")
    server = loaded('[server]\napi_keys = ["k"]\nadmin_keys = ["b"]\nlisten = "1"\n').file.server
    assert (server.api_keys, server.listen, server.drain, server.capture) == (["k"], "1", 20.0, False)


def test_an_empty_variable_of_keys_never_opens_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAPD_SERVER__API_KEYS", "")
    (line,) = mistakes('[server]\nlisten = ":8080"\n')
    assert "SWAPD_SERVER__API_KEYS is empty, which would leave the server open" in line


def test_a_switch_of_the_environment_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (("true", True), ("1", True), ("off", False)):
        monkeypatch.setenv("SWAPD_SERVER__CAPTURE", text)
        assert loaded("").file.server.capture is value


def test_a_mistake_in_a_flag_is_not_the_variables_that_it_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAPD_SERVER__DRAIN", "1s")
    with pytest.raises(ConfigError) as caught:
        loaded("", server={"drain": "soon"})
    assert "SWAPD_SERVER__DRAIN" not in caught.value.message


def test_no_file_means_the_contracts_defaults() -> None:
    file = loaded("").file
    assert file.server.listen == "127.0.0.1:8080" and file.server.drain == 20 and file.server.max_body == 256 << 20
    assert (file.headroom.vram, file.headroom.ram) == (1 << 30, 1 << 30)
    assert file.scheduling.max_wait == 60 and file.scheduling.linger == "auto" and file.scheduling.backoff == [5, 300]
    assert file.scheduling.queue_timeout == 1800 and file.scheduling.ungrouped == "headroom"


def test_configuration_is_looked_for_in_the_contracts_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "xdg" / "swapd"
    home.mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": "/nowhere"}
    assert find_config(None, environ) in (None, Path("/etc/swapd/swapd.toml"))
    (home / "swapd.toml").touch()
    assert find_config(None, environ) == home / "swapd.toml"
    Path("swapd.toml").touch()
    assert find_config(None, environ) == Path("swapd.toml")
    Path("by-env.toml").touch()
    assert find_config(None, environ | {"SWAPD_CONFIG": "by-env.toml"}) == Path("by-env.toml")
    Path("by-flag.toml").touch()
    assert find_config("by-flag.toml", environ | {"SWAPD_CONFIG": "by-env.toml"}) == Path("by-flag.toml")

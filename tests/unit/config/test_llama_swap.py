"""A llama-swap configuration becomes TOML that behaves the same; what cannot be said is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.config.importing.llama_swap import Result, import_llama_swap
from swapd.config.load import load_text
from swapd.config.resolve import Resolved, resolve
from swapd.config.schema import File
from swapd.core.groups import GroupRules
from swapd.errors import ConfigError
from swapd.llama.written import read_server

WORKSTATION = Path(__file__).parents[2] / "data" / "llama-swap" / "workstation.yaml"
ENV = {"HOME": "/home/u", "PATH": "", "HOUSE_KEY": "k1", "BOX2_KEY": "k2", "VLLM_MODEL": "a b", "VLLM_ARGS": "-x 'y z'",
       "TTL": "90", "LIB": "/e"}  # fmt: skip


BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
"""Some hundred bytes that would be millions of values."""


def imported(text: str) -> Result:
    return import_llama_swap(text, "f.yaml", read_server=read_server, environ=ENV)


def resolved(text: str) -> Resolved:
    return resolve(load_text(imported(text).text, None, environ=ENV), files=False, environ=ENV)


def file(text: str) -> File:
    return load_text(imported(text).text, None, environ=ENV).file


def notes(text: str) -> list[str]:
    return [str(note) for note in imported(text).notes]


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        imported(text)
    return caught.value.message.splitlines()


def model(lines: str, cmd: str = "llama-server --port ${PORT} -m /m.gguf -c 512 -ngl 9") -> str:
    """One model ``m`` with further keys."""
    indented = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"models:\n  m:\n    cmd: {cmd}\n{indented}"


def models(*names: str) -> str:
    return "models:\n" + "".join(
        f"  {name}: {{cmd: 'llama-server --port ${{PORT}} -m /{name}.gguf -c 1 -ngl 1'}}\n" for name in names
    )


# ---- a whole file


@pytest.fixture(scope="module")
def workstation() -> Result:
    text = WORKSTATION.read_text(encoding="utf-8")
    return import_llama_swap(text, "workstation.yaml", read_server=read_server, environ=ENV)


def test_whole_file_starts_the_same_commands(workstation: Result) -> None:
    found = resolve(load_text(workstation.text, None, environ=ENV), files=False, environ=ENV)
    coder, chat, embedder, whisper, vllm = found.launches.values()
    assert coder.gguf == "/home/u/gguf/coder-30b-Q4_K_M.gguf"
    assert coder.args == (
        "--ctx-size", "65536", "-ngl", "99", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0",
        "--chat-template-kwargs", '{"enable_thinking": false}',
    )  # fmt: skip
    assert coder.binary is not None and coder.binary.path == "/opt/llama.cpp/build/bin/llama-server"
    assert coder.gpus == (0, 1) and coder.env["GGML_CUDA_DISABLE_GRAPHS"] == "1" and coder.env["HOME"] == "/home/u"
    assert chat.binary is not None and chat.binary.library_path == ("/opt/turbo/lib", "/opt/cuda/lib64")
    assert (chat.gguf, chat.args, chat.gpus) == ("/home/u/gguf/chat-8b.gguf", ("--jinja",), (1,))
    assert chat.upstream_model == "house-chat"
    assert embedder.binary is not None and (embedder.binary.name, embedder.gpus) == ("llama-server", ())
    assert (embedder.health, embedder.stop_grace_s, embedder.load_timeout_s) == ("/v1/models", 5, 300)
    assert whisper.cmd[:3] == ("docker", "run", "--rm") and "${PORT}:8080" in whisper.cmd
    assert whisper.cmd[-2:] == ("--port", "8080") and whisper.stop_cmd == ("docker", "stop", "whisper")
    assert vllm.cmd == ("vllm", "serve", "a b", "--port", "${PORT}", "-x", "y z", "--literal", "${not a macro}")
    assert vllm.stop_cmd == ("kill", "-INT", "${PID}")


def test_whole_file_keeps_times_names_and_rules(workstation: Result) -> None:
    loaded = load_text(workstation.text, None, environ=ENV)
    found = resolve(loaded, files=False, environ=ENV)
    specs = found.catalog.models
    assert [spec.idle_timeout_s for spec in specs.values()] == [600, 0, 1800, 1800, 1800]
    assert (specs["org/coder-30b"].priority, specs["chat"].priority, specs["org/coder-30b"].concurrency) == (-1, 10, 4)
    assert [id_ for id_, spec in specs.items() if spec.preload] == ["org/coder-30b", "chat"]
    coder = loaded.file.models["org/coder-30b"]
    assert coder.aliases == ["coder", "gpt-4o"] and coder.params.strip == ["top_k"]
    assert coder.params.set == {"temperature": 0.6, "chat_template_kwargs": {"effort": "medium"}}
    assert coder.variants == {"org/coder-30b:high": {"chat_template_kwargs": {"effort": "high"}}}
    assert loaded.file.server.api_keys == ["k1", "sk-second"] and loaded.file.server.log_level == "warning"
    assert loaded.file.profiles["night"].pins == {"gpt-5": "chat", "think": "org/coder-30b"}
    assert loaded.file.selectors["any-code"].targets == ["org/coder-30b", "chat"]
    assert (loaded.file.peers["box2"].url, loaded.file.peers["box2"].models) == ("http://box2:8080", ["big"])
    rules = GroupRules(found.catalog)
    assert not rules.unloads("org/coder-30b", "embedder") and rules.unloads("chat", "vllm")
    assert rules.unloads("chat", "embedder") and rules.protects("chat", "whisper")


@pytest.mark.parametrize(
    "key",
    ["logToStdout", "metricsMaxInMemory", "captureBuffer", "startPort", "includeAliasesInList", "futureKnob",
     "models.org/coder-30b.name", "models.org/coder-30b.metadata", "models.org/coder-30b.timeouts.connect",
     "models.org/coder-30b.filters.setParams.seed", "models.org/coder-30b.sendLoadingState", "models.elsewhere",
     "models.org/coder-30b.aliases.unlisted", "models.whisper.checkEndpoint", "groups.always.members",
     "hooks.on_startup.preload", "hooks.on_startup.profile", "profiles.night.pins.draw", "profiles.old",
     "selectors.spread.targets", "selectors.spread.settings", "peers.box2.filters"],
)  # fmt: skip
def test_what_a_whole_file_loses_is_listed_with_its_line(workstation: Result, key: str) -> None:
    lines = WORKSTATION.read_text(encoding="utf-8").splitlines()
    found = [note for note in workstation.notes if note.key == key]
    assert found
    for note in found:
        assert key.rpartition(".")[2].removesuffix("-30b") in lines[note.line - 1] or "." in key
        assert f"# {note}\n" in workstation.text


# ---- single keys


@pytest.mark.parametrize(
    ("top", "lines", "seconds"),
    [("", "", 0), ("", "ttl: 60", 60), ("globalTTL: 30", "", 30), ("globalTTL: 30", "ttl: -1", 30),
     ("globalTTL: 30", "ttl: 0", 0), ("globalTTL: 30", "ttl: 5", 5), ("", "ttl: ${env.TTL}", 90),
     ("macros: {x: 7}", "ttl: ${x}", 7)],
)  # fmt: skip
def test_ttl(top: str, lines: str, seconds: int) -> None:
    assert resolved(f"{top}\n{model(lines)}").catalog.models["m"].idle_timeout_s == seconds


@pytest.mark.parametrize(("given", "seconds"), [("500", 500), ("3", 15)])
def test_health_check_timeout_has_a_least(given: str, seconds: int) -> None:
    assert resolved(f"healthCheckTimeout: {given}\n{model('')}").launches["m"].load_timeout_s == seconds


@pytest.mark.parametrize(
    ("cmd", "words"),
    [
        ("|\n      # first\n      x --port ${PORT} \\\n      # second\n      'a b' \\\n      c", ["'a b'", "c"]),
        (">\n      x\n      --port ${PORT} a", ["a"]),
        ("x --port ${PORT} 'it''s' \"a\\\"b\"", ["its", 'a"b']),
    ],
)
def test_commands_are_split_as_llama_swap_does(cmd: str, words: list[str]) -> None:
    expected = ("x", "--port", "${PORT}", *(word.strip("'") for word in words))
    assert resolved(model("", cmd)).launches["m"].cmd == expected


def test_own_macros_replace_global_ones_and_macros_hold_macros() -> None:
    text = """
macros: {ctx: 4096, t: 1.0, args: "-c ${ctx} --temp ${t} -ngl 1", base: "llama-server --port ${PORT} ${args}"}
models:
  a: {cmd: "${base} -m /${MODEL_ID}.gguf"}
  b: {cmd: "${base} -m /${MODEL_ID}.gguf", macros: {ctx: 8}}
"""
    a, b = resolved(text).launches.values()
    assert (a.gguf, a.args) == ("/a.gguf", ("-c", "4096", "--temp", "1", "-ngl", "1"))
    assert (b.gguf, b.args[:2]) == ("/b.gguf", ("-c", "8"))


@pytest.mark.parametrize(
    ("env", "gpus"),
    [("[CUDA_VISIBLE_DEVICES=]", ()), ("[CUDA_VISIBLE_DEVICES=-1]", ()), ('["CUDA_VISIBLE_DEVICES=1,0"]', (1, 0)),
     ("[CUDA_VISIBLE_DEVICES=GPU-5f]", ("GPU-5f",)), ("[X=1]", None)],
)  # fmt: skip
def test_visible_devices_become_gpus(env: str, gpus: tuple[int | str, ...] | None) -> None:
    spec = resolved(model(f"env: {env}")).launches["m"]
    assert spec.gpus == gpus and "CUDA_VISIBLE_DEVICES" not in spec.env


def test_visible_devices_from_the_environment_stay_there() -> None:
    spec = resolved(model("env: ['CUDA_VISIBLE_DEVICES=${env.TTL}']")).launches["m"]
    assert (spec.gpus, spec.env["CUDA_VISIBLE_DEVICES"]) == (None, "90")


def test_binaries_are_named_after_their_folders_once_for_each_set_of_libraries() -> None:
    text = "models:\n" + "".join(
        f"  m{n}: {{cmd: '{path} --port ${{PORT}} -m /x.gguf -c 1 -ngl 1', env: {env}}}\n"
        for n, (path, env) in enumerate(
            [("/o/ik/build/bin/llama-server", "[]"), ("/o/ik/build/bin/llama-server", "[]"),
             ("/o/ik/build/bin/llama-server", "['LD_LIBRARY_PATH=/a:/b']"), ("llama-server", "['LD_LIBRARY_PATH=/a']")]
        )
    )  # fmt: skip
    tree = file(text)
    assert [m.binary for m in tree.models.values()] == ["ik", "ik", "ik-2", "llama-server"]
    assert tree.binaries["ik-2"].library_path == ["/a", "/b"]


@pytest.mark.parametrize(
    ("cmd", "proxy", "word"),
    [
        ("docker run -p 9000:8080 img --port 8080", "http://localhost:9000", "${PORT}:8080"),
        ("docker run -p 127.0.0.1:8080:8080 img --port 8080", "http://127.0.0.1:8080", "127.0.0.1:${PORT}:8080"),
        ("server --port=9000 --n 9000x", "http://127.0.0.1:9000/", "--port=${PORT}"),
        ("server --listen 0.0.0.0:9000", "http://[::1]:9000", "0.0.0.0:${PORT}"),
    ],
)
def test_fixed_ports_become_swapds(cmd: str, proxy: str, word: str) -> None:
    text = model(f"proxy: {proxy}", cmd)
    words = resolved(text).launches["m"].cmd
    assert word in words and sum("${PORT}" in one for one in words) == 1
    assert any("differs" in note and "port" in note for note in notes(text))


@pytest.mark.parametrize(
    ("cmd", "proxy"),
    [("ssh box serve", "http://box:80"), ("server --port ${PORT}", "http://other:${PORT}"), ("server", "http://localhost:5"),
     ("server --port ${PORT}", "https://localhost:${PORT}"), ("''", "http://localhost:${PORT}")],
)  # fmt: skip
def test_models_at_other_places_are_left_out_and_listed(cmd: str, proxy: str) -> None:
    text = model(f"proxy: {proxy}", cmd) + "groups: {g: {members: [m]}}\n"
    assert file(text).models == {} and file(text).groups == {}
    assert any(note.startswith("not imported: line 2: models.m:") for note in notes(text))


@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("llama-server --port ${PORT} -m /m.gguf --alias m -c 1 -ngl 1", ""),
        ("llama-server --port ${PORT} -m /m.gguf --alias n -c 1 -ngl 1", "--alias n"),
        ("llama-server --port ${PORT} -m /m.gguf -c 1", "without -ngl"),
        ("llama-server --port ${PORT} -m m.gguf -c 1 -ngl 1", "m.gguf is taken relative"),
        ("./llama-server --port ${PORT} -m /m.gguf -c 1 -ngl 1", "./llama-server is taken relative"),
        ("llama-server --port ${PORT} -m /m.gguf -c 1 -ngl 1 --slot-save-path /s", "keep_context"),
    ],
)
def test_what_a_llama_servers_command_loses_is_listed(cmd: str, said: str) -> None:
    found = notes(model("", cmd))
    assert len(found) == bool(said) and all(said in note for note in found)
    assert not set(resolved(model("", cmd)).launches["m"].args) & {"--port", "-m", "--alias", "--slot-save-path"}


def test_llama_server_without_a_file_stays_a_command() -> None:
    spec = resolved(model("", "llama-server --port ${PORT} -hf org/repo")).launches["m"]
    assert (spec.gguf, spec.cmd[-2:]) == ("", ("-hf", "org/repo"))


@pytest.mark.parametrize(
    ("by_id", "aliases", "differs"),
    [("{m: {a: 1}, m-hi: {a: 2}}", "[]", False), ("{m: {a: 1}, m-hi: {b: 2}}", "[]", True),
     ("{m: {a: 1}}", "[other]", True), ("{m-hi: {a: 1}}", "[m-hi]", False)],
)  # fmt: skip
def test_settings_by_name_become_variants(by_id: str, aliases: str, differs: bool) -> None:
    text = model(f"aliases: {aliases}\nfilters: {{setParamsByID: {by_id}}}")
    assert any("setParamsByID" in note for note in notes(text)) == differs
    found = file(text).models["m"]
    assert set(found.variants) == ({"m-hi"} if "m-hi" in by_id else set())
    assert "m-hi" not in found.aliases and ("m:" not in by_id or found.params.set == {"a": 1})


@pytest.mark.parametrize(
    ("key", "why"),
    [("capabilities: {tools: true}", "model itself"), ("surprise: 1", "not known"), ("filters: {new: 1}", "not known"),
     ("filters: {setParamsByMatch: [{key: a}]}", "do not depend"), ("proxy: 'http://localhost:${PORT}/v1'", "root"),
     ("timeouts: {idleConn: 9}", "own business"), ("sendLoadingState: true", "all models"),
     ("aliases: ['a*']", "anything"),
     ("name: Nice", "description"), ("env: ['LD_LIBRARY_PATH=/a:${env.LD_LIBRARY_PATH}']", "own LD_LIBRARY_PATH"),
     ("checkEndpoint: none", "/health"), ("compat: {ignoreWebsockets: true}", "websockets")],
)  # fmt: skip
def test_every_key_without_a_counterpart_is_listed(key: str, why: str) -> None:
    (note,) = notes(model(key))
    assert "line 4: models.m." in note and why in note
    resolved(model(key))


@pytest.mark.parametrize(
    "key",
    ["logRequests: true", "logTimeFormat: kitchen", "store: {path: /x}", "ui: {}", "performance: {every: 5s}",
     "upstream: {ignorePaths: []}", "tailcat: {}", "hooks: {on_stop: []}", "somethingNew: [1]"],
)  # fmt: skip
def test_keys_of_the_whole_file_without_a_counterpart_are_listed(key: str) -> None:
    (note,) = notes(f"{key}\n{model('')}")
    assert note.startswith("not imported: line 1: " + key.split(":")[0])


def test_variables_that_models_read_are_passed_on_and_keys_are_not() -> None:
    text = "apiKeys: ['${env.HOUSE_KEY}']\n" + model("", "llama-server --port ${PORT} -m ${env.HOME}/m -c 1 -ngl 1")
    found = resolved(text)
    assert found.launches["m"].env == {"HOME": "/home/u"} and found.server.api_keys == ["k1"]
    assert imported(text).env_read == {"HOME", "HOUSE_KEY"}


# ---- who unloads whom


@pytest.mark.parametrize(
    ("routing", "together", "apart"),
    [
        ("", "", "ab ac bc"),
        ("groups: {g: {swap: false, members: [a, b]}}", "ab", "ac bc ca"),
        ("groups: {g: {exclusive: false, members: [a, b]}}", "ac", "ab ca"),
        ("groups: {g: {persistent: true, exclusive: false, members: [a]}}", "ca ab", "bc"),
        ("routing: {router: {use: group, settings: {groups: {g: {swap: false, members: [a, c]}}}}}", "ac ca", "ab bc"),
        ("matrix: {vars: {x: a, y: b}, sets: {s: x & y}}", "ab ba", "ac ca bc"),
        ("matrix: {vars: {x: a, y: b, z: c}, sets: {s: (x | y) & z}}", "ac ca bc cb", "ab ba"),
        ("matrix: {sets: {one: a | b, s: +one & c}}", "ac ca bc cb", "ab ba"),
        ("matrix: {sets: {s: a & b, t: b & c}}", "ab ba bc cb", "ac ca"),
        ("routing: {router: {use: matrix, settings: {matrix: {sets: {s: a & b & c}}}}}", "ab bc ca", ""),
    ],
)
def test_models_unload_each_other_as_in_llama_swap(routing: str, together: str, apart: str) -> None:
    rules = GroupRules(resolved(f"{models('a', 'b', 'c')}{routing}\n").catalog)
    for target, resident in together.split():
        assert not rules.unloads(target, resident) or rules.protects(target, resident), (target, resident)
    for target, resident in apart.split():
        assert rules.unloads(target, resident) and not rules.protects(target, resident), (target, resident)


def test_matrix_that_groups_cannot_say_is_listed_and_models_run_alone() -> None:
    text = models("a", "b", "c", "d") + "matrix: {evict_costs: {a: 5}, sets: {s: a & b, t: b & c}}\n"
    costs, matrix = sorted(notes(text), key=len)
    assert "matrix.evict_costs" in costs and "groups cannot say these combinations" in matrix
    rules = GroupRules(resolved(text).catalog)
    assert all(rules.unloads(target, resident) for target in "abcd" for resident in "abcd" if target != resident)


@pytest.mark.parametrize(
    ("sets", "words"),
    [("a &", "where a name should be"), ("(a", "bracket"), ("a b", "out of place"), ("a % b", "out of place"),
     ("ghost", "neither"), ("+none", "no set"), ("+s", "contains itself"), ("''", "where a name")],
)  # fmt: skip
def test_mistakes_in_a_matrix(sets: str, words: str) -> None:
    (line,) = mistakes(models("a") + f"matrix: {{sets: {{s: {sets}}}}}\n")
    assert line.startswith("f.yaml:3: matrix.sets: s: ") and words in line


# ---- mistakes


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("models: [\n", 2, "expected"),
        ("models:\n\tx: 1\n", 2, "cannot start"),
        ("a: 1\nb: 2\na: 3\n", 3, "comes twice, first on line 1"),
        ("a: &x [*x]\n", 1, "contains itself"),
        ("a: \x01\n", 1, "does not allow"),
        ("? [a]\n: 1\n", 1, "single word"),
        (BOMB, 1, "more than"),
        ("globalTTL: -1\n", 1, "globalTTL: should be a whole number from 0 on, got -1"),
        ("globalTTL: '5'\n", 1, "whole number"),
        ("sendLoadingState: maybe\n", 1, "true or false"),
        ("logLevel: loud\n", 1, "debug, info"),
        ("apiKeys: ['']\n", 1, "empty"),
        ("models: [a]\n", 1, "should be a table"),
        (model("ttl: -2"), 4, "models.m.ttl: should be a whole number from -1 on, got -2"),
        (model("aliases: {a: b}"), 4, "list of texts"),
        (model("env: [X]"), 4, "NAME=value"),
        (model("name: [x]"), 4, "should be a text"),
        (model("concurrencyLimit: many"), 4, "whole number"),
        (model("description: ${nope}"), 4, "there is no macro ${nope}"),
        (model("ttl: ${env.NOT_SET}"), 4, "NOT_SET is not set"),
        (model("", "x --port ${PORT} 'open"), 3, "No closing quotation"),
        ("macros: {PORT: 1}\n", 1, "no name for a macro"),
        ("macros: {a: 'x ${a}'}\n", 1, "contains itself"),
        (models("a") + "groups: {g: {members: [a], swap: 3}}\n", 3, "true or false"),
        (models("a") + "groups: {g: {members: [a]}}\nmatrix: {sets: {s: a}}\n", 4, "refuses"),
        (models("a") + "routing: {scheduler: {settings: {fifo: {priority: {b: 1}}}}}\n", 3, "'b' is no model"),
        (models("a") + "selectors: {s: {strategy: magic, targets: [a]}}\n", 3, "warm, pin"),
        (models("a") + "peers: {p: {models: [x]}}\n", 3, "proxy is needed"),
        (
            "models:\n  a: {cmd: x, aliases: [n]}\n  b: {cmd: x, aliases: [n]}\n",
            3,
            "the name 'n' is used already, by 'a'",
        ),
    ],
)
def test_mistakes_name_file_line_and_key(text: str, line: int, words: str) -> None:
    found = mistakes(text)
    assert found[0].startswith(f"f.yaml:{line}: ") and words in found[0], found


def test_every_mistake_is_told_at_once() -> None:
    assert len(mistakes("globalTTL: x\nlogLevel: y\n" + model("ttl: z\nenv: [w]"))) == 4


@pytest.mark.parametrize(
    ("scalar", "text"), [("on", "on"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("no", "no"), ("010", "10")]
)
def test_scalars_are_those_of_yaml_1_2(scalar: str, text: str) -> None:
    assert file(model(f"aliases: [{scalar}]")).models["m"].aliases == [text]


def test_anchors_and_merge_keys_are_followed() -> None:
    text = "x: &base {ttl: 5, unlisted: true}\n" + model("<<: *base\nttl: 6")
    assert (file(text).models["m"].idle_timeout, file(text).models["m"].unlisted) == (6, True)
    assert len(notes(text)) == 1


def test_nesting_without_end_is_a_mistake() -> None:
    assert mistakes("[" * 100_000) == ["f.yaml: nested too deeply"]

from __future__ import annotations

import tomllib

import pytest

from swapd.config.redact import REMOVED, is_secret_name, looks_random, redacted, scrub, secrets_of, without_secrets

CONFIG = """
[server]
listen = "127.0.0.1:8080"
api_keys = ["key-one", "${env:KEY_TWO}", "${third}"]
admin_keys = ["${env:NO_SUCH:-fallback-four}"]
[vars]
third = "value-three"
models = "/srv/models"
[binaries.x]
path = "/opt/x/bin/llama-server"
env = { HF_TOKEN = "token-five", GGML_X = "0" }
[models.a]
gguf = "${models}/a.gguf"
args = "--ctx-size 4096 --api-key key-six --cache-type-k q8_0"
env = { ODD = "Zm9vYmFyYmF6cXV1eDEyMzQ1Njc4", CUDA_VISIBLE_DEVICES = "GPU-1234abcd-aaaa-bbbb-cccc-1234567890ab" }
[models.b]
cmd = ["serve", "--hf-token", "token-seven", "--url", "http://me:pass-eight@box/"]
api_key = "key-nine"
[context]
min_tokens = 512
[peers.p]
url = "http://box"
api_key = "sk-ten-abcdefgh"
"""
HIDDEN = (
    "key-one", "second-key", "value-three", "fallback-four", "token-five", "key-six", "Zm9vYmFy", "token-seven",
    "pass-eight", "key-nine", "sk-ten",
)  # fmt: skip
KEPT = ("127.0.0.1:8080", "/srv/models", "${models}/a.gguf", "--ctx-size 4096", "q8_0", "GPU-1234abcd", "http://box")


def test_secrets_go_by_place_and_shape_and_the_rest_stays() -> None:
    text = repr(redacted(tomllib.loads(CONFIG)))
    assert not [secret for secret in HIDDEN if secret in text]
    assert [kept for kept in KEPT if kept not in text] == []
    assert "'min_tokens': 512" in text and "'GGML_X': '0'" in text


def test_secrets_are_known_by_value_too() -> None:
    environ = {"KEY_TWO": "second-key", "SWAPD_SERVER__API_KEYS": '["listed-one", "listed-two"]', "PATH": "/usr/bin"}
    secrets = secrets_of(tomllib.loads(CONFIG), environ)
    known = {
        "key-one",
        "second-key",
        "value-three",
        "fallback-four",
        "token-five",
        "key-six",
        "token-seven",
        "key-nine",
    }
    known |= {"listed-one", "listed-two"}
    assert known <= secrets
    assert "/usr/bin" not in secrets and "/srv/models" not in secrets
    said = scrub("it died: listed-two is wrong, second-key too", secrets)
    assert said == f"it died: {REMOVED} is wrong, {REMOVED} too"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.def",
        "https://user:pw12@box/v1",
        "sk-abcdefghijkl",
        "hf_abcdefghijkl",
        "ghp_0123456789abc",
        "llama-server --api-key=abc.def",
        "['serve', '--api-key', 'abc.def']",
    ],
)
def test_what_has_the_shape_of_a_secret_goes(text: str) -> None:
    said = scrub(text, ())
    assert REMOVED in said
    assert not [word for word in ("abc", "pw12", "012345") if word in said]


@pytest.mark.parametrize(
    "name", ["api_keys", "HF_TOKEN", "db.password", "X-Auth", "SWAPD_KEY", "AWS_SECRET_ACCESS_KEY"]
)
def test_names_that_tell(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["listen", "monkey", "CUDA_VISIBLE_DEVICES", "cache-type-k", "keep_context", "keyboard"]
)
def test_names_that_do_not(name: str) -> None:
    assert not is_secret_name(name)


def test_random_looking_values_are_keys_and_gpus_are_not() -> None:
    assert looks_random("Zm9vYmFyYmF6cXV1eDEyMzQ1Njc4")
    assert not looks_random("GPU-1234abcd-aaaa-bbbb-cccc-1234567890ab")
    assert not looks_random("/srv/models/qwen3-coder-30b-a3b-instruct-Q4_K_M.gguf")


TOLD = [
    "--api-key @", "--api-key=@", "--hf-token @", "--hf-token=@", "-hft @", "--token @", "--token=@", "--password @",
    "--db_secret=@", "--authToken @", "-e HF_TOKEN=@", "--env HF_TOKEN=@", "--env=HF_TOKEN=@", "-eMY_PASSWORD=@",
    "OPENAI_API_KEY=@ serve", "-e AWS_SECRET_ACCESS_KEY=@", "--api-key @1,@2",
]  # fmt: skip


@pytest.mark.parametrize("text", TOLD)
def test_a_command_line_is_shown_without_what_flags_and_variables_tell(text: str) -> None:
    text = text.replace("@", "verysecret")
    shown = " ".join(without_secrets(["docker", "run", *text.split(), "--port", "8000"]))
    for one in (shown, scrub(f"docker run {text} --port 8000", ()), repr(redacted({"cmd": text.split()}))):
        assert "verysecret" not in one and REMOVED in one, one
    assert shown.startswith("docker run") and shown.endswith("--port 8000")


def test_a_command_within_a_command_and_words_with_spaces_are_looked_into() -> None:
    words = ["sh", "-c", "KEY_A=verysecret serve --token verysecret", "--auth=Bearer verysecret"]
    assert "verysecret" not in repr(without_secrets(words))
    assert "verysecret" not in scrub("sh -c \"serve --token verysecret --password 'verysecret verysecret'\"", ())
    assert "verysecret" not in scrub("""--mcp-servers-json '{"env": {"HUB_TOKEN": "verysecret"}}'""", ())


def test_a_long_line_of_assignments_is_read_to_its_end() -> None:
    text = ",".join(f"n{number}={number}" for number in range(3000)) + ",my_token=verysecret"
    assert scrub(text, ()).endswith(f"n2999=2999,my_token={REMOVED}")


def test_secrets_within_a_command_are_known_by_value() -> None:
    tree = {"a": {"cmd": "sh -c 'TOKEN_A=first-one serve --token second-one'"}, "b": {"cmd": ["-e", "A_KEY=third one"]}}
    assert {"first-one", "second-one", "third one"} <= secrets_of(tree, {})


def test_what_is_no_secret_stays_in_a_command_line() -> None:
    words = (
        "llama-server --api-key-file /etc/keys --ssl-key-file /x.pem --max-num-batched-tokens 8192 --cache-type-k q8_0 "
        "--override-kv tokenizer.ggml.add_bos_token=bool:false --tokenizer org/m -e CUDA_VISIBLE_DEVICES=0 --keep 4"
    )
    assert " ".join(without_secrets(words.split())) == scrub(words, ()) == words


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-repo-draft", "ggml-org/x"],
        ["/opt/swapd-engines-cuda/bin/llama-server"],
        ["-m", "hf-internal-testing/tiny"],
        ["--max-num-batched-tokens", "8k"],
        ["n_tokens=512", "n_past=3"],
    ],
)
def test_what_only_looks_like_a_secret_stays_in_a_command_line(words: list[str]) -> None:
    assert without_secrets(words) == words


def test_a_word_of_thousands_of_assignments_is_read_to_its_end() -> None:
    assert without_secrets(["a=" * 5000 + "TOKEN=x"]) == ["a=" * 5000 + "TOKEN=[removed]"]

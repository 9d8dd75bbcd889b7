from __future__ import annotations

import pytest

from swapd.llama.embedded_flags import FlagError, Setting, parse


def settings(line: str) -> dict[str, object]:
    return {setting.attribute: setting.value for setting in parse(["-m", "x.gguf", *line.split()])}


@pytest.mark.parametrize(
    ("line", "attribute", "value"),
    [
        ("--host /run/a.sock", "hostnames", ["/run/a.sock"]),
        ("--port 1", "port", 1),
        ("--alias a,b", "model_alias", {"a", "b"}),
        ("-c 512", "n_ctx", 512),
        ("--ctx_size 512", "n_ctx", 512),
        ("-t 3", "cpuparams.n_threads", 3),
        ("-fa on", "flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        ("-ctk q8_0", "cache_type_k", "GGML_TYPE_Q8_0"),
        ("-lm dio", "load_mode", "LLAMA_LOAD_MODE_DIRECT_IO"),
        ("--slot-save-path /s", "slot_save_path", "/s/"),
        ("--no-slots", "endpoint_slots", False),
        ("--temp 0.5", "sampling.temp", 0.5),
        ("-fit off", "fit_params", False),
    ],
)
def test_llama_servers_flags_become_parameters(line: str, attribute: str, value: object) -> None:
    assert settings(line)[attribute] == value


def test_defaults_are_llama_servers_with_metrics_on_and_no_gpu() -> None:
    found = settings("-ngl 999")
    assert found["endpoint_metrics"] is True and found["port"] == 8080 and found["n_gpu_layers"] == 0
    assert found["kv_unified"] is True and "kv_unified" not in settings("-np 2")


def test_enums_name_their_type() -> None:
    assert Setting("pooling_type", "LLAMA_POOLING_TYPE_MEAN", "llama_pooling_type") in parse(
        ["-m", "x", "--pooling", "mean"]
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [("--expert-pool 8", "error: invalid argument: --expert-pool"), ("-c", "expected value"), ("-c many", '"-c"'),
     ("-fa perhaps", '"-fa"'), ("stray", "invalid argument: stray")],
)  # fmt: skip
def test_what_it_cannot_obey_is_an_error_that_says_so(line: str, words: str) -> None:
    with pytest.raises(FlagError, match=words):
        settings(line)


def test_a_model_is_required() -> None:
    with pytest.raises(FlagError, match="--model"):
        parse(["-c", "512"])

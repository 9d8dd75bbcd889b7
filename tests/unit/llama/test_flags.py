from __future__ import annotations

import pytest

from swapd.core.flags import EngineFlags
from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.llama.flags import (
    expected_slot_ctx,
    flags_for,
    flags_of,
    has_flag,
    llama_server_args,
    parse_flags,
)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-c 8192", "ctx_tokens", 8192),
        ("--ctx-size 8192", "ctx_tokens", 8192),
        ("--ctx-size=8192", "ctx_tokens", 8192),
        ("--ctx_size 8192", "ctx_tokens", 8192),
        ("-c 1 -c 2", "ctx_tokens", 2),
        ("-b 512", "batch_tokens", 512),
        ("--ubatch-size 128", "ubatch_tokens", 128),
        ("-np 2", "parallel", 2),
        ("-np -1", "parallel", 0),
        ("-kvu", "kv_unified", True),
        ("--no-kv-unified", "kv_unified", False),
        ("-ngl 10", "gpu_layers", 10),
        ("-ngl all", "gpu_layers", 999),
        ("--n-gpu-layers auto", "gpu_layers", 999),
        ("-ncmoe 9", "n_cpu_moe", 9),
        ("--cpu-moe", "cpu_moe", True),
        ("-ot a=CPU,b=CUDA0", "override_tensors", ("a=CPU", "b=CUDA0")),
        ("-sm none", "split_mode", "none"),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("-mg 1", "main_gpu", 1),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("--cache-type-v q4_0", "cache_type_v", "q4_0"),
        ("-nkvo", "kv_offload", False),
        ("--no-op-offload", "op_offload", False),
        ("-fa", "flash_attention", "on"),
        ("-fa on", "flash_attention", "on"),
        ("--flash-attn 0", "flash_attention", "off"),
        ("--swa-full", "swa_full", True),
        ("-lm dio", "load_mode", "dio"),
        ("--no-mmap", "load_mode", "none"),
        ("--mlock", "load_mode", "mmap+mlock"),
        ("-cram 0", "cache_ram_mib", 0),
        ("--embeddings", "embedding", True),
        ("--mmproj p.gguf", "mmproj", "p.gguf"),
        ("--no-mmproj-offload", "mmproj_offload", False),
        ("-md d.gguf", "draft_model", "d.gguf"),
        ("--spec-draft-ngl 3", "draft_gpu_layers", 3),
        ("--spec-type draft-simple", "spec_type", "draft-simple"),
        ("--fit on", "fit", True),
        ("-fit off", "fit", False),
        ("-dev CUDA0", "devices", "CUDA0"),
        ("-t 8", "threads", 8),
    ],
)
def test_memory_relevant_flags_are_read_in_every_spelling(line: str, field: str, value: object) -> None:
    flags = parse_flags(line.split())
    assert getattr(flags, field) == value
    assert flags.unknown == ()


def test_no_flags_are_the_defaults() -> None:
    assert parse_flags([]) == EngineFlags()


def test_a_value_that_looks_like_a_flag_is_not_taken_for_one() -> None:
    args = ["--chat-template-kwargs", '{"a": "-c"}', "--temp", "-1", "-r", "-c", "-c", "512"]
    assert parse_flags(args).ctx_tokens == 512
    assert [flag.name for flag in flags_of(args)] == ["--chat-template-kwargs", "--temp", "-r", "-c"]


def test_a_bare_switch_word_flag_leaves_the_next_flag_alone() -> None:
    flags = parse_flags(["-fa", "-c", "512"])
    assert (flags.flash_attention, flags.ctx_tokens) == ("on", 512)


def test_flags_of_forks_are_listed_as_unknown_with_their_value() -> None:
    flags = parse_flags(["--expert-pool", "4GiB", "--turbo", "-c", "512"])
    assert flags.unknown == ("--expert-pool 4GiB", "--turbo") and flags.ctx_tokens == 512


def test_nonsense_is_left_to_llama_server() -> None:
    assert parse_flags(["-c", "many", "-b"]) == EngineFlags()


def test_has_flag_knows_all_names() -> None:
    assert has_flag(["--ctx-size=1"], frozenset(["-c", "--ctx-size"]))


def spec(**fields: object) -> LaunchSpec:
    return LaunchSpec("a", **{"gguf": "m.gguf", **fields})  # type: ignore[arg-type]


def test_model_flags_come_after_the_binarys_and_ctx_wins() -> None:
    binary = BinarySpec("b", "x", args=("-c", "1024", "-ub", "64"))
    assert flags_for(spec(binary=binary, args=("-c", "2048"))).ctx_tokens == 2048
    assert flags_for(spec(binary=binary)).ubatch_tokens == 64
    assert flags_for(spec(binary=binary, ctx_tokens=4096)).ctx_tokens == 4096
    assert flags_for(spec(), default_ctx_tokens=777).ctx_tokens == 777


def test_a_command_that_runs_llama_server_is_read_too() -> None:
    assert llama_server_args(["env", "A=b", "/opt/llama-server-b1", "-c", "9"]) == ("-c", "9")
    assert llama_server_args(["vllm", "serve"]) is None
    assert flags_for(spec(gguf="", cmd=("llama-server", "-c", "9"))).ctx_tokens == 9


@pytest.mark.parametrize(
    ("args", "tokens"),
    [("-c 4096", 4096), ("-c 4096 -np 2", 2048), ("-c 4096 -np 2 -kvu", 4096), ("-c 4096 -np 1", 4096), ("", 0)],
)
def test_a_slots_share_of_the_context(args: str, tokens: int) -> None:
    assert expected_slot_ctx(spec(args=tuple(args.split()))) == tokens

"""A llama-server's command line, read the way llama-server reads it: what it takes, and what swapd alone may set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os.path import basename
from typing import Any, NamedTuple

from swapd.core.flags import EngineFlags, flag_name
from swapd.core.spec import LaunchSpec
from swapd.llama.flag_names import SWITCH_WORDS, TAKES_NONE, TAKES_ONE, TAKES_TWO, TAKES_WORD

CTX_FLAGS = frozenset(["-c", "--ctx-size"])
GPU_LAYER_FLAGS = frozenset(["-ngl", "--gpu-layers", "--n-gpu-layers"])
FIT_FLAGS = frozenset(["-fit", "--fit"])
_LLAMA_SERVER = re.compile(r"(?i)llama[-_]server.*")


class Flag(NamedTuple):
    """One flag as llama-server sees it: ``name`` normalized, ``written`` as typed, ``value`` if it took one."""

    name: str
    written: str
    value: str | None = None


def flags_of(args: Sequence[str]) -> Iterator[Flag]:
    """Split a command line into flags; words that belong to no flag are left out.

    A flag nobody knows takes the next word if that does not look like a flag.
    """
    words = list(args)
    position = 0
    while position < len(words):
        written = words[position]
        position += 1
        if not written.startswith("-") or written == "-":
            continue
        typed, equals, joined = written.partition("=")
        name = flag_name(typed)
        if equals:
            yield Flag(name, typed, joined)
            continue
        following = words[position] if position < len(words) else None
        taken = values_taken(name, following)
        value = ",".join(words[position : position + taken]) if taken else None
        position += taken
        yield Flag(name, typed, value)


def values_taken(name: str, following: str | None) -> int:
    """How many of the next words belong to a flag."""
    if following is None or name in TAKES_NONE:
        return 0
    if name in TAKES_ONE:
        return 1
    if name in TAKES_TWO:
        return 2
    if name in TAKES_WORD:
        return int(following.lower() in SWITCH_WORDS)
    return int(not following.startswith("-"))


def has_flag(args: Sequence[str], names: frozenset[str]) -> bool:
    """Whether one of these flags is given."""
    return any(flag.name in names for flag in flags_of(args))


def parse_flags(args: Sequence[str]) -> EngineFlags:
    """What of these arguments changes the memory taken; the last of several wins, as in llama-server.

    Values that make no sense are left to llama-server to refuse: the default stands.
    """
    values: dict[str, Any] = {}
    unknown = []
    for flag in flags_of(args):
        if flag.name in _TAKES_MEMORY:
            unknown.append(f"{flag.written} {flag.value}")
        elif flag.name in _SETTERS:
            field, convert = _SETTERS[flag.name]
            try:
                values[field] = convert(flag.value)
            except ValueError:
                continue
        elif flag.name not in _KNOWN:
            unknown.append(flag.written if flag.value is None else f"{flag.written} {flag.value}")
    return EngineFlags(**values, unknown=tuple(unknown))


def flags_for(spec: LaunchSpec, default_ctx_tokens: int = 0) -> EngineFlags:
    """The flags a model's process is started with, swapd's own defaults included.

    For a ``cmd`` whose program is no llama-server nothing is known: the defaults.
    """
    if not spec.gguf:
        return parse_flags(llama_server_args(spec.cmd) or ())
    args = [*(spec.binary.args if spec.binary else ()), *spec.args]
    flags = parse_flags(args)
    if spec.ctx_tokens:
        return replace(flags, ctx_tokens=spec.ctx_tokens)
    if not has_flag(args, CTX_FLAGS):
        return replace(flags, ctx_tokens=default_ctx_tokens)
    return flags


def expected_slot_ctx(spec: LaunchSpec) -> int:
    """Tokens that one slot should have by the configuration; 0 = nothing was configured.

    Slots share one cache, or (a number of slots given, no ``-kvu``) each gets its part, padded upwards.
    """
    flags = flags_for(spec)
    if flags.parallel > 1 and flags.kv_unified is not True:
        return flags.ctx_tokens // flags.parallel
    return flags.ctx_tokens


def llama_server_args(cmd: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments of the llama-server that a command runs; ``None`` if it runs none."""
    for position, word in enumerate(cmd):
        if _LLAMA_SERVER.fullmatch(basename(word)):
            return tuple(cmd[position + 1 :])
    return None


def _int(text: str | None) -> int:
    return int(text or "")


def _count(text: str | None) -> int:
    """-1 is llama-server's "you choose"."""
    return max(_int(text), 0)


def _layers(text: str | None) -> int:
    if text in ("all", "auto", "-1", "-2"):
        return 999
    return _int(text)


def _switch(text: str | None) -> bool:
    return (text or "on").lower() in ("on", "enabled", "true", "1", "auto", "-1")


def _flash(text: str | None) -> str:
    word = (text or "on").lower()
    return {"1": "on", "enabled": "on", "true": "on", "0": "off", "disabled": "off", "false": "off"}.get(word, word)


def _text(text: str | None) -> str:
    return text or ""


def _floats(text: str | None) -> tuple[float, ...]:
    return tuple(float(part) for part in re.split(r"[,/]", text or "") if part)


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(",") if part)


def _always(value: str) -> Callable[[str | None], object]:
    return lambda _text: value


def _yes(_text: str | None) -> bool:
    return True


def _no(_text: str | None) -> bool:
    return False


_TABLE: list[tuple[str, str, Callable[[str | None], object]]] = [
    ("-c --ctx-size", "ctx_tokens", _int),
    ("-b --batch-size", "batch_tokens", _int),
    ("-ub --ubatch-size", "ubatch_tokens", _int),
    ("-np --parallel", "parallel", _count),
    ("-kvu --kv-unified", "kv_unified", _yes),
    ("-no-kvu --no-kv-unified", "kv_unified", _no),
    ("-ngl --gpu-layers --n-gpu-layers", "gpu_layers", _layers),
    ("-ncmoe --n-cpu-moe", "n_cpu_moe", _int),
    ("-cmoe --cpu-moe", "cpu_moe", _yes),
    ("-ot --override-tensor", "override_tensors", _list),
    ("-sm --split-mode", "split_mode", _text),
    ("-ts --tensor-split", "tensor_split", _floats),
    ("-mg --main-gpu", "main_gpu", _int),
    ("-ctk --cache-type-k", "cache_type_k", _text),
    ("-ctv --cache-type-v", "cache_type_v", _text),
    ("-kvo --kv-offload", "kv_offload", _yes),
    ("-nkvo --no-kv-offload", "kv_offload", _no),
    ("--op-offload", "op_offload", _yes),
    ("--no-op-offload", "op_offload", _no),
    ("-fa --flash-attn", "flash_attention", _flash),
    ("--swa-full", "swa_full", _yes),
    ("-lm --load-mode", "load_mode", _text),
    ("--no-mmap", "load_mode", _always("none")),
    ("--mmap", "load_mode", _always("mmap")),
    ("--mlock", "load_mode", _always("mmap+mlock")),
    ("-dio --direct-io", "load_mode", _always("dio")),
    ("-cram --cache-ram", "cache_ram_mib", _int),
    ("--embedding --embeddings --rerank --reranking", "embedding", _yes),
    ("-mm --mmproj", "mmproj", _text),
    ("--no-mmproj --no-mmproj-auto", "mmproj", _always("")),
    ("--mmproj-offload", "mmproj_offload", _yes),
    ("--no-mmproj-offload", "mmproj_offload", _no),
    ("-md --model-draft --spec-draft-model", "draft_model", _text),
    ("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", "draft_gpu_layers", _layers),
    ("-cd --ctx-size-draft", "draft_ctx_tokens", _int),
    ("--spec-type", "spec_type", _text),
    ("-fit --fit", "fit", _switch),
    ("-dev --device", "devices", _text),
    ("-t --threads", "threads", _count),
]
_SETTERS = {name: (field, convert) for names, field, convert in _TABLE for name in names.split()}
_TAKES_MEMORY = frozenset([
    "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "--rpc", "-mmu", "--mmproj-url", "-hf",
    "-hfr", "--hf-repo", "-devd", "--device-draft", "--spec-draft-device", "-ctkd", "--cache-type-k-draft", "-ctvd",
    "--cache-type-v-draft",
])  # fmt: skip
"""Known flags whose memory no formula tells: a load with them is sized by measuring."""
_KNOWN = TAKES_ONE | TAKES_TWO | TAKES_WORD | TAKES_NONE

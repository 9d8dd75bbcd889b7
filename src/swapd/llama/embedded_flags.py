"""The flags of the embedded engine: llama-server's common ones, as attributes of xllamacpp's parameters (pure)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Setting(NamedTuple):
    """One attribute of xllamacpp's parameters; ``enum`` names the type whose member ``value`` is."""

    attribute: str
    value: object
    enum: str = ""


class FlagError(ValueError):
    """A command line that this engine cannot obey; the text is llama-server's."""


class _Flag(NamedTuple):
    names: str
    attribute: str
    convert: Callable[[str], object] | None  # None: a switch
    constant: object = True
    enum: str = ""


def _on_off(text: str) -> bool:
    words = {"on": True, "off": False, "auto": True, "1": True, "0": False, "enabled": True, "disabled": False}
    return words[text]


def _comma_set(text: str) -> set[str]:
    return set(text.split(","))


def _comma_list(text: str) -> list[str]:
    return text.split(",")


def _cache_type(text: str) -> str:
    return "GGML_TYPE_" + text.upper()


def _flash(text: str) -> str:
    words = {"on": "ENABLED", "1": "ENABLED", "off": "DISABLED", "0": "DISABLED", "auto": "AUTO", "-1": "AUTO"}
    return "LLAMA_FLASH_ATTN_TYPE_" + words[text]


def _load_mode(text: str) -> str:
    words = {"dio": "DIRECT_IO", "mmap+mlock": "MMAP_MLOCK"}
    return "LLAMA_LOAD_MODE_" + words.get(text, text.upper())


def _pooling(text: str) -> str:
    return "LLAMA_POOLING_TYPE_" + text.upper()


def _reasoning(text: str) -> str:
    return "COMMON_REASONING_FORMAT_" + text.upper().replace("-", "_")


def _file_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _folder(path: str) -> str:
    """xllamacpp puts file names right behind it."""
    return os.path.join(path, "")


def _ignored(text: str) -> object:
    return text


FLAGS = (
    _Flag("-m --model", "model.path", str),
    _Flag("--host", "hostnames", _comma_list),
    _Flag("--port", "port", int),
    _Flag("-a --alias", "model_alias", _comma_set),
    _Flag("-c --ctx-size", "n_ctx", int),
    _Flag("-b --batch-size", "n_batch", int),
    _Flag("-ub --ubatch-size", "n_ubatch", int),
    _Flag("-np --parallel", "n_parallel", int),
    _Flag("-kvu --kv-unified", "kv_unified", None),
    _Flag("-no-kvu --no-kv-unified", "kv_unified", None, constant=False),
    _Flag("-t --threads", "cpuparams.n_threads", int),
    _Flag("-tb --threads-batch", "cpuparams_batch.n_threads", int),
    _Flag("--threads-http", "n_threads_http", int),
    _Flag("-n --predict --n-predict", "n_predict", int),
    _Flag("--keep", "n_keep", int),
    _Flag("-ngl --gpu-layers --n-gpu-layers", "", _ignored),
    _Flag("-fit --fit", "fit_params", _on_off),
    _Flag("-fa --flash-attn", "flash_attn_type", _flash, enum="llama_flash_attn_type"),
    _Flag("-ctk --cache-type-k", "cache_type_k", _cache_type, enum="ggml_type"),
    _Flag("-ctv --cache-type-v", "cache_type_v", _cache_type, enum="ggml_type"),
    _Flag("-lm --load-mode", "load_mode", _load_mode, enum="llama_load_mode"),
    _Flag("-cram --cache-ram", "cache_ram_mib", int),
    _Flag("--swa-full", "swa_full", None),
    _Flag("--embedding --embeddings", "embedding", None),
    _Flag("--pooling", "pooling_type", _pooling, enum="llama_pooling_type"),
    _Flag("--api-key", "api_keys", _comma_list),
    _Flag("--metrics", "endpoint_metrics", None),
    _Flag("--props", "endpoint_props", None),
    _Flag("--slots", "endpoint_slots", None),
    _Flag("--no-slots", "endpoint_slots", None, constant=False),
    _Flag("--slot-save-path", "slot_save_path", _folder),
    _Flag("--jinja", "use_jinja", None),
    _Flag("--no-jinja", "use_jinja", None, constant=False),
    _Flag("--chat-template", "chat_template", str),
    _Flag("--chat-template-file", "chat_template", _file_text),
    _Flag("--reasoning-format", "reasoning_format", _reasoning, enum="common_reasoning_format"),
    _Flag("--warmup", "warmup", None),
    _Flag("--no-warmup", "warmup", None, constant=False),
    _Flag("-cb --cont-batching", "cont_batching", None),
    _Flag("-nocb --no-cont-batching", "cont_batching", None, constant=False),
    _Flag("--context-shift", "ctx_shift", None),
    _Flag("--no-context-shift", "ctx_shift", None, constant=False),
    _Flag("--cache-prompt", "cache_prompt", None),
    _Flag("--no-cache-prompt", "cache_prompt", None, constant=False),
    _Flag("--cache-reuse", "n_cache_reuse", int),
    _Flag("--ui --webui", "ui", None),
    _Flag("--no-ui --no-webui", "ui", None, constant=False),
    _Flag("--repack", "no_extra_bufts", None, constant=False),
    _Flag("-nr --no-repack", "no_extra_bufts", None),
    _Flag("-to --timeout", "timeout_read", int),
    _Flag("--sse-ping-interval", "sse_ping_interval", int),
    _Flag("-sps --slot-prompt-similarity", "slot_prompt_similarity", float),
    _Flag("-lv --verbosity --log-verbosity", "verbosity", int),
    _Flag("-s --seed", "sampling.seed", int),
    _Flag("--temp --temperature", "sampling.temp", float),
    _Flag("--top-k", "sampling.top_k", int),
    _Flag("--top-p", "sampling.top_p", float),
    _Flag("--min-p", "sampling.min_p", float),
    _Flag("--repeat-penalty", "sampling.penalty_repeat", float),
    _Flag("--repeat-last-n", "sampling.penalty_last_n", int),
    _Flag("--presence-penalty", "sampling.penalty_present", float),
    _Flag("--frequency-penalty", "sampling.penalty_freq", float),
)
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}


def parse(argv: Sequence[str]) -> list[Setting]:
    """Settings in the order in which to apply them.

    Raises:
        FlagError: an unknown flag, or a value that is none.
    """
    settings = list(_parsed(argv))
    given = {setting.attribute for setting in settings}
    if "model.path" not in given:
        raise FlagError("error: --model is required")
    return [*_defaults(settings), *settings]


def _parsed(argv: Sequence[str]) -> Iterator[Setting]:
    words = iter(argv)
    for word in words:
        flag = _BY_NAME.get(word.replace("_", "-") if word.startswith("--") else word)
        if flag is None:
            raise FlagError(f"error: invalid argument: {word} (the embedded engine takes only the flags in its --help)")
        if flag.convert is None:
            yield Setting(flag.attribute, flag.constant, flag.enum)
            continue
        text = next(words, None)
        if text is None:
            raise FlagError(f"error: expected value for argument: {word}")
        try:
            value = flag.convert(text)
        except (ValueError, KeyError, OSError) as problem:
            raise FlagError(f'error while handling argument "{word}": {text!r}: {problem}') from problem
        if flag.attribute:
            yield Setting(flag.attribute, value, flag.enum)


def _defaults(settings: Sequence[Setting]) -> Iterator[Setting]:
    """llama-server's, where xllamacpp's differ; and the GPU is never used."""
    yield Setting("endpoint_metrics", value=True)
    yield Setting("port", 8080)
    yield Setting("n_gpu_layers", 0)
    slots = [setting.value for setting in settings if setting.attribute == "n_parallel"]
    if not slots or slots[-1] == -1:
        yield Setting("kv_unified", value=True)

"""Configurations that nobody wrote: the demo, and the GGUFs found on this machine. As TOML, like any other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from swapd.config import toml
from swapd.config.found import SHARD, Finds, FoundModel, names
from swapd.core.flags import usual_ctx
from swapd.core.ledger import MachineSample
from swapd.units import format_size

EMBEDDING_BATCH_TOKENS: Final = 2048
"""A text to embed must fit one batch."""


def demo_toml(model: Path) -> str:
    """Four ids on one small model: two that swap with each other, and a duo that stays together."""
    gguf = toml.text(toml.literal(str(model)))
    return f"""
[defaults]
gguf = {gguf}
args = "--ctx-size 4096 --parallel 1"
idle_timeout = "15m"

[models.swap-a]
description = "swaps with swap-b"
[models.swap-b]
description = "swaps with swap-a"
[models.duo-main]
description = "stays together with duo-fast"
[models.duo-fast]
description = "stays together with duo-main"

[groups.pair]
members = ["swap-a", "swap-b"]
swap = true
exclusive = true

[groups.duo]
members = ["duo-main", "duo-fast"]
swap = false
exclusive = true
"""


def found_toml(models: Iterable[Path]) -> str:
    """One id a file, named as the file is; files of the same name get their folder's name before."""
    tables: toml.Tables = [
        (("models", id_), {"gguf": toml.literal(str(path))}) for path, id_ in names(list(models)).items()
    ]
    return toml.document(tables) or "\n"


def init_toml(finds: Finds, machine: MachineSample, folders: Sequence[Path]) -> str:
    """A configuration to start from: what was found, with the settings that one changes first."""
    head = [f"swapd found {len(finds.models)} models below {', '.join(map(str, folders))}."]
    head += [f"GPU {d.index}: {d.name}, {format_size(d.total_bytes)} ({d.id})" for d in machine.gpus]
    if not machine.gpus:
        head.append("No GPU was found." if machine.gpus_known else f"The GPUs cannot be read: {machine.problem}")
    head += [f"left out: {reason}" for reason in finds.left_out]
    return toml.comments(head) + _SETTINGS + "".join(map(_init_model, finds.models))


_SETTINGS: Final = """
[headroom]
vram = "1 GiB"         # stays free on every GPU
ram = "1 GiB"

[scheduling]
ungrouped = "headroom" # whatever fits stays loaded; "swap": one model at a time

[defaults]
idle_timeout = "15m"   # unloaded after this long without a request; "0s": never
"""


def _init_model(model: FoundModel) -> str:
    trained = model.trained_ctx_tokens
    ctx = usual_ctx(trained) if trained else 0
    args: list[str] = []
    if model.mmproj:
        args += ["--mmproj", str(model.mmproj)]
    if model.task != "generate":
        batch = str(min(ctx, EMBEDDING_BATCH_TOKENS) or EMBEDDING_BATCH_TOKENS)
        args += ["--reranking" if model.task == "rerank" else "--embeddings", "-b", batch, "-ub", batch]
    lines = ["", toml.header(("models", model.id)), f"gguf = {toml.text(toml.literal(str(model.path)))}"]
    if args:
        lines.append(f"args = {toml.value([toml.literal(word) for word in args])}")
    if ctx:
        lines.append(f"ctx = {ctx}" + (f"  # trained for {trained}" if ctx < trained else ""))
    return "\n".join(lines) + "\n"


def model_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where models are looked for when nothing is configured, in the contract's order."""
    home = Path(environ.get("HOME", "/"))
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(environ.get("HF_HUB_CACHE") or Path(environ.get("HF_HOME") or cache / "huggingface") / "hub")
    llama = Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp")
    folders = [Path("models"), home / "models", hub, llama]
    return [Path(environ["SWAPD_MODELS"]), *folders] if environ.get("SWAPD_MODELS") else folders


def find_models(folders: Iterable[Path]) -> list[Path]:
    """Every GGUF that is a model: no projector, and of a split one only its first file."""
    found: dict[Path, None] = {}
    for folder in folders:
        if folder.is_dir():
            for path in sorted(folder.expanduser().absolute().rglob("*.gguf")):
                shard = SHARD.fullmatch(path.stem)
                if "mmproj" not in path.name.lower() and (shard is None or int(shard[2]) == 1) and path.exists():
                    found.setdefault(path)
    return list(found)

"""Configurations that nobody wrote: the demo, and the GGUFs found on this machine. As TOML, like any other."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


def demo_toml(model: Path) -> str:
    """Four ids on one small model: two that swap with each other, and a duo that stays together."""
    gguf = json.dumps(str(model))
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
    taken: set[str] = set()
    lines: list[str] = []
    for path in models:
        name = _SHARD.sub("", path.stem)
        id_ = name if name not in taken else f"{path.parent.name}/{name}"
        if id_ not in taken:
            taken.add(id_)
            lines += [f"[models.{json.dumps(id_)}]", f"gguf = {json.dumps(str(path))}"]
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
                shard = _SHARD.search(path.stem)
                if "mmproj" not in path.name.lower() and (shard is None or int(shard[1]) == 1) and path.exists():
                    found.setdefault(path)
    return list(found)

"""GGUFs found in folders: which are models, what each is called and what belongs to it; what is left out, and why."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Literal

from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader

SHARD: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})$")
_BERTS = "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 modern-bert neo-bert eurobert"
EMBEDDERS: Final = frozenset([*_BERTS.split(), "gemma-embedding", "t5encoder"])
"""Architectures that only embed; others say so by a pooling type."""

_RANK_POOLING = 4
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_QUANT = re.compile(r"(?i)(?<![a-z0-9])(ud-)?(i?q\d\w*|b?f\d+|fp\d+|mxfp\d\w*)")
_NO_NAME = frozenset(["", "gguf", "model", "mmproj"])
_PREFERRED = ("f16", "bf16", "q8_0", "f32")
_RESERVED_IDS = ("load", "unload")


@dataclass(frozen=True)
class FoundModel:
    """One model: its id, its (first) file, its projector, and what it is for."""

    id: str
    path: Path
    header: GgufHeader
    mmproj: Path | None = None

    @property
    def task(self) -> Literal["generate", "embed", "rerank"]:
        """From the pooling type and the architecture."""
        pooling = self.header.get("pooling_type")
        if pooling == _RANK_POOLING:
            return "rerank"
        return "embed" if self.header.architecture in EMBEDDERS or pooling in (1, 2, 3) else "generate"

    @property
    def trained_ctx_tokens(self) -> int:
        """0 if the header does not tell."""
        return self.header.number("context_length")


@dataclass
class Finds:
    """Models in the order of the folders, and a sentence for each file that is left out."""

    models: list[FoundModel] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def look(folders: Iterable[Path]) -> Finds:
    """Read the header of every GGUF below the folders; a file that several links lead to counts once."""
    finds = Finds()
    files = list(_files(folders, finds))
    headers: dict[Path, GgufHeader] = {}
    projectors: dict[Path, list[Path]] = defaultdict(list)
    for path in _whole(files, finds):
        try:
            header = read_header(path)
        except (GgufError, OSError) as error:
            finds.left_out.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            continue
        if "mmproj" in path.name.lower() or header.architecture == "clip":
            projectors[path.parent].append(path)
        elif reason := _no_model(header):
            finds.left_out.append(f"{path}: {reason}")
        else:
            headers[path] = header
    ids = names(list(headers))
    pairs = _pairs(headers, projectors)
    finds.models = [FoundModel(ids[path], path, header, pairs.get(path)) for path, header in headers.items()]
    used = set(pairs.values())
    unused = [path for some in projectors.values() for path in some if path not in used]
    finds.left_out += [f"{path}: a projector that was given to no model" for path in unused]
    return finds


def _files(folders: Iterable[Path], finds: Finds) -> Iterator[Path]:
    seen: set[str] = set()
    for folder in folders:
        root = folder.expanduser().absolute()
        for path in sorted(root.rglob("*"), key=_main_snapshot_first) if root.is_dir() else ():
            if path.suffix.lower() != ".gguf" or path.is_dir():
                continue
            real = os.path.realpath(path)
            if not path.exists():
                finds.left_out.append(f"{path}: a link to a file that is not there")
            elif _UNSPEAKABLE.search(str(path)):
                finds.left_out.append(f"{str(path)!r}: a name that a TOML file cannot have")
            elif real not in seen:
                seen.add(real)
                yield path


def _main_snapshot_first(path: Path) -> tuple[str, bool, str]:
    """In the Hugging Face cache the snapshot that ``refs/main`` names comes before others."""
    snapshot = _snapshot(path)
    if snapshot is None:
        return str(path.parent), False, path.name
    repo, revision = snapshot
    try:
        is_main = (repo / "refs" / "main").read_text(encoding="utf-8").strip() == revision
    except (OSError, UnicodeDecodeError):
        is_main = False
    return str(repo), not is_main, str(path)


def _snapshot(path: Path) -> tuple[Path, str] | None:
    """The repository's folder and the revision, of a file in the Hugging Face cache."""
    for above in path.parents:
        if above.parent.name == "snapshots" and above.parent.parent.name.startswith("models--"):
            return above.parent.parent, above.name
    return None


def _whole(files: Sequence[Path], finds: Finds) -> Iterator[Path]:
    """Files that stand for a model: of a split one the first, if all are there."""
    parts: dict[tuple[Path, str, int], dict[int, Path]] = defaultdict(dict)
    for path in files:
        shard = SHARD.fullmatch(path.stem)
        if shard:
            parts[path.parent, shard[1], int(shard[3])][int(shard[2])] = path
    for path in files:
        shard = SHARD.fullmatch(path.stem)
        if shard is None:
            yield path
            continue
        some = parts[path.parent, shard[1], int(shard[3])]
        missing = [number for number in range(1, int(shard[3]) + 1) if number not in some]
        if path != min(some.values()):
            continue
        if missing:
            numbers = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            finds.left_out.append(f"{path}: incomplete, of {int(shard[3])} files these are missing: {numbers}")
        else:
            yield path


def _no_model(header: GgufHeader) -> str:
    kind = header.kv.get("general.type", "model")
    if kind != "model":
        return f"no model but {kind}"
    return "" if header.tensors else "a vocabulary without a model"


def names(paths: Sequence[Path]) -> dict[Path, str]:
    """An id for each file, all different: the file's name, with as much of its folders before it as is needed."""
    ids: dict[Path, str] = {}
    for path in paths:
        taken = {*ids.values(), *_RESERVED_IDS}
        ids[path] = next(name for name in _candidates(path) if name not in taken)
    return ids


def _candidates(path: Path) -> Iterator[str]:
    shard = SHARD.fullmatch(path.stem)
    name = shard[1] if shard else path.stem
    snapshot = _snapshot(path)
    if snapshot is None:
        above = path.parts[1:-1]
        yield from ("/".join([*above[len(above) - depth :], name]) for depth in range(len(above) + 1))
    else:
        repo, revision = snapshot
        owner = repo.name.split("--")[1:]
        yield from ("/".join([*some, name]) for some in (owner[-1:], owner, [*owner, revision[:8]]))
    yield from (f"{name}-{number}" for number in count(2))


def _pairs(models: dict[Path, GgufHeader], projectors: dict[Path, list[Path]]) -> dict[Path, Path]:
    """Which projector of its folder a model gets: of the same name, or one that can only be meant for it."""
    pairs: dict[Path, Path] = {}
    for folder, candidates in projectors.items():
        here = [path for path in models if path.parent == folder]
        families = {frozenset(_words(path)) for path in here}
        for path in here:
            fitting = [p for p in candidates if len(families) == 1 or _fits(p, path, models[path])]
            if fitting:
                pairs[path] = min(fitting, key=_preference)
    return pairs


def _fits(projector: Path, model: Path, header: GgufHeader) -> bool:
    words = _words(projector)
    if words:
        return words <= _words(model)
    clip = read_header(projector).kv
    sizes = [clip.get(f"clip.{kind}.projection_dim") for kind in ("vision", "audio")]
    return header.number("embedding_length") in sizes


def _words(path: Path) -> set[str]:
    """The words of a file's name that are no quantization."""
    shard = SHARD.fullmatch(path.stem)
    stem = _QUANT.sub("", (shard[1] if shard else path.stem).lower())
    return set(re.split(r"[-_. ]+", stem)) - _NO_NAME


def _preference(projector: Path) -> tuple[int, str]:
    name = projector.stem.lower()
    found = [number for number, kind in enumerate(_PREFERRED) if re.search(rf"(?<![a-z]){kind}", name)]
    return min(found, default=len(_PREFERRED)), name

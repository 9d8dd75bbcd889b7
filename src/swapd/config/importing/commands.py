"""A llama-swap command as swapd starts it: a GGUF with arguments if it is a llama-server, else the command itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from swapd.config.importing.section import ENV_MARK, Section
from swapd.config.importing.yaml_tree import ENV_CLOSE, ENV_OPEN

ServerReader: TypeAlias = Callable[[Sequence[str]], tuple[dict[str, str], list[str]] | None]
"""Of a llama-server's command: the flags that swapd sets itself, and the other arguments; ``None``: another program."""

LOCAL: Final = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
_BARE_OPEN, _BARE_CLOSE = "\ue002", "\ue003"
_BARE: Final = re.compile(rf"(?<!\S){ENV_OPEN}([A-Za-z0-9_]+){ENV_CLOSE}(?!\S)")
_BARE_WORD: Final = re.compile(f"{_BARE_OPEN}([A-Za-z0-9_]+){_BARE_CLOSE}")
_URL: Final = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^/:]*)(?::([^/]*))?(/.*)?")
_DULL: Final = frozenset(["bin", "build", "Release", "usr", "local", "/", ""])


@dataclass(frozen=True)
class Place:
    """Where llama-swap looks for the server."""

    scheme: str
    host: str
    port: str
    path: str


def place_of(url: str) -> Place:
    """The parts of ``proxy``."""
    match = _URL.fullmatch(url)
    scheme, host, port, path = match.groups() if match else ("", url, "", "")
    return Place(scheme or "http", host, port or "80", (path or "").rstrip("/"))


def split(command: str) -> list[str]:
    """The words of a command: comment lines left out, lines continued, then as a shell quotes.

    An environment variable that stands alone and unquoted is marked: its value is several words, if it has spaces.

    Raises:
        ValueError: if a quote is not closed.
    """
    lines = [line for line in command.split("\n") if not line.strip().startswith("#")]
    joined = "\n".join(line.rstrip()[:-1] + " " if line.rstrip().endswith("\\") else line for line in lines)
    words = shlex.split(_BARE.sub(rf"{_BARE_OPEN}\1{_BARE_CLOSE}", joined))
    return [
        word if _BARE_WORD.fullmatch(word) else word.replace(_BARE_OPEN, ENV_OPEN).replace(_BARE_CLOSE, ENV_CLOSE)
        for word in words
    ]


def argv(words: Iterable[str]) -> str | list[str]:
    """Words as TOML value: one string, or a list if a variable in them must stay within its word."""
    given = list(words)
    if any(_BARE_WORD.fullmatch(word) for word in given):
        return " ".join(plain(w) if _BARE_WORD.fullmatch(w) else shlex.quote(w) for w in given)
    return given if any(ENV_MARK.search(word) for word in given) else shlex.join(given)


def plain(word: str) -> str:
    """A word that is no list of words."""
    return _BARE_WORD.sub(rf"{ENV_OPEN}\1{ENV_CLOSE}", word)


@dataclass
class Binaries:
    """``[binaries.NAME]`` by program and libraries, each named after its folder."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def name_for(self, path: str, libraries: list[str]) -> str:
        """The name of one build; empty for a ``llama-server`` that is simply on PATH."""
        if path == "llama-server" and not libraries:
            return ""
        table: dict[str, Any] = {"path": path} | ({"library_path": libraries} if libraries else {})
        known = next((name for name, other in self.tables.items() if other == table), None)
        if known is not None:
            return known
        parts = [re.sub(r"[^A-Za-z0-9_.-]+", "-", p).strip("-") for p in PurePosixPath(ENV_MARK.sub("", path)).parts]
        base = next((p for p in reversed(parts[:-1]) if p not in _DULL), parts[-1] if parts else "llama-server")
        name, number = base, 2
        while name in self.tables:
            name, number = f"{base}-{number}", number + 1
        self.tables[name] = table
        return name


def port_put_in(words: Sequence[str], port: str) -> list[str] | None:
    """The command with ``${PORT}`` for a fixed port, in ``-p PORT:…`` of a container if there is one."""
    published = re.compile(rf"((?:--publish=)?(?:[\w.]+:)?){port}(:\d+(?:/tcp)?)")
    own = re.compile(rf"((?:\S*[=:])?){port}()")
    for pattern in (published, own):
        changed = [pattern.sub(r"\1${PORT}\2", word) if pattern.fullmatch(word) else word for word in words]
        if changed != list(words):
            return changed
    return None


def environment(section: Section) -> dict[str, str]:
    """``env`` as a table."""
    found: dict[str, str] = {}
    for entry in section.texts("env"):
        name, equals, value = entry.partition("=")
        if not equals or not name:
            section.book.problems.add(section.at("env"), f"{entry!r} should be NAME=value")
        found[name] = value
    return found


def gpus(value: str) -> list[int | str] | None:
    """``CUDA_VISIBLE_DEVICES`` as ``gpus``; ``None`` if it is only known at start."""
    if ENV_MARK.search(value):
        return None
    words = [word.strip() for word in value.split(",")] if value.strip() else []
    shown = words[: next((n for n, word in enumerate(words) if word.startswith("-") or not word), len(words))]
    return [int(word) if word.isdigit() else word for word in shown]

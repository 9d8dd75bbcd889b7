"""A table of the foreign file, read key by key: a key nobody asked for is listed, a wrong type is a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from swapd.config.importing.yaml_tree import ENV_CLOSE, ENV_OPEN
from swapd.config.lines import KeyPath, line_of
from swapd.config.load import Problems

ENV_MARK: Final = re.compile(f"{ENV_OPEN}([A-Za-z0-9_]+){ENV_CLOSE}")
_SWITCH_WORDS: Final = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}


@dataclass(frozen=True)
class Note:
    """Something that is not said in the TOML, or does not mean quite the same there."""

    kind: Literal["not imported", "differs"]
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{self.kind}: {place}{self.key}: {self.text}"


@dataclass
class Book:
    """What is found while reading: mistakes, notes, and the variables of the environment that are needed."""

    problems: Problems
    environ: Mapping[str, str]
    notes: list[Note] = field(default_factory=list)

    def leave_out(self, path: KeyPath, why: str) -> None:
        """List a key that has no counterpart."""
        self._note("not imported", path, why)

    def differs(self, path: KeyPath, how: str) -> None:
        """List a key that is imported, but does not mean quite the same."""
        self._note("differs", path, how)

    def _note(self, kind: Literal["not imported", "differs"], path: KeyPath, text: str) -> None:
        note = Note(kind, line_of(self.problems.lines, path), ".".join(path), text)
        if note not in self.notes:
            self.notes.append(note)

    def now(self, text: str, path: KeyPath) -> str:
        """A text with its environment variables put in: where the TOML has no room for a reference."""

        def read(match: re.Match[str]) -> str:
            if match[1] not in self.environ:
                self.problems.add(path, f"the environment variable {match[1]} is not set")
            else:
                self.differs(path, f"${{env.{match[1]}}} was read while importing: the TOML has its value")
            return self.environ.get(match[1], "")

        return ENV_MARK.sub(read, text)


class Section:
    """One table. Every getter marks its key as read; ``end`` lists the others."""

    def __init__(self, data: Any, path: KeyPath, book: Book) -> None:
        self.path, self.book = path, book
        self._data: dict[str, Any] = {}
        self._read: set[str] = set()
        if isinstance(data, dict):
            self._data = data
        elif data is not None:
            self._wrong(path, "a table", data)

    def at(self, key: str) -> KeyPath:
        """The path of a key."""
        return (*self.path, key)

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def value(self, key: str) -> Any:
        """The value as it is; ``None`` if there is none."""
        self._read.add(key)
        return self._data.get(key)

    def text(self, key: str, default: str = "") -> str:
        """A text; numbers and switches are taken as they are written."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, dict | list):
            self._wrong(self.at(key), "a text", found)
            return default
        return written(found)

    def whole(self, key: str, default: int, least: int) -> int:
        """A whole number from ``least`` on."""
        found = self._now(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            self._wrong(self.at(key), f"a whole number from {least} on", found)
            return default
        return found

    def switch(self, key: str, *, default: bool = False) -> bool:
        """True or false, in each of YAML's words."""
        found = self._now(key)
        if found is None:
            return default
        if isinstance(found, bool):
            return found
        if isinstance(found, str) and found.lower() in _SWITCH_WORDS:
            return _SWITCH_WORDS[found.lower()]
        self._wrong(self.at(key), "true or false", found)
        return default

    def texts(self, key: str) -> list[str]:
        """A list of texts."""
        found = self.value(key)
        if found is None:
            return []
        if not isinstance(found, list) or any(isinstance(one, dict | list) or one is None for one in found):
            self._wrong(self.at(key), "a list of texts", found)
            return []
        return [written(one) for one in found]

    def section(self, key: str) -> Section:
        """A table; an empty one if there is none."""
        return Section(self.value(key), self.at(key), self.book)

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Every key as a table, with its name."""
        for key in self._data:
            name = self.book.now(key, self.at(key))
            yield name, self.section(key)

    def leave_out(self, key: str, why: str) -> None:
        """List a key that has no counterpart, if it is there."""
        if self.value(key) is not None:
            self.book.leave_out(self.at(key), why)

    def end(self) -> None:
        """List every key that was not read."""
        for key in self._data:
            if key not in self._read:
                self.book.leave_out(self.at(key), "this key is not known")

    def _now(self, key: str) -> Any:
        found = self.value(key)
        if isinstance(found, str) and ENV_MARK.search(found):
            found = self.book.now(found, self.at(key))
            return int(found) if re.fullmatch(r"-?\d+", found) else {"true": True, "false": False}.get(found, found)
        return found

    def _wrong(self, path: KeyPath, expected: str, found: Any) -> None:
        shown = "a table" if isinstance(found, dict) else "a list" if isinstance(found, list) else repr(found)
        self.book.problems.add(path, f"should be {expected}, got {shown}")


def written(value: Any) -> str:
    """A scalar as llama-swap puts it into a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)

"""A YAML text as plain values, with the line of every key; scalars are read as YAML 1.2 has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from swapd.config.lines import KeyPath
from swapd.errors import ConfigError

MAX_NODES: Final = 200_000
"""Aliases can make a small text a huge tree."""
ENV_OPEN, ENV_CLOSE = "\ue000", "\ue001"
"""Around the name of an environment variable: one word to YAML, macros and shell quoting alike."""

_ENV = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_WORDS: Final = {"null": None, "~": None, "": None, "true": True, "false": False}


@dataclass
class Tree:
    """The value of the whole text, and on which line (from 1) each key path stands."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read_yaml(text: str, name: str) -> Tree:
    """Parse; ``${env.NAME}`` becomes ``NAME`` between ``ENV_OPEN`` and ``ENV_CLOSE``.

    Raises:
        ConfigError: naming file and line.
    """
    try:
        node = yaml.compose(_ENV.sub(rf"{ENV_OPEN}\1{ENV_CLOSE}", text), Loader=yaml.SafeLoader)
        return _Converter(name).tree(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _broken(
            name, mark.line + 1 if mark else 0, ", ".join(filter(None, [error.context, error.problem]))
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _broken(name, line, f"a character that YAML does not allow ({error.reason})") from None
    except RecursionError:
        raise _broken(name, 0, "nested too deeply") from None


def _broken(name: str, line: int, what: str) -> ConfigError:
    where = f"{name}:{line}" if line else name
    return ConfigError(f"{where}: {what}", file=name, line=line)


class _Converter:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[KeyPath, int] = {}
        self._count = 0
        self._inside: set[int] = set()

    def tree(self, node: yaml.Node | None) -> Tree:
        return Tree(None if node is None else self._value(node, ()), self._lines)

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        line = node.start_mark.line + 1
        if self._count > MAX_NODES:
            raise _broken(self._name, line, f"more than {MAX_NODES} values")
        if id(node) in self._inside:
            raise _broken(self._name, line, "an anchor contains itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._inside.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._value(one, path) for one in node.value]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._inside.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _broken(self._name, line, "a key must be a single word or text")
            key = str(key_node.value)
            if key == "<<" and not key_node.style:
                merged = {**self._merged(value_node, path), **merged}
                continue
            if key in own:
                raise _broken(self._name, line, f"the key {key!r} comes twice, first on line {self._lines[*path, key]}")
            self._lines[*path, key] = line
            own[key] = self._value(value_node, (*path, key))
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for one in nodes:
            value = self._value(one, path)
            if not isinstance(value, dict):
                raise _broken(self._name, node.start_mark.line + 1, "<< needs a mapping")
            found = {**value, **found}
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        return str(node.value) if node.style else _plain(str(node.value))


def _plain(text: str) -> Any:
    """An unquoted scalar by YAML 1.2's core schema: ``on``, ``yes``, ``1:30`` and dates are text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        digits = text.lower()
        return int(digits, 16 if digits.startswith("0x") else 8 if digits.startswith("0o") else 10)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(_INFINITE[text.lower()]) if text.lower() in _INFINITE else text

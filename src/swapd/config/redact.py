"""Secrets of a configuration and an environment, taken out of what people paste into bug reports.

Twice: by place (keys whose name says so, and what they refer to) and, over the whole text, by value
and by shape. Rather too much is removed than too little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

REMOVED: Final = "[removed]"
SHORTEST: Final = 4
"""A secret shorter than this is removed in its place alone: elsewhere it would be any word."""

_SECRET_WORDS: Final = frozenset(
    {"key", "keys", "apikey", "token", "tokens", "secret", "secrets", "password", "passwd", "pwd", "pass"}
    | {"credential", "credentials", "auth", "authorization", "cookie", "private"}
)
_FLAG: Final = re.compile(
    r"(--?[\w-]*(?:key|token|secret|password)[\w-]*)(=|\s+|', '|\", \")([^\s'\",]+)", re.IGNORECASE
)
_SHAPES: Final = re.compile(
    r"(?i:\bbearer\s+)[^\s\"']+"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|\b(?:sk|pk|hf|ghp|gho|ghs|github_pat|glpat|xox[abp]|swapd)[-_][A-Za-z0-9_-]{8,}"
)
_RANDOM: Final = re.compile(r"(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[A-Za-z0-9+_=-]{24,}")
_DEVICE: Final = re.compile(r"(GPU|MIG)-")
_REFERENCE: Final = re.compile(r"\$\{(?:env:([^{}:]+)(?::-([^{}]*))?|([^{}:]+))\}")


def is_secret_name(name: str) -> bool:
    """Whether a key's or variable's name says that its value is a secret."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def looks_random(value: str) -> bool:
    """Whether a value can hardly be anything but a key; a GPU's id is none."""
    return _RANDOM.fullmatch(value) is not None and _DEVICE.match(value) is None


def redacted(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A parsed TOML with its secrets removed by place and shape; numbers, switches and names stay."""
    hidden = {name for text in _texts_at_secrets(tree) for name in _variables(text)}
    found: dict[str, Any] = _without(tree, hidden)
    return found


def _without(value: Any, hidden: Iterable[str], name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _without(inner, hidden, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        before = ["", *value]
        return [
            _without(inner, hidden, "secret" if _is_secret_flag(flag) else name)
            for flag, inner in zip(before, value, strict=False)
        ]
    if isinstance(value, str) and value and (is_secret_name(name) or name in hidden or looks_random(value)):
        return REMOVED
    return scrub(value, ()) if isinstance(value, str) else value


def secrets_of(tree: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """Values that must appear nowhere: at secret places, what these refer to, and of variables with telling names."""
    names = tree.get("vars")
    known = {str(k): str(v) for k, v in names.items()} if isinstance(names, Mapping) else {}
    found = {value for name, value in environ.items() if is_secret_name(name)}
    for text in _texts_at_secrets(tree):
        found.add(text)
        for variable, default, own in _REFERENCE.findall(text):
            found |= {environ.get(variable, ""), default, known.get(own, "")}
    for text in list(found):
        found |= set(_listed(text))
    return {one for text in found for one in (text, text.strip()) if len(one) >= SHORTEST}


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text without these values, and without what has the shape of a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    text = _FLAG.sub(lambda m: m[1] + m[2] + REMOVED, text)
    return _SHAPES.sub(REMOVED, text)


def _texts_at_secrets(value: Any, *, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts_at_secrets(inner, is_secret=is_secret_name(str(name)))
    elif isinstance(value, list):
        for flag, inner in zip(["", *value], value, strict=False):
            yield from _texts_at_secrets(inner, is_secret=is_secret or _is_secret_flag(flag))
    elif isinstance(value, str) and is_secret:
        yield value
    elif isinstance(value, str):
        yield from (match[3] for match in _FLAG.finditer(value))


def _is_secret_flag(word: Any) -> bool:
    """Of a command given as a list: the next word is the secret."""
    return isinstance(word, str) and word.startswith("-") and is_secret_name(word)


def _variables(text: str) -> Iterator[str]:
    return (own for _, _, own in _REFERENCE.findall(text) if own)


def _listed(text: str) -> Iterator[str]:
    """Each of several, as in ``SWAPD_SERVER__API_KEYS``."""
    try:
        found = json.loads(text)
    except ValueError:
        return
    if isinstance(found, list):
        yield from (one for one in found if isinstance(one, str))

"""Secrets of a configuration, a command line and an environment, taken out of what is shown or pasted.

Twice: by place (keys whose name says so, and what they refer to) and, over the whole text, by value
and by shape. Rather too much is removed than too little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

REMOVED: Final = "[removed]"
SHORTEST: Final = 4
"""A secret shorter than this is removed in its place alone: elsewhere it would be any word."""

_SECRET_WORDS: Final = frozenset(
    {"key", "keys", "apikey", "token", "tokens", "secret", "secrets", "password", "passwd", "pwd", "pass"}
    | {"credential", "credentials", "auth", "authorization", "cookie", "private"}
)
_SECRET_ENDS: Final = re.compile(r"(?:key|token|secret|password|passwd)s?$", re.IGNORECASE)
_FILE_ENDS: Final = re.compile(r"[-_](?:file|path|dir)$")
_SECRET_FLAGS: Final = frozenset({"-hft"})
"""Those of llama-server whose name does not say it."""
_TOLD: Final = (
    re.compile(r"""(?<![\w-])(--?[A-Za-z][\w-]*)(?:\s+|', '|", ")(?!--)"""),
    re.compile(r"(?<![\w.-])(-{0,2}[A-Za-z_][\w-]*)="),
    re.compile(r"""("[\w-]+")\s*:\s*(?=")"""),
)
"""``--name value``, ``--name=value`` and ``NAME=value``, ``"name": "value"``, up to the value, wherever they stand."""
_VALUE: Final = re.compile(r"""("[^"]*"|'[^']*'|[^\s'"]+)""")
_ASSIGNMENT: Final = re.compile(r"(-{0,2}[A-Za-z_][\w-]*)=(.*)", re.DOTALL)
_SHAPES: Final = re.compile(
    r"(?i:\bbearer\s+)[^\s\"']+"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?<![\w/-])(?:(?:sk|pk|glpat|xox[abp]|swapd)[-_]|(?:hf|ghp|gho|ghs|github_pat)_)[A-Za-z0-9_-]{8,}"
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
        return [_without(inner, hidden, name) for inner in without_secrets(value)]
    if isinstance(value, str) and value and (is_secret_name(name) or name in hidden or looks_random(value)):
        return REMOVED
    return scrub(value, ()) if isinstance(value, str) else value


def without_secrets(words: Sequence[Any]) -> list[Any]:
    """A command line without the values of secret flags and variables: ``--x v``, ``--x=v``, ``-e NAME=v``."""
    return [
        REMOVED if isinstance(word, str) and _is_told(flag, word) else _clean(word)
        for flag, word in zip(["", *words], words, strict=False)
    ]


def _is_told(flag: Any, word: str) -> bool:
    """Whether a flag says that the word after it is a secret."""
    is_flag = isinstance(flag, str) and flag.startswith("-") and "=" not in flag
    return is_flag and not word.startswith("--") and _tells(flag, word)


def _clean(word: Any) -> Any:
    """One word: what an assignment tells goes to its end, spaces and all."""
    if not isinstance(word, str):
        return word
    front = ""
    while (found := _ASSIGNMENT.fullmatch(word)) is not None:
        front += f"{found[1]}="
        if _tells(found[1], found[2]):
            return front + REMOVED
        word = found[2]
    return front + scrub(word, ())


def _tells(name: str, value: str = "?") -> bool:
    """Whether a flag's or variable's name says that its value is a secret; a path and a number of tokens are none."""
    plain = name.lstrip("-")
    is_count = plain.endswith("tokens") and value.lstrip("\"'")[:1].isdigit()
    if not value or is_count or (plain != name and _FILE_ENDS.search(plain)):
        return False
    return name in _SECRET_FLAGS or is_secret_name(plain) or _SECRET_ENDS.search(plain) is not None


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
    return _without_told(_SHAPES.sub(REMOVED, text))


def _without_told(text: str) -> str:
    for pattern in _TOLD:
        parts, end = [], 0
        for start, stop in _told(pattern, text):
            parts += [text[end:start], REMOVED]
            end = stop
        text = "".join([*parts, text[end:]])
    return text


def _told(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Where values of secrets stand; the value of what is none may hold some."""
    end = 0
    for match in pattern.finditer(text):
        value = _VALUE.match(text, match.end()) if match.end() >= end and _tells(match[1]) else None
        if value is not None and _tells(match[1], value[0]):
            end = value.end()
            yield value.span()


def _texts_at_secrets(value: Any, *, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts_at_secrets(inner, is_secret=is_secret_name(str(name)))
    elif isinstance(value, list):
        for flag, inner in zip(["", *value], value, strict=False):
            told = isinstance(inner, str) and _is_told(flag, inner)
            yield from _texts_at_secrets(inner, is_secret=is_secret or told)
    elif isinstance(value, str) and is_secret:
        yield value
    elif isinstance(value, str):
        yield from _told_in(value)


def _told_in(text: str) -> Iterator[str]:
    """Values in a command line given as a text, or in one word of it."""
    inner = text
    while (whole := _ASSIGNMENT.fullmatch(inner)) is not None:
        inner = whole[2]
        if _tells(whole[1], inner):
            yield inner
            break
    for pattern in _TOLD:
        yield from (text[start:stop].strip("'\"") for start, stop in _told(pattern, text))


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

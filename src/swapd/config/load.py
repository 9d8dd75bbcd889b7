"""The configuration file, the environment and the flags, read into one ``File``; every mistake at once."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from swapd.config.environment import PREFIX, server_texts, value_of
from swapd.config.lines import KeyPath, key_lines, line_of
from swapd.config.schema import File, Model
from swapd.config.variables import Expander
from swapd.errors import ConfigError

Tree: TypeAlias = dict[str, Any]

_KEYS: Final = ("api_keys", "admin_keys")
_VALUES: Final[Mapping[str, TypeAdapter[Any]]] = {
    "int_type": TypeAdapter(int),
    "float_type": TypeAdapter(float),
    "bool_type": TypeAdapter(bool),
    "value_error": TypeAdapter(int | bool),
}
"""What a text says where pydantic's error names what is wanted, or only that it is not this."""

OTHER_WORDS: Final = {
    "ttl": "idle_timeout",
    "cmdStop": "stop_cmd",
    "checkEndpoint": "health",
    "healthCheckTimeout": "load_timeout",
    "unloadTimeout": "stop_grace",
    "useModelName": "upstream_model",
    "concurrencyLimit": "concurrency",
    "ctx_size": "ctx",
    "model": "gguf",
    "keep_alive": "idle_timeout",
}
"""What llama-swap, llama-server and Ollama call our keys."""


@dataclass
class Problems:
    """Mistakes so far, each with its place; ``variables``: the keys that the environment sets, and by which."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    variables: dict[KeyPath, str] = field(default_factory=dict)
    found: list[ConfigError] = field(default_factory=list)

    def add(self, path: KeyPath, message: str, hint: str = "") -> None:
        """Note one mistake at a key."""
        variable = self.variables.get(path, "")
        line = 0 if variable else line_of(self.lines, path)
        where = f"{self.file}:{line}" if line else self.file
        key = ".".join(_quoted(p) for p in path)
        place = variable or ": ".join(filter(None, (where, key)))
        text = f"{place}: {message}" + (f" ({hint})" if hint else "")
        self.found.append(ConfigError(text, file=self.file, line=line, key=key, hint=hint))

    def raise_if_any(self) -> None:
        """End with all of them at once.

        Raises:
            ConfigError: its message has one line a mistake, in the order of the file.
        """
        if self.found:
            ordered = sorted(self.found, key=lambda e: e.line)
            first = ordered[0]
            text = "\n".join(e.message for e in ordered)
            raise ConfigError(text, file=first.file, line=first.line, key=first.key, hint=first.hint)


@dataclass(frozen=True)
class Loaded:
    """A valid file, where it lies, its text, and what is needed to name places in it."""

    file: File
    path: Path | None
    env_read: frozenset[str]
    problems: Problems
    text: str


def find_config(given: str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file to read: the first that exists in the contract's order; ``None`` = the embedded default.

    Raises:
        ConfigError: if a file was named and is not there.
    """
    named = given or environ.get("SWAPD_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"{path}: no such file", file=str(path))
        return path
    xdg = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    places = (Path("swapd.toml"), Path(xdg) / "swapd" / "swapd.toml", Path("/etc/swapd/swapd.toml"))
    return next((p for p in places if p.is_file()), None)


def load(
    path: Path | None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    lenient: bool = False,
) -> Loaded:
    """Read and validate; ``flags`` are keys of ``[server]`` and ``[devices]`` from the command line, as nested tables.

    ``lenient``: mistakes are left in ``Loaded.problems``, for ``resolve`` to add its own and raise them all.

    Raises:
        ConfigError: with every mistake that the file has by itself.
    """
    return load_text(read_text(path) if path else "", path, flags=flags, environ=environ, lenient=lenient)


def load_text(
    text: str,
    path: Path | None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    name: str = "(defaults)",
    lenient: bool = False,
) -> Loaded:
    """The same for a text; ``path`` None: it was generated, and ``name`` stands in messages.

    Raises:
        ConfigError: with every mistake that the text has by itself.
    """
    problems = Problems(str(path) if path else name, key_lines(text))
    tree = _parse(text, problems)
    expander = Expander(tree.get("vars", {}), environ, problems.add)
    expanded = {key: value if key == "vars" else expander.expand(value, (key,)) for key, value in tree.items()}
    _merge(expanded, {"server": _from_environment(expanded.get("server"), problems)})
    _refuse_empty_keys(expanded, problems)
    for key in (flags or {}).get("server", ()):
        problems.variables.pop(("server", key), None)
    _merge(expanded, dict(flags or {}))
    _apply_defaults(expanded)
    file = _validate(copy.deepcopy(expanded), problems, expander.expanded)
    if not lenient:
        problems.raise_if_any()
    return Loaded(file, path, frozenset(expander.env_read), problems, text)


def read_text(path: Path) -> str:
    """A file that a user wrote.

    Raises:
        ConfigError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}", file=str(path)) from None


def _parse(text: str, problems: Problems) -> Tree:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column \d+\)|\(at end of document\)", str(error))
        line = int(match[1]) if match and match[1] else len(text.splitlines())
        message = f"{problems.file}:{line}: {error}"
        raise ConfigError(message, file=problems.file, line=line) from None


def _refuse_empty_keys(tree: Tree, problems: Problems) -> None:
    server = tree.get("server")
    for name in _KEYS:
        keys = server.get(name) if isinstance(server, dict) else None
        if isinstance(keys, list) and any(isinstance(k, str) and not k.strip() for k in keys):
            problems.add(("server", name), "a key is empty, which would leave the server open by accident")


def _from_environment(server: Any, problems: Problems) -> Tree:
    """What ``SWAPD_SERVER__LISTEN`` and so on set; a mistake in one names the variable, not the file.

    An empty one (as compose passes what is not set) counts as not set; one of keys is a mistake if ``server``, the
    file's table, has none of that name: it would open the server.
    """
    found: Tree = {}
    for key, text in server_texts().items():
        path, variable = ("server", key), PREFIX + key.upper()
        if not text.strip():
            if key in _KEYS and not (isinstance(server, dict) and server.get(key)):
                what = f"{variable} is empty, which would leave the server open by accident"
                problems.add(path, what, "unset it, or give it a key")
            continue
        problems.variables[path] = variable
        try:
            found[key] = value_of(key, text)
        except ValueError as error:
            problems.add(path, str(error))
    return found


def _merge(tree: Tree, more: Tree) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            tree[key] = {**tree[key], **value}
        elif value != {}:
            tree[key] = value


def _apply_defaults(tree: Tree) -> None:
    """``[defaults]`` under every model: its args are replaced, its env is merged under the model's."""
    defaults, models = tree.get("defaults"), tree.get("models")
    if not isinstance(defaults, dict) or not isinstance(models, dict):
        return
    for name, model in models.items():
        if isinstance(model, dict):
            merged = {**defaults, **model}
            if isinstance(defaults.get("env"), dict) and isinstance(model.get("env"), dict):
                merged["env"] = {**defaults["env"], **model["env"]}
            models[name] = merged


def _validate(tree: Tree, problems: Problems, texts: Collection[KeyPath]) -> File:
    """The file without the values that are wrong (noted in ``problems``), so that what else is wrong is found too.

    ``texts``: keys whose value came of a reference, which gives text: it may say a number or a switch.
    """
    seen: set[tuple[int, str, str]] = set()
    left_out: set[KeyPath] = set()
    defaults = set(tree["defaults"]) if isinstance(tree.get("defaults"), dict) else set()
    while True:
        before = repr(tree)
        try:
            return File.model_validate(tree)
        except ValidationError as error:
            for detail in error.errors():
                path = _plain(detail["loc"])
                is_text = path in texts or ("defaults", *path[2:]) in texts
                if is_text and _read_text_as_value(tree, path, detail["type"]):
                    continue
                _leave_out(tree, path, missing=detail["type"] == "missing")
                if path in left_out or _inherited(path, defaults, problems):
                    continue
                left_out.add(path)
                message, hint = _explain(dict(detail), path)
                mark = (line_of(problems.lines, path), ".".join(path), message)
                if mark not in seen:
                    seen.add(mark)
                    problems.add(path, message, hint)
        if repr(tree) == before:
            problems.raise_if_any()
            raise ConfigError(f"{problems.file}: cannot be read", file=problems.file)


def _read_text_as_value(tree: Tree, path: KeyPath, wanted: str) -> bool:
    """Put the number or switch that a text says in its place; False if it says none."""
    *tables, key = path
    try:
        for name in tables:
            tree = tree[name]
        value = tree[key]
        if not isinstance(value, str):
            return False
        tree[key] = _VALUES.get(wanted, _VALUES["value_error"]).validate_python(value)
    except (KeyError, TypeError, ValidationError):  # gone, or it says none
        return False
    return True


def _leave_out(tree: Tree, path: KeyPath, *, missing: bool) -> None:
    """Remove a wrong value; a table that lacks what it needs, or cannot be entered, goes as a whole."""
    *tables, key = path[:-1] if missing else path
    for depth, name in enumerate(tables):
        inner = tree.get(name)
        if not isinstance(inner, dict):
            tree.pop(name, None)
            return
        if depth == len(tables) - 1 and key not in inner:
            tree.pop(name)
            return
        tree = inner
    tree.pop(key, None)


def _inherited(path: KeyPath, defaults: set[str], problems: Problems) -> bool:
    """A mistake in ``[defaults]`` shows up in every model; it is told once, where it stands."""
    is_model_key = len(path) >= 3 and path[0] == "models"
    return is_model_key and path[:3] not in problems.lines and path[2] in defaults


def _plain(loc: tuple[int | str, ...]) -> KeyPath:
    """The key path of a pydantic location: list indices and the names of union branches are left out."""
    branches = {"literal", "list", "float", "int", "str", "bool", "constrained", "function", "dict", "union"}
    parts = [str(p) for p in loc if isinstance(p, str)]
    return tuple(p for i, p in enumerate(parts) if i < 1 or not (p.split("[")[0].split("-")[0] in branches and i >= 2))


def _explain(detail: dict[str, Any], path: KeyPath) -> tuple[str, str]:
    if detail["type"] == "extra_forbidden":
        keys = _keys_at(path[:-1])
        known = {key: key for key in keys} | {theirs: ours for theirs, ours in OTHER_WORDS.items() if ours in keys}
        near = get_close_matches(path[-1], known, n=1, cutoff=0.0)
        return "no such key", f"did you mean {known[near[0]]!r}?" if near else ""
    if detail["type"] == "missing":
        return "this key is needed", ""
    message = str(detail["msg"]).removeprefix("Value error, ")
    value = detail.get("input")
    shown = f", got {value!r}" if isinstance(value, str | int | float | bool) and "got" not in message else ""
    return message[0].lower() + message[1:] + (shown if repr(value) not in message else ""), ""


def _keys_at(path: KeyPath) -> list[str]:
    """The valid keys of the table at a path."""
    kind: Any = File
    for part in path:
        info = kind.model_fields.get(part) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        kind = _table_type(info.annotation) if info is not None else kind
    is_table = isinstance(kind, type) and issubclass(kind, BaseModel)
    return list(kind.model_fields if is_table else Model.model_fields)


def _table_type(annotation: Any) -> Any:
    """The model behind ``dict[str, X]``, ``X | None`` or ``X``."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return annotation


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'

"""A llama-swap configuration as TOML that behaves the same, and a list of what could not be said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from swapd.config import toml
from swapd.config.importing.commands import ServerReader
from swapd.config.importing.macros import Macros, for_model, put_in, read_macros, without_comments
from swapd.config.importing.models import Imported, ModelReader
from swapd.config.importing.routing import RoutingReader
from swapd.config.importing.section import ENV_MARK, Book, Note, Section
from swapd.config.importing.virtual import read_peers, read_profiles, read_selectors
from swapd.config.importing.yaml_tree import read_yaml
from swapd.config.load import Problems
from swapd.config.schema import Model

LEAST_HEALTH_TIMEOUT_S: Final = 15
"""llama-swap takes a shorter ``healthCheckTimeout`` as this."""

_LOG_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
_NO_COUNTERPART: Final = {
    "startPort": "swapd picks free ports, and none for a llama-server (a unix socket)",
    "includeAliasesInList": "/v1/models lists aliases with their model",
    "logRequests": "see /api/activity",
    "logTimeFormat": "see [server] log_format",
    "logToStdout": "swapd logs to stderr; a model's output: swapd logs ID",
    "metricsMaxInMemory": "/api/activity is bounded by itself",
    "store": "see [server] state_dir",
    "ui": "there is no web UI yet",
    "performance": "see [devices] sample_interval",
    "upstream": "GET of a stopped model's look-ups never loads it",
    "tailcat": "peers are asked over HTTP only",
}
_MARKS: Final = re.compile("[\ue000-\ue003]")
_NOT_PASSED_ON: Final = re.compile(r".*_VISIBLE_DEVICES|LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Result:
    """The TOML, what it leaves out or says differently, and the environment variables it reads."""

    text: str
    notes: tuple[Note, ...]
    env_read: frozenset[str]


def import_llama_swap(text: str, name: str, *, read_server: ServerReader, environ: Mapping[str, str]) -> Result:
    """Read the YAML ``text`` of the file ``name``.

    Raises:
        ConfigError: if it is no YAML, has values of a wrong type, or names that are not there; every mistake at once.
    """
    tree = read_yaml(_MARKS.sub("", text), name)
    book = Book(Problems(name, tree.lines), environ)
    tables = _Importer(Section(tree.data, (), book), book, read_server).tables()
    book.problems.raise_if_any()
    notes = tuple(sorted(book.notes, key=lambda note: note.line))
    said = toml.document([(path, _references(keys)) for path, keys in tables])
    head = [f"Imported from {name}, a configuration of llama-swap.", _LISTEN, *map(str, notes)]
    read = frozenset(mark for _, keys in tables for mark in _env_in(keys))
    return Result(toml.comments(head) + "\n" + said, notes, read)


_LISTEN: Final = "llama-swap listens where its --listen flag says; swapd where [server] listen does (127.0.0.1:8080)."


def _references(value: Any) -> Any:
    """Marks as ``${env:NAME}``, and what only looks like a reference escaped; names of keys stay."""
    if isinstance(value, str):
        return ENV_MARK.sub(r"${env:\1}", toml.literal(value))
    if isinstance(value, dict):
        return {key: _references(inner) for key, inner in value.items()}
    return [_references(inner) for inner in value] if isinstance(value, list) else value


def _env_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(ENV_MARK.findall(value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for one in inner for name in _env_in(one)}


class _Importer:
    def __init__(self, top: Section, book: Book, read_server: ServerReader) -> None:
        self._book, self._read_server = book, read_server
        self._macros: Macros = read_macros(top.section("macros"))
        self._found = Imported()
        self._models = top.section("models")
        rest = {key: put_in(top.value(key), self._macros) for key in top if key not in ("macros", "models")}
        self._top = Section(rest, (), book)

    def tables(self) -> toml.Tables:
        """Everything, in the order in which it is written."""
        server, defaults = self._server(), self._defaults()
        self._read_models(loading=server.get("loading_status") == "reasoning")
        routing = RoutingReader(self._top, self._found, list(self._models))
        groups = routing.groups()
        routing.preload(groups)
        selectors = read_selectors(self._top.section("selectors"), self._found)
        profiles = read_profiles(self._top.section("profiles"), self._found)
        peers = read_peers(self._top.section("peers"))
        for key, why in _NO_COUNTERPART.items():
            self._top.leave_out(key, why)
        self._top.end()
        self._tell_engine_decides()
        if passed_on := self._passed_on():
            defaults["env"] = passed_on
        tables: toml.Tables = [(("server",), server), (("scheduling",), {"ungrouped": "swap"})]
        tables += [(("binaries", name), table) for name, table in self._found.binaries.tables.items()]
        tables.append((("defaults",), defaults))
        for id_, table in self._found.tables.items():
            tables.append((("models", id_), {key: table[key] for key in Model.model_fields if key in table}))
            if self._found.variants[id_]:
                tables.append((("models", id_, "variants"), dict(self._found.variants[id_])))
        sections = {"groups": groups, "selectors": selectors, "profiles": profiles, "peers": peers}
        return tables + [((kind, name), table) for kind, some in sections.items() for name, table in some.items()]

    def _server(self) -> dict[str, Any]:
        top, server = self._top, dict[str, Any]()
        if keys := top.texts("apiKeys"):
            server["api_keys"] = keys
            if any(not key.strip() for key in keys):
                self._book.problems.add(("apiKeys",), "a key is empty")
        level = top.text("logLevel", "info")
        if level not in _LOG_LEVELS:
            self._book.problems.add(("logLevel",), f"should be one of {', '.join(_LOG_LEVELS)}, got {level!r}")
        elif level != "info":
            server["log_level"] = _LOG_LEVELS[level]
        if top.switch("sendLoadingState"):
            server["loading_status"] = "reasoning"
        if "captureBuffer" in top and top.whole("captureBuffer", 0, 0):
            server["capture"] = True
            self._book.differs(("captureBuffer",), "captures have a bound of their own, and need an admin key")
        return server

    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        if seconds := self._top.whole("globalTTL", 0, 0):
            defaults["idle_timeout"] = f"{seconds}s"
        if "healthCheckTimeout" in self._top:
            seconds = max(self._top.whole("healthCheckTimeout", 120, -(2**31)), LEAST_HEALTH_TIMEOUT_S)
            defaults["load_timeout"] = f"{seconds}s"
        if seconds := self._top.whole("unloadTimeout", 0, 0):
            defaults["stop_grace"] = f"{seconds}s"
        return defaults

    def _read_models(self, *, loading: bool) -> None:
        reader = ModelReader(self._found, self._read_server, loading=loading)
        for name in self._models:
            path, value = self._models.at(name), self._models.value(name)
            if isinstance(value, dict):
                own = read_macros(Section(value.get("macros"), (*path, "macros"), self._book))
                bare = {k: without_comments(v) if k in ("cmd", "cmdStop") and isinstance(v, str) else v
                        for k, v in value.items() if k != "macros"}  # fmt: skip
                value = put_in(bare, for_model(name, self._macros, own))
            reader.read(self._book.now(name, path), Section(value, path, self._book))

    def _tell_engine_decides(self) -> None:
        if models := self._found.engine_decides:
            how = (
                "without --ctx-size swapd gives the trained context, at most 32768; without -ngl all layers; --fit off"
            )
            self._book.differs(("models",), f"{how}: {', '.join(models)}")

    def _passed_on(self) -> dict[str, str]:
        """Variables that the models read: swapd's children do not inherit what the configuration reads."""
        names = sorted({name for table in self._found.tables.values() for name in _env_in(table)})
        return {name: f"\ue000{name}\ue001" for name in names if not _NOT_PASSED_ON.fullmatch(name)}

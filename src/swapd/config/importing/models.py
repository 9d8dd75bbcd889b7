"""llama-swap's ``models`` as ``[models.ID]``, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from swapd.config.importing.commands import (
    LOCAL,
    Binaries,
    ServerReader,
    argv,
    environment,
    gpus,
    place_of,
    plain,
    port_put_in,
    split,
)
from swapd.config.importing.filters import read_filters
from swapd.config.importing.macros import unknown
from swapd.config.importing.section import Section, written

_NO_COUNTERPART: Final = {
    "metadata": "models have no free-form metadata",
    "capabilities": "swapd reads them from the model itself",
    "healthCheckTimeout": "llama-swap takes the one of the whole file",
    "compat": "websockets are not relayed yet",
}
_MACROS: Final = {"cmd": (), "cmdStop": ("PID",), "proxy": (), "checkEndpoint": (), "name": (), "description": ()}


@dataclass
class Imported:
    """What became of the models: their tables by id, those left out, and which names are whose."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    variants: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    binaries: Binaries = field(default_factory=Binaries)
    engine_decides: list[str] = field(default_factory=list)


class ModelReader:
    """Reads one model after another into ``found``; ``loading`` is the file's ``sendLoadingState``."""

    def __init__(self, found: Imported, read_server: ServerReader, *, loading: bool) -> None:
        self._found, self._read_server, self._loading = found, read_server, loading

    def read(self, id_: str, section: Section) -> None:
        """Note the model under its id, or among those that are left out."""
        self._check_macros(section)
        section.value("macros")
        table: dict[str, Any] = {}
        self._start(id_, section, table)
        self._lifetime(section, table)
        aliases = self._aliases(section)
        variants = read_filters(id_, section, table, aliases)
        if aliases:
            table["aliases"] = aliases
        self._listing(section, table)
        for key, why in _NO_COUNTERPART.items():
            section.leave_out(key, why)
        section.end()
        self._claim([id_, *aliases, *variants], id_, section)
        if "gguf" in table or "cmd" in table:
            self._found.tables[id_], self._found.variants[id_] = table, variants
        else:
            self._found.left_out.add(id_)

    def _check_macros(self, section: Section) -> None:
        for key, allowed in _MACROS.items():
            value = section.value(key)
            for name in unknown(value, ("PORT", *allowed)) if isinstance(value, str) else ():
                section.book.problems.add(section.at(key), f"there is no macro ${{{name}}}")

    def _claim(self, names: list[str], id_: str, section: Section) -> None:
        for name in names:
            owner = self._found.names.setdefault(name, id_)
            if owner != id_:
                section.book.problems.add(section.path, f"the name {name!r} is used already, by {owner!r}")

    # ---- starting

    def _start(self, id_: str, section: Section, table: dict[str, Any]) -> None:
        env = environment(section)
        try:
            words = split(section.text("cmd"))
            stop = split(section.text("cmdStop"))
        except ValueError as error:
            section.book.problems.add(section.at("cmd"), f"shell quoting: {error}")
            return
        place = place_of(section.text("proxy", "http://localhost:${PORT}"))
        if not words:
            section.book.leave_out(section.path, "it has no cmd")
            return
        server = self._read_server(words)
        if server is not None and "-m" in server[0]:
            self._gguf(id_, section, table, words[0], *server)
            self._gguf_place(section, place.host, place.port, server[0].get("--port", "8080"))
        elif place.host not in LOCAL or place.scheme != "http":
            where = f"{place.scheme}://{place.host}:{place.port}"
            why = f"swapd asks a command at 127.0.0.1 and the port it gives it, not at {where}: make it a [peers] entry"
            section.book.leave_out(section.path, why)
            return
        elif not self._cmd(section, table, words, place.port):
            return
        if place.path:
            section.book.leave_out(section.at("proxy"), f"its path {place.path}: requests go to the server's root")
        if stop:
            table["stop_cmd"] = argv(stop)
        self._environment(section, table, env)
        self._relative(section, words[0], str(table.get("gguf", "/")))

    def _gguf(
        self,
        id_: str,
        section: Section,
        table: dict[str, Any],
        program: str,
        managed: Mapping[str, str],
        args: list[str],
    ) -> None:
        table["gguf"] = plain(managed["-m"])
        table["binary"] = plain(program)  # its name, once the libraries are known
        if args:
            table["args"] = argv(args)
        if "--slot-save-path" in managed:
            section.book.leave_out(section.at("cmd"), "--slot-save-path: swapd has keep_context instead")
        if managed.get("--alias", id_) != id_:
            section.book.differs(section.at("cmd"), f"--alias {managed['--alias']}: swapd gives the model's id")
        words = {word.split("=", 1)[0] for word in args}
        if not words & {"-c", "--ctx-size"} or not words & {"-ngl", "--gpu-layers", "--n-gpu-layers", "--fit", "-fit"}:
            self._found.engine_decides.append(id_)

    def _gguf_place(self, section: Section, host: str, port: str, server_port: str) -> None:
        if host not in LOCAL or (port != server_port and "proxy" in section):
            section.book.differs(section.at("proxy"), "swapd asks the llama-server itself, at a place that it gives it")

    def _cmd(self, section: Section, table: dict[str, Any], words: list[str], port: str) -> bool:
        has_port = any("${PORT}" in word for word in words)
        changed = words if has_port else port_put_in(words, port)
        if changed is None or (has_port and port != "${PORT}"):
            why = f"nothing in cmd says port {port}, where proxy looks: swapd must give the port, as ${{PORT}}"
            section.book.leave_out(section.path, why)
            return False
        if not has_port:
            section.book.differs(section.at("proxy"), f"port {port} became one that swapd picks at each start")
        table["cmd"] = argv(changed)
        return True

    def _environment(self, section: Section, table: dict[str, Any], env: dict[str, str]) -> None:
        at = section.at("env")
        shown = gpus(env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else None
        if shown is not None:
            table["gpus"] = shown
            del env["CUDA_VISIBLE_DEVICES"]
            if any(isinstance(gpu, int) for gpu in shown) and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                section.book.differs(at, "GPU numbers are those of nvidia-smi (PCI bus order); CUDA's own may differ")
        if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            del env["CUDA_DEVICE_ORDER"]  # always so
        if "gguf" in table:
            folders = [part for part in env.pop("LD_LIBRARY_PATH", "").split(":") if part]
            fixed = [part for part in folders if not part.startswith("\ue000LD_LIBRARY_PATH")]
            if fixed != folders:
                section.book.leave_out(
                    at, "swapd's own LD_LIBRARY_PATH: a model's libraries are only those of its binary"
                )
            name = self._found.binaries.name_for(table.pop("binary"), fixed)
            table |= {"binary": name} if name else {}
        if env:
            table["env"] = env

    def _relative(self, section: Section, program: str, gguf: str) -> None:
        for path in (program, gguf):
            if ("/" in path or path == gguf) and not path.startswith(("/", "~", "\ue000", "\ue002")):
                section.book.differs(section.at("cmd"), f"{path} is taken relative to the TOML file")

    # ---- the rest

    def _lifetime(self, section: Section, table: dict[str, Any]) -> None:
        ttl = section.whole("ttl", -1, -1)
        if ttl >= 0:
            table["idle_timeout"] = f"{ttl}s"
        if grace := section.whole("unloadTimeout", 0, 0):
            table["stop_grace"] = f"{grace}s"
        if limit := section.whole("concurrencyLimit", 0, 0):
            table["concurrency"] = limit
        health = section.text("checkEndpoint", "/health")
        if health == "none":
            section.book.leave_out(section.at("checkEndpoint"), "swapd asks /health until it is answered; give a path")
        elif health != "/health":
            table["health"] = health if health.startswith("/") else f"/{health}"
        timeouts = section.section("timeouts")
        if first := timeouts.whole("responseHeader", 0, 0):
            table["first_byte_timeout"] = f"{first}s"
        for key in ("connect", "keepalive", "tlsHandshake", "expectContinue", "idleConn"):
            timeouts.leave_out(key, "connections to models are local and swapd's own business")
        timeouts.end()
        if (name := section.text("useModelName")) != "":
            table["upstream_model"] = name

    def _aliases(self, section: Section) -> list[str]:
        """Plain names, or tables with an ``id``."""
        found: list[str] = []
        given = section.value("aliases")
        for entry in given if isinstance(given, list) else section.texts("aliases"):
            one = Section(entry, section.at("aliases"), section.book) if isinstance(entry, dict) else None
            name = one.text("id") if one else written(entry)
            if one:
                for key in ("name", "unlisted"):
                    one.leave_out(key, f"the alias {name!r} is listed with its model")
                one.end()
            if "*" in name:
                section.book.differs(section.at("aliases"), f"in {name!r} the * stands for anything")
            found += [name] if name not in found else []
        return [section.book.now(name, section.at("aliases")) for name in found]

    def _listing(self, section: Section, table: dict[str, Any]) -> None:
        name, description = section.text("name"), section.text("description")
        if description or name:
            table["description"] = description or name
        if name and description:
            section.leave_out("name", "models are listed by id, with their description")
        elif name:
            section.book.differs(section.at("name"), "models have no second name: it became the description")
        if section.switch("unlisted"):
            table["unlisted"] = True
        if "sendLoadingState" in section and section.switch("sendLoadingState") != self._loading:
            section.leave_out("sendLoadingState", "loading_status is one for all models, in [server]")
        section.value("sendLoadingState")

"""What ``swapd doctor`` says of the configuration and of a running swapd; nothing here raises."""

from __future__ import annotations

import contextlib
import threading
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click

from swapd.cli.client import Client, find, model_path
from swapd.cli.doctor_facts import Lines
from swapd.cli.exits import Unreachable
from swapd.config import toml
from swapd.config.load import find_config
from swapd.config.redact import redacted
from swapd.config.resolve import Resolved
from swapd.errors import ConfigError, SwapdError

ASK_S: Final = 5.0
"""A running swapd that hangs does not keep the doctor."""
LOG_LINES: Final = 15


class Configuration:
    """The file as it is written, secrets removed, and what swapd makes of it."""

    def __init__(self, given: str | None) -> None:
        self.path, self.text = "(none: what is found is served)", ""
        self.tree: dict[str, Any] = {}
        self.resolved: Resolved | None = None
        self.problems: list[str] = []
        try:
            path = find_config(given)
            if path is not None:
                self.path = str(path)
                self.tree = tomllib.loads(path.read_text(encoding="utf-8"))
                self.text = toml.document(_tables(redacted(self.tree)))
        except (OSError, ValueError, ConfigError) as error:
            self.problems.append(str(error))
            return
        self._resolve(given)

    def _resolve(self, given: str | None) -> None:
        from swapd import wiring

        try:
            self.resolved = wiring.configure(given)
        except SwapdError as error:
            self.problems += error.message.splitlines()
            with contextlib.suppress(SwapdError):  # of the builds that are there something can be said all the same
                self.resolved = wiring.configure(given, files=False)

    @property
    def device_source(self) -> str:
        return self.resolved.device_source if self.resolved else "auto"

    def lines(self) -> Lines:
        """The path, mistakes and warnings."""
        warnings = self.resolved.warnings if self.resolved else ()
        mistakes = [("mistake", text) for text in self.problems]
        return [("file", self.path), *mistakes, *(("warning", text) for text in warnings)]

    def binaries(self) -> Lines:
        """Every build that is named, or the default one: what it is, or why it does not run."""
        from swapd.core.spec import BinarySpec
        from swapd.llama.probe import probe, resolve

        named: dict[str, BinarySpec] = dict(self.resolved.binaries) if self.resolved else {}
        default = resolve("llama-server")
        named.setdefault("llama-server on PATH", BinarySpec("", default if "/" in default else ""))
        with ThreadPoolExecutor(4) as pool:
            reports = dict(zip(named, pool.map(probe, named.values()), strict=True))
        return [(name, _binary(reports[name])) for name in named]


def _binary(report: Any) -> str:
    found = f"{report.version or 'version unknown'} ({', '.join(report.capabilities)})"
    return f"{report.path or '(embedded engine)'}: {report.problem or found}"


def _tables(tree: Mapping[str, Any]) -> toml.Tables:
    """One level of tables, two below ``models`` and its like."""
    found: toml.Tables = []
    for name, value in tree.items():
        inner = value if isinstance(value, Mapping) else {}
        deep = {k: v for k, v in inner.items() if isinstance(v, Mapping)} if name not in ("vars", "defaults") else {}
        found.append(((name,), {k: v for k, v in inner.items() if k not in deep} if inner else {}))
        found += [((name, key), dict(table)) for key, table in deep.items()]
    return [(path, keys) for path, keys in found if keys or len(path) > 1]


def running(url: str | None, api_key: str | None, config: str | None) -> Lines:
    """What a running swapd says of itself, its models and their last errors; that none answers, if none does."""
    found: list[Lines] = []
    worker = threading.Thread(target=lambda: found.append(list(_ask(url, api_key, config))), daemon=True)
    worker.start()
    worker.join(ASK_S)
    return found[0] if found else [("swapd", f"gave no answer within {ASK_S:.0f} s")]


def _ask(url: str | None, api_key: str | None, config: str | None) -> Iterator[tuple[str, str]]:
    try:
        client = Client(*find(url, api_key, config), config)
        status = client.get("/api/status")
        yield "swapd", f"{status['version']} at {client.url}, up {status['uptime_s']:.0f} s"
        if status.get("problem"):
            yield "devices", status["problem"]
        for model in status["models"]:
            said = [
                model["state"],
                model["reason"] or "",
                f"last error: {model['last_error']}" if model["last_error"] else "",
            ]
            yield f"model {model['id']}", "; ".join(part for part in said if part)
            if model["last_error"]:
                yield from ((f"  {model['id']}", line) for line in _last_lines(client, model["id"]))
    except (Unreachable, SwapdError, click.ClickException, KeyError, TypeError) as error:
        yield "swapd", str(error)


def _last_lines(client: Client, model: str) -> list[str]:
    try:
        text = b"".join(client.lines(model_path(model, "logs"))).decode("utf-8", "replace")
    except (SwapdError, Unreachable) as error:
        return [f"its output: {error}"]
    return text.splitlines()[-LOG_LINES:]

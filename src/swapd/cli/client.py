"""Finding a running swapd and talking to it, with the standard library alone: ``status`` has to be quick."""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click

from swapd.cli.exits import Unreachable
from swapd.errors import ConfigError, SwapdError

CONNECT_S = 5.0


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--url``, ``--api-key`` and ``--config`` for a command that talks to a swapd; it gets a ``Client``."""

    @click.option("--url", metavar="URL", help="Where swapd listens (default: $SWAPD_URL, else found).")
    @click.option("--api-key", metavar="KEY", help="Its key (default: $SWAPD_API_KEY, else the configuration's).")
    @click.option("--config", metavar="FILE", help="The configuration that swapd serves.")
    @functools.wraps(command)
    def wrapped(*args: Any, url: str | None, api_key: str | None, config: str | None, **kwargs: Any) -> Any:
        return command(Client(*find(url, api_key, config), config), *args, **kwargs)

    return wrapped


@dataclass(frozen=True)
class Found:
    """What the configuration says of where swapd is."""

    listen: str = "127.0.0.1:8080"
    state_dir: str = ""
    key: str = ""


def find(url: str | None, api_key: str | None, config: str | None) -> tuple[str, str]:
    """The URL (or socket path) and the key, in the contract's order."""
    found = _configured(config)
    key = api_key or os.environ.get("SWAPD_API_KEY") or found.key
    return url or os.environ.get("SWAPD_URL") or _endpoint(found) or _from_listen(found.listen), key


def _configured(config: str | None) -> Found:
    path = config or os.environ.get("SWAPD_CONFIG") or _default_config()
    if not path:
        return Found()
    try:
        tree = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if config:
            raise ConfigError(f"{path}: {error}", file=path) from None
        return Found()
    server, names = (found if isinstance(found := tree.get(table), dict) else {} for table in ("server", "vars"))
    keys = [str(key) for name in ("admin_keys", "api_keys") if isinstance(of := server.get(name), list) for key in of]
    state_dir = _expand(str(server.get("state_dir", "")), names)
    folder = str(Path(path).absolute().parent / Path(state_dir).expanduser()) if state_dir else ""
    listen = _expand(str(server.get("listen", Found.listen)), names)
    return Found(listen, folder, _expand(keys[0], names) if keys else "")


def _default_config() -> str:
    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    places = ("swapd.toml", f"{config_home}/swapd/swapd.toml", "/etc/swapd/swapd.toml")
    return next((p for p in places if os.path.isfile(p)), "")


def _expand(text: str, names: Mapping[str, Any]) -> str:
    """``${env:NAME}``, ``${env:NAME:-default}`` and ``${name}`` of ``[vars]``; anything else stays."""
    pattern = r"\$\{env:([^{}:]+)(?::-([^{}]*))?\}"
    text = re.sub(pattern, lambda m: os.environ.get(m[1]) or m[2] or "", text)
    return re.sub(r"\$\{([^{}:]+)\}", lambda m: str(names.get(m[1], m[0])), text)


def _endpoint(found: Found) -> str:
    state_home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = os.environ.get("SWAPD_SERVER__STATE_DIR") or found.state_dir or f"{state_home}/swapd"
    try:
        return (Path(folder) / "endpoint").read_text().strip()
    except OSError:
        return ""


def _from_listen(listen: str) -> str:
    """A wildcard is reached on loopback, a bare port too."""
    listen = os.environ.get("SWAPD_SERVER__LISTEN") or listen
    if listen.startswith("/"):
        return listen
    host, _, port = listen.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{port}"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class Client:
    """One running swapd; a connection for each call."""

    def __init__(self, url: str, key: str, config: str | None = None) -> None:
        self.url, self._key, self.config = url, key, config

    def get(self, path: str) -> Any:
        """The JSON of a GET.

        Raises:
            SwapdError: what swapd answered instead.
            Unreachable: nobody answers.
        """
        return self._json("GET", path)

    def post(self, path: str) -> Any:
        """The JSON of a POST without a body; as ``get``."""
        return self._json("POST", path)

    def lines(self, path: str) -> Iterator[bytes]:
        """The body of a GET, as it comes.

        Raises:
            Unreachable: swapd ended before the body did.
        """
        response = self._open("GET", path)
        try:
            while chunk := response.read1(65536):
                yield chunk
        except (OSError, http.client.HTTPException):
            raise Unreachable(f"swapd at {self.url} has ended or closed the connection") from None

    def _json(self, method: str, path: str) -> Any:
        try:
            return json.loads(self._open(method, path).read())
        except (ValueError, http.client.HTTPException):
            raise SwapdError(f"{self.url} answered something that is no JSON: is it a swapd?") from None

    def _open(self, method: str, path: str) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            connection = self._connection()
            connection.connect()
            connection.sock.settimeout(None)
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no swapd answers at {self.url} ({error}); start one with: swapd serve") from None
        if response.status >= 400:
            raise SwapdError(_message(response))
        return response

    def _connection(self) -> http.client.HTTPConnection:
        if self.url.startswith("/"):
            return _UnixConnection(self.url, CONNECT_S)
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.url!r} is no URL: write http://HOST:PORT or a socket's path")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=CONNECT_S)


def _message(response: http.client.HTTPResponse) -> str:
    body = response.read()
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status}: {body[:200].decode('utf-8', 'replace')}"


def model_path(model: str, action: str) -> str:
    """The path of an order or a view of one model; any id works."""
    return f"/api/models/{quote(model, safe='')}/{action}"

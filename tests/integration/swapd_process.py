"""The real ``swapd serve`` as a process of its own, over fake llama-servers on a simulated machine.

``Swapd(folder, models={...})`` writes the configuration, starts it on a free port and is a context
manager: at its end swapd is ended, and nothing that it started may be left.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from swapd.launch import procfs
from tests.fakes import fake_llama_server

T = TypeVar("T")
Knobs = Mapping[str, object]

START_S = 20.0
BOUND_S = 20.0
"""No wait of a test is longer than this, unless it says so."""

_CHANGING = """#!/bin/sh
# A llama-server whose knobs a test may change between two starts.
set -a
for word; do case "$before" in --alias) [ -f "{folder}/$word" ] && . "{folder}/$word" ;; esac; before="$word"; done
exec "{server}" "$@"
"""


def wait_for(what: Callable[[], T], timeout_s: float = BOUND_S, why: str = "") -> T:
    """The first true result; an assertion error when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = what()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {why or what}"
        time.sleep(0.01)


def log_rows(path: Path) -> list[dict[str, Any]]:
    """A log's whole lines of JSON; its last one may still be on its way. None without a file."""
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return [json.loads(line) for line in whole.splitlines()]


def in_background(work: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Run ``work`` in a thread; its result or exception is in the future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (it is raised where the future is asked)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@dataclass
class Reply:
    """One answer. ``whole``: it had its proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    whole: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The ``error`` object; an assertion error if it is none."""
        found = self.json
        assert isinstance(found.get("error"), dict), found
        error: dict[str, Any] = found["error"]
        return error

    @property
    def text(self) -> str:
        return self.body.decode()


class Stream:
    """An answer that is read as it comes, and can be left at any moment."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status = response.status

    def events(self, count: int) -> list[str]:
        """The next so many lines that are not empty."""
        lines: list[str] = []
        while len(lines) < count:
            line = self._response.readline()
            assert line, f"the stream ended after {lines}"
            if line.strip():
                lines.append(line.decode().strip())
        return lines

    def rest(self) -> tuple[str, bool]:
        """All that still comes, and whether it had its proper end."""
        text = b""
        try:
            while piece := self._response.read1(65536):
                text += piece
        except (http.client.IncompleteRead, http.client.HTTPException, OSError):
            return text.decode(), False
        finally:
            self.leave()
        return text.decode(), True

    def leave(self) -> None:
        """Hang up."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _table(name: str, keys: Mapping[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{json.dumps(k)} = {_toml(v)}\n" for k, v in keys.items()) + "\n"


@dataclass
class Gpu:
    """One simulated GPU, in MiB; nothing else uses it at first."""

    total: int = 8192
    free: int | None = None

    def row(self, index: int) -> dict[str, object]:
        free = self.total if self.free is None else self.free
        return {"id": f"GPU-{index}", "index": index, "name": "sim", "total_mib": self.total, "free_mib": free}


@dataclass
class Swapd:
    """One swapd and its world. ``models``: keys of ``[models.ID]``, with ``knobs`` for the fake's environment.

    Without other words: one GPU of 8 GiB, 256 MiB headroom, no linger, models of 1000 MiB that load at once.
    ``takes`` of a model is what its process really takes on its first GPU (default: what ``vram`` says).
    """

    folder: Path
    models: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = (Gpu(),)
    ram_mib: int = 20000
    server: Mapping[str, object] = field(default_factory=dict)
    scheduling: Mapping[str, object] = field(default_factory=dict)
    devices: Mapping[str, object] = field(default_factory=dict)
    headroom: Mapping[str, object] = field(default_factory=dict)
    extra: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    demo: bool = False
    listen: str = "127.0.0.1:0"
    wrapper: tuple[str, ...] = ()
    """A program that becomes (or starts) swapd: it is given the command line."""
    pass_fds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.state_dir = Path(str(self.server.get("state_dir", self.folder / "state")))
        self.machine = self.folder / "machine.json"
        self.fake_log, self.log_file = self.folder / "fake.jsonl", self.folder / "swapd.log"
        self.config = self.folder / "swapd.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.url = ""

    # ---- the world

    def write(self) -> None:
        """Configuration, machine and fake engine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "knobs").mkdir(exist_ok=True)
        (self.folder / "run").mkdir(mode=0o700, exist_ok=True)
        (self.folder / "model.gguf").touch()
        server = fake_llama_server.install(self.folder)
        changing = self.folder / "changing-server"
        changing.write_text(_CHANGING.format(folder=self.folder / "knobs", server=server))
        changing.chmod(0o755)
        if not self.machine.exists():
            rows = [gpu.row(index) for index, gpu in enumerate(self.gpus)]
            self._write_machine({"gpus": rows, "ram_available_mib": self.ram_mib, "ram_total_mib": self.ram_mib})
        self.config.write_text(self.toml(server, str(changing)))

    def toml(self, server: str, changing: str) -> str:
        """The whole file."""
        devices = {"source": f"file:{self.machine}", "sample_interval": "200ms", **self.devices}
        own = {"state_dir": str(self.state_dir), "log_level": "debug", **self.server}
        parts = [
            _table("server", own),
            _table("devices", devices),
            _table("headroom", {"vram": "256 MiB", "ram": "256 MiB", **self.headroom}),
            _table("scheduling", {"linger": "0s", **self.scheduling}),
            _table("binaries.fake", {"path": server}),
            _table("binaries.changing", {"path": changing}),
            _table("defaults", {"gguf": "model.gguf", "binary": "fake", "vram": "1000 MiB", "stop_grace": "5s"}),
        ]
        parts += [_table(f"models.{json.dumps(name)}", self._model(keys)) for name, keys in self.models.items()]
        parts += [_table(f"groups.{json.dumps(name)}", keys) for name, keys in self.groups.items()]
        return "".join(parts) + self.extra

    def _model(self, keys: Mapping[str, Any]) -> dict[str, object]:
        """A model's own keys; the fake's knobs become its ``env``."""
        own = {name: value for name, value in keys.items() if name not in ("knobs", "takes")}
        env = {"FAKE_LOG": str(self.fake_log), **{k: str(v) for k, v in keys.get("knobs", {}).items()}}
        vram = own.get("vram", "1000 MiB")
        default = int(vram.split()[0]) if isinstance(vram, str) and vram.endswith(" MiB") and self.gpus else 0
        takes = keys.get("takes", default)
        chosen = own.get("gpus") or [0]
        claims = takes if isinstance(takes, Mapping) else {chosen[0]: takes}
        claim = ",".join(f"{self.machine}:{gpu}:{mib}" for gpu, mib in claims.items() if mib)
        if claim:
            env["FAKE_VRAM"] = claim
        return {**own, "env": {**env, **own.get("env", {})}}

    def knobs(self, model: str, **knobs: object) -> None:
        """Change the knobs of a model with ``binary = "changing"`` for its next starts; none: as configured."""
        path = self.folder / "knobs" / model
        path.write_text("".join(f"{name}='{value}'\n" for name, value in knobs.items()))

    def _write_machine(self, tree: object) -> None:
        temporary = self.machine.with_suffix(".tmp")
        temporary.write_text(json.dumps(tree))
        temporary.replace(self.machine)

    def take_vram(self, mib: int, gpu: int = 0) -> None:
        """Another program takes memory (or gives it back, below 0)."""
        assert fake_llama_server.change_devices(str(self.machine), str(gpu), -mib)

    def free_vram(self, gpu: int = 0) -> int:
        """What the machine's file says now."""
        free: int = json.loads(self.machine.read_text())["gpus"][gpu]["free_mib"]
        return free

    # ---- life

    def environment(self) -> dict[str, str]:
        """What swapd and the commands get: nothing of the caller's configuration."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SWAPD_", "XDG_", "LLAMA_"))}
        home = str(self.folder)
        own = {"HOME": home, "XDG_RUNTIME_DIR": home + "/run", "XDG_STATE_HOME": home + "/xdg", "NO_COLOR": "1"}
        return {**inherited, **own, "SWAPD_TEST_HOME": home, **self.environ}

    def start(self) -> Swapd:
        """Start it and wait until it listens."""
        self.write()
        self.launch()
        return self.wait_listening()

    def launch(self) -> None:
        """Start the process, without waiting."""
        what = ["--demo"] if self.demo else ["--config", str(self.config)]
        command = [*self.wrapper, sys.executable, "-m", "swapd", "serve", *what, "--listen", self.listen]
        with open(self.log_file, "ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [*command, *self.flags], env=self.environment(), cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=self.pass_fds,
            )  # fmt: skip

    def wait_listening(self) -> Swapd:
        """Wait for the address that it tells (port 0 of ``listen``: it chose one)."""
        process = self.process
        assert process is not None

        def found() -> str:
            assert process.poll() is None, f"swapd ended with {process.returncode}:\n{self.log_file.read_text()}"
            told = re.search(rb"swapd: serving \d+ models at (\S+?)(?::\s.*)?$", self.own_log(), re.MULTILINE)
            return told[1].decode() if told else ""

        self.url = wait_for(found, START_S, "swapd does not listen")
        return self

    def own_log(self) -> bytes:
        """What the running process wrote to stderr."""
        return self.log_file.read_bytes()[self._log_start :]

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(5)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_ended(self, timeout_s: float = BOUND_S) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """End it at once and check that nothing of it is left."""
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
                raise AssertionError("swapd did not end at its second signal") from None
        self.assert_nothing_left()

    def descendants(self) -> list[int]:
        """Processes of this world other than swapd, drivers of simulated memory left out."""
        mark = f"SWAPD_TEST_HOME={self.folder}".encode()
        fake = f"FAKE_LOG={self.fake_log}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (os.getpid(), self.process.pid if self.process else 0):
                with contextlib.suppress(OSError):
                    variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                    if (mark in variables or fake in variables) and not _is_driver(int(name)):
                        found.append(int(name))
        return found

    def assert_nothing_left(self, timeout_s: float = 2.0) -> None:
        """Every process that swapd started is gone."""
        wait_for(lambda: not self.descendants(), timeout_s, f"left over: {self.descendants()}")

    def __enter__(self) -> Swapd:
        try:
            return self.start()
        except BaseException:
            if self.process is not None:
                self.process.kill()
                self.process.wait(5)
            raise

    def __exit__(self, kind: object, *_rest: object) -> None:
        if kind is not None and self.log_file.exists():
            sys.stderr.write(self.log_file.read_text()[-6000:])
        self.stop()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    # ---- asking

    def connect(self, timeout_s: float = 30.0) -> http.client.HTTPConnection:
        if self.url.startswith("/"):
            return _UnixConnection(self.url, timeout_s)
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=timeout_s)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> Reply:
        """One request on a connection of its own."""
        begun = time.monotonic()
        connection = self.connect(timeout_s)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**kind, **(headers or {})})
            response = connection.getresponse()
            whole = True
            try:
                text = response.read()
            except http.client.IncompleteRead as cut:
                text, whole = cut.partial, False
            found = {name.lower(): value for name, value in response.getheaders()}
            response.close()
            return Reply(response.status, found, text, time.monotonic() - begun, whole)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: object = None) -> Reply:
        return self.ask("POST", path, body)

    def chat(self, model: str, timeout_s: float = 30.0, **keys: object) -> Reply:
        """A chat completion, not streamed."""
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], **keys}
        return self.ask("POST", "/v1/chat/completions", body, timeout_s=timeout_s)

    def chat_later(self, model: str, **keys: Any) -> Future[Reply]:
        """The same, in the background."""
        return in_background(self.chat, model, **keys)

    def stream(self, model: str, **keys: object) -> Stream:
        """A streamed chat completion; returns when its head has come."""
        connection = self.connect()
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "x"}], **keys}
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), head)
        return Stream(connection, connection.getresponse())

    def open_request(self, model: str, **keys: object) -> http.client.HTTPConnection:
        """Send a chat request and do not wait for anything; close the connection to hang up."""
        connection = self.connect()
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], **keys}
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), head)
        return connection

    def load(self, model: str) -> Reply:
        return self.post(f"/api/models/{quote(model, safe='')}/load")

    def unload(self, model: str, query: str = "") -> Reply:
        return self.post(f"/api/models/{quote(model, safe='')}/unload{query}")

    # ---- seeing

    def status(self) -> dict[str, Any]:
        reply = self.get("/api/status")
        assert reply.status == 200, reply
        found: dict[str, Any] = reply.json
        return found

    def model(self, name: str) -> dict[str, Any]:
        """One row of the status."""
        return next(row for row in self.status()["models"] if row["id"] == name)

    def state(self, name: str) -> str:
        state: str = self.model(name)["state"]
        return state

    def loaded(self) -> set[str]:
        return {row["id"] for row in self.status()["models"] if row["state"] == "ready"}

    def wait_state(self, name: str, *states: str, timeout_s: float = BOUND_S) -> dict[str, Any]:
        """The model's row once it is in one of these states."""

        def found() -> dict[str, Any] | None:
            row = self.model(name)
            return row if row["state"] in states else None

        row = wait_for(found, timeout_s, f"{name} is not {states} but {self.model(name)}")
        assert row is not None
        return row

    def fakes(self, ev: str = "", model: str = "") -> list[dict[str, Any]]:
        """What the fake servers logged, in order."""
        rows = log_rows(self.fake_log)
        return [r for r in rows if ev in ("", r["ev"]) and model in ("", r["model"])]

    def wait_fake(self, ev: str, model: str = "", count: int = 1, timeout_s: float = BOUND_S) -> dict[str, Any]:
        """The fake's ``count``-th line of this kind."""
        wait_for(lambda: len(self.fakes(ev, model)) >= count, timeout_s, f"{count} × {ev} {model}")
        return self.fakes(ev, model)[count - 1]

    def wait_loading(self, model: str) -> None:
        """Until the model's process holds its simulated memory (killed before that, the fake may lose some)."""
        wait_for(lambda: "loading model" in self.get(f"/api/models/{quote(model, safe='')}/logs").text)

    def said(self, text: str) -> bool:
        """Whether swapd's own log has this."""
        return text in self.log_file.read_text()

    # ---- the command line

    def cli(self, *args: str, timeout_s: float = 30.0, **environ: str) -> subprocess.CompletedProcess[str]:
        """``swapd …`` in this world; it finds the address by the configuration's state directory."""
        environment = {**self.environment(), "SWAPD_CONFIG": str(self.config), **environ}
        environment = {k: v for k, v in environment.items() if v != "-"}
        return subprocess.run(
            [sys.executable, "-m", "swapd", *args], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip


def _is_driver(pid: int) -> bool:
    """The fake's part that gives simulated memory back: a session of its own, whose leader it is, forked."""
    try:
        closed = len(os.listdir(f"/proc/{pid}/fd")) <= 2
        return closed and procfs.session_members(pid) == [pid] and _is_fake(pid)
    except OSError:
        return True


def _is_fake(pid: int) -> bool:
    return b"llama-server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """``work(0)`` … ``work(count - 1)``, each in a thread of its own; results in order."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@contextlib.contextmanager
def process(*command: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user's own, ended by its pid."""
    with open(os.devnull, "wb") as nowhere:
        own = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere)
    try:
        yield own
    finally:
        own.kill()
        own.wait(5)

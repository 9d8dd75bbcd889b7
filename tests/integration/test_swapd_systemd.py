"""swapd as a systemd service: its notifications, an inherited socket, and the unit files themselves."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from swapd.config import schema
from swapd.proxy.serve import CLOSE_S
from swapd.units import parse_duration
from tests.integration.swapd_process import Swapd, wait_for

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "packaging" / "systemd"
SERVICES = [UNITS / "swapd.service", UNITS / "user" / "swapd.service"]
NEWER_KEYS = ("RestartSteps", "RestartMaxDelaySec")
"""Since version 254; older ones say that they ignore them, and start the service all the same."""

_ACTIVATE = """
import os, sys
first, *fds = (int(word) for word in sys.argv[1].split(","))
for number, fd in enumerate(fds, 3):
    os.dup2(fd, number)
os.environ.update(LISTEN_PID=str(os.getpid() + first), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES="x")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """systemd's end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0.01)
        self.told: list[tuple[float, str]] = []

    def lines(self) -> list[str]:
        """Every line so far."""
        while True:
            try:
                text = self.socket.recv(4096).decode()
            except TimeoutError:
                return [line for _, line in self.told]
            self.told += [(time.monotonic(), line) for line in text.splitlines()]

    def wait(self, line: str) -> None:
        wait_for(lambda: line in self.lines(), why=f"{line}: {self.lines()}")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Manager, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@swapd-test-{os.getpid()}"
    found = Manager(address)
    yield found, address
    found.socket.close()


def test_manager_hears_ready_status_and_stopping_in_order(tmp_path: Path, manager: tuple[Manager, str]) -> None:
    heard, address = manager
    with Swapd(tmp_path, {"a": {}}, environ={"NOTIFY_SOCKET": address}) as swapd:
        heard.wait("READY=1")
        assert f"STATUS=serving at {swapd.url}" in heard.lines()
        swapd.load("a")
        heard.wait("STATUS=ready: a")
        swapd.signal()
        assert swapd.wait_ended() == 0
        heard.wait("STOPPING=1")
    lines = heard.lines()
    assert lines.index("READY=1") < lines.index("STATUS=starting: a") < lines.index("STOPPING=1")
    assert lines.count("READY=1") == lines.count("STOPPING=1") == 1
    assert not [line for line in lines if line.startswith("WATCHDOG")]


def test_watchdog_hears_the_loop_at_half_its_interval(tmp_path: Path) -> None:
    heard = Manager(str(tmp_path / "notify"))
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with Swapd(tmp_path, {"a": {}}, environ=environ):
        begun, before = time.monotonic(), heard.lines().count("WATCHDOG=1")
        wait_for(lambda: heard.lines().count("WATCHDOG=1") >= before + 5)
        assert time.monotonic() - begun >= 4 * 0.15  # never sooner than four halves, less what the clock is coarse
    heard.socket.close()


def test_children_do_not_inherit_the_managers_variables(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "1000000", "LISTEN_FDS": "0"}
    with Swapd(tmp_path, {"a": {}}, environ=environ) as swapd:
        assert swapd.load("a").status == 200
        names = swapd.wait_fake("start")["env"]
        assert not [name for name in names if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]


def activated(folder: Path, listeners: Sequence[socket.socket], pid_offset: int = 0) -> Swapd:
    """swapd with these sockets as descriptors 3, 4, …; its own ``listen`` names an address it could not use."""
    numbers = [one.fileno() for one in listeners]
    wrapper = (sys.executable, "-c", _ACTIVATE, ",".join(map(str, [pid_offset, *numbers])))
    return Swapd(folder, {"a": {}}, listen="192.0.2.1:1", wrapper=wrapper, pass_fds=tuple(numbers))


def test_inherited_socket_is_used_instead_of_binding(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        early = socket.create_connection(("127.0.0.1", port))  # it waits in the backlog until swapd is there
        early.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with activated(tmp_path, [listener]) as swapd:
            assert swapd.url == f"http://127.0.0.1:{port}"
            early.settimeout(10)
            assert early.recv(64).startswith(b"HTTP/1.1 200")
            assert swapd.chat("a").status == 200
            evil = {"Host": "evil.example"}
            assert swapd.ask("GET", "/v1/models", headers=evil).status == 403, "it is known to be loopback"
            links = [os.readlink(f"/proc/{swapd.wait_fake('start')['pid']}/fd/{n}") for n in (0, 1, 2)]
            assert not [link for link in links if f"[{os.fstat(listener.fileno()).st_ino}]" in link]
        early.close()


def test_inherited_unix_socket_stays_when_swapd_ends(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        with activated(tmp_path, [listener]) as swapd:
            assert swapd.url == str(path)
            assert swapd.get("/health").status == 200
            swapd.signal()
            assert swapd.wait_ended() == 0
        assert path.exists(), "it is the manager's"


def test_every_inherited_socket_is_served(tmp_path: Path) -> None:
    here = ("127.0.0.1", 0)
    with (
        socket.create_server(here) as one,
        socket.create_server(here) as two,
        activated(tmp_path, [one, two]) as swapd,
    ):
        assert swapd.get("/health").status == 200
        swapd.url = f"http://127.0.0.1:{two.getsockname()[1]}"
        assert swapd.get("/health").status == 200


def test_sockets_of_another_process_are_not_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        swapd = activated(tmp_path, [listener], pid_offset=1)
        swapd.listen = "127.0.0.1:0"
        with swapd:
            assert not swapd.url.endswith(f":{listener.getsockname()[1]}")


def test_inherited_descriptor_that_does_not_listen_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as idle:
        swapd = activated(tmp_path, [idle])
        swapd.write()
        swapd.launch()
        assert swapd.wait_ended() == 1
        assert swapd.said("no listening stream socket")


# ---- the files


def settings(unit: Path) -> dict[str, list[str]]:
    """Values by key, of every section."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(key, []).append(value)
    return found


def seconds(text: str) -> float:
    return parse_duration(text.replace("min", "m"))


@pytest.mark.parametrize("unit", SERVICES, ids=["system", "user"])
def test_service_gives_the_stop_ladder_its_time_and_tells_what_it_must(unit: Path) -> None:
    found = settings(unit)
    server, model, scheduling = schema.Server(), schema.Model(), schema.Scheduling()
    bound = server.drain + model.stop_grace + scheduling.kill_timeout + CLOSE_S
    assert seconds(found["TimeoutStopSec"][0]) > bound
    assert found["Type"] == ["notify"] and found["NotifyAccess"] == ["main"]
    assert found["KillMode"] == ["mixed"] and found["OOMPolicy"] == ["continue"]
    assert found["LimitNOFILE"] == ["65536"]
    assert found["Restart"] == ["on-failure"] and found["RestartPreventExitStatus"] == ["2"]
    assert seconds(found["RestartSec"][0]) * float(found["StartLimitBurst"][0]) < seconds(
        found["StartLimitIntervalSec"][0]
    ), "without RestartSteps the limit ends a loop"


@pytest.mark.parametrize("unit", SERVICES, ids=["system", "user"])
def test_hardening_hides_no_gpu(unit: Path) -> None:
    hiding = {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute", "ProcSubset"}
    assert not hiding & set(settings(unit))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", ["", "user"], ids=["system", "user"])
def test_systemd_accepts_the_units(folder: str, tmp_path: Path) -> None:
    program = shutil.which("true")
    for unit in (UNITS / folder).glob("swapd.*"):
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    mode = ["--user"] if folder else []
    units = [str(tmp_path / "swapd.service"), str(tmp_path / "swapd.socket")]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = ["systemd-analyze", *mode, "--man=no", "verify", *units]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    said = [line for line in done.stderr.splitlines() if not any(f"'{key}'" in line for key in NEWER_KEYS)]
    assert not [line for line in said if str(tmp_path) in line or "swapd" in line], said


def test_units_start_a_command_line_that_exists() -> None:
    for unit in SERVICES:
        (line,) = settings(unit)["ExecStart"]
        done = subprocess.run(
            [sys.executable, "-m", "swapd", line.split()[1], "--help"], capture_output=True, text=True
        )
        assert done.returncode == 0
        assert all(flag in done.stdout for flag in line.split() if flag.startswith("--"))

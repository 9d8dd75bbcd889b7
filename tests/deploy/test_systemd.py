"""The units under a real systemd, in a machine of its own: what the page about systemd says, seen."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.deploy import debian
from tests.deploy.machine import Machine

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
PAGE = debian.ROOT / "docs" / "deploy" / "systemd.md"
DROP_IN = "/run/systemd/system/swapd.service.d/test.conf"
URL = "http://127.0.0.1:8080"
CONFIG = """
[binaries.upstream]
path = "/opt/llama/llama-server"

[models.small]
gguf = "/srv/models/small.gguf"
binary = "upstream"
args = "--ctx-size 256 --no-warmup"

[models.stand-in]
cmd = ["/usr/bin/python3", "/opt/server.py", "${PORT}"]
"""


def block(heading: str) -> str:
    """The first shell block below a heading of the page, without what needs a network or a login."""
    found = re.search(rf"^## {heading}$.*?^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, heading
    return "\n".join(line for line in found[1].splitlines() if not line.startswith(("pipx install", "loginctl")))


@pytest.fixture(scope="module")
def installed(booted: Machine) -> Machine:
    """With the system unit, installed by the page's own commands."""
    booted.write("/root/swapd.toml", CONFIG)
    booted.write("/opt/server.py", (debian.ROOT / "tests" / "deploy" / "server.py").read_text())
    booted.do(f"cd /root && set -ex && {block('For the machine')}", 120)
    return booted


@pytest.fixture
def machine(installed: Machine) -> Iterator[Machine]:
    """With swapd started anew by its unit."""
    restart(installed)
    yield installed
    installed.run("systemctl stop swapd.socket swapd.service", 100)
    installed.write("/etc/swapd/swapd.toml", CONFIG)


def restart(machine: Machine, **settings: str) -> None:
    """Start swapd with these settings over its unit's; an emulated processor gets more time to start."""
    if machine.emulated:
        settings = {"TimeoutStartSec": "10min", **settings}
    machine.write(DROP_IN, "[Service]\n" + "".join(f"{key}={value}\n" for key, value in settings.items()))
    machine.do("systemctl daemon-reload; systemctl reset-failed swapd; systemctl restart swapd", 60)


def complete(machine: Machine, model: str, prompt: str = "Once") -> str:
    body = f'{{"model": "{model}", "max_tokens": 1, "prompt": "{prompt}"}}'
    return machine.run(f"curl -sS -m 200 -w ' %{{http_code}}' {URL}/v1/completions --json '{body}'", 60).text


def left(machine: Machine) -> str:
    """Processes of the service's user."""
    return machine.run("ps -o args= -u swapd").text.strip()


def test_start_is_over_when_swapd_serves_and_a_real_model_answers(machine: Machine) -> None:
    assert machine.show("ActiveState") == "active" and machine.show("SubState") == "running"
    assert machine.show("StatusText") == f"serving at {URL}"
    assert "ready" in machine.do(f"curl -sS {URL}/ready")
    assert complete(machine, "small").endswith(" 200")
    assert machine.show("StatusText") == "ready: small"
    limits = machine.do("cat /proc/$(systemctl show -P MainPID swapd)/limits")
    assert re.search(r"Max open files +65536 +65536", limits) and re.search(r"locked memory +unlimited", limits)
    exposure = machine.do("systemd-analyze --no-pager security swapd | tail -n 1")
    assert float(exposure.split(": ")[1].split()[0]) < 4, exposure


def test_reload_takes_the_new_file_and_stop_leaves_nothing(machine: Machine) -> None:
    assert complete(machine, "stand-in").endswith(" 200")
    machine.write("/etc/swapd/swapd.toml", CONFIG.replace("models.small", "models.renamed"))
    machine.do("systemctl reload swapd")
    machine.wait(f"curl -sS {URL}/v1/models | grep renamed")
    pid = machine.show("MainPID")
    machine.do("systemctl stop swapd", 60)
    assert machine.show("Result") == "success" and machine.show("ExecMainStatus") == "0"
    assert machine.show("ExecMainPID") == pid, "the reload was no restart"
    assert left(machine) == ""


def test_killed_swapd_comes_back_without_orphans(machine: Machine) -> None:
    assert complete(machine, "stand-in").endswith(" 200")
    machine.do("systemctl kill --kill-whom=main --signal=KILL swapd")
    machine.wait("test $(systemctl show -P NRestarts swapd) = 1 && systemctl is-active swapd", 60)
    assert "server.py" not in left(machine)
    assert complete(machine, "stand-in").endswith(" 200")


def test_watchdog_is_kept_and_ends_a_swapd_that_hangs(machine: Machine) -> None:
    restart(machine, WatchdogSec=f"{3 * machine.slowness}s")
    machine.do(f"sleep {9 * machine.slowness}", 60)
    assert machine.show("NRestarts") == "0"
    machine.do("systemctl kill --kill-whom=main --signal=STOP swapd")
    machine.wait("test $(systemctl show -P NRestarts swapd) = 1 && systemctl is-active swapd", 60)
    assert "watchdog" in machine.do("journalctl --unit swapd --lines 40")


def test_model_that_the_kernel_kills_for_memory_does_not_end_swapd(machine: Machine) -> None:
    machine.write("/etc/swapd/swapd.toml", CONFIG + '[headroom]\nram = "16 MiB"\n')
    restart(machine, MemoryMax="400M", MemorySwapMax="0")
    pid = machine.show("MainPID")
    assert complete(machine, "stand-in", "eat").endswith(" 502")
    assert "oom-kill" in machine.do("journalctl --dmesg --lines 100")
    assert machine.show("MainPID") == pid and machine.show("ActiveState") == "active"
    assert complete(machine, "stand-in").endswith(" 200")


def test_mistake_in_the_configuration_is_not_tried_again(machine: Machine) -> None:
    machine.write("/etc/swapd/swapd.toml", "bogus = 1\n")
    assert machine.run("systemctl restart swapd", 60).code != 0
    machine.do("sleep 5")
    assert machine.show("ActiveState") == "failed" and machine.show("NRestarts") == "0"
    assert machine.show("ExecMainStatus") == "2"
    assert "bogus: no such key" in machine.do("journalctl --unit swapd --lines 5")


def test_first_connection_starts_swapd_on_the_sockets_address(machine: Machine) -> None:
    machine.do(f"cd /root && set -ex && {block('Started by its first connection')}", 100)
    assert machine.show("ActiveState") == "inactive"
    assert "stand-in" in machine.do(f"curl -sS -m 100 {URL}/v1/models", 60)
    assert machine.show("ActiveState") == "active"
    machine.do("systemctl restart swapd", 60)
    assert complete(machine, "stand-in").endswith(" 200"), "a restart keeps the socket"
    machine.do("systemctl disable swapd.socket; systemctl stop swapd.socket swapd.service", 60)
    assert machine.run(f"curl -sS {URL}/health").code == 7


def test_users_unit_serves_with_the_users_own_files(machine: Machine) -> None:
    machine.do("systemctl stop swapd && useradd --create-home me && loginctl enable-linger me", 60)
    me = "runuser -u me -- env --chdir=/home/me HOME=/home/me XDG_RUNTIME_DIR=/run/user/$(id -u me)"
    machine.do(f"{me} mkdir -p /home/me/.local/bin /home/me/.local/share/pipx/venvs /home/me/.config/swapd")
    machine.do(f"{me} ln -s /usr/local/bin/swapd /home/me/.local/bin/swapd")  # as pipx would
    machine.do(f"{me} ln -s /opt/pipx/venvs/swapd /home/me/.local/share/pipx/venvs/swapd")
    machine.do("cp /root/swapd.toml /home/me/.config/swapd")
    machine.write("/tmp/commands", "set -ex\n" + block("For one user"))
    machine.wait("test -S /run/user/$(id -u me)/bus")
    machine.do(f"{me} bash /tmp/commands", 90)
    assert complete(machine, "stand-in").endswith(" 200")
    assert "ready: stand-in" in machine.do(f"{me} systemctl --user show -P StatusText swapd")
    machine.do(f"{me} systemctl --user stop swapd", 60)
    assert machine.run("pgrep -u me -f server.py").code == 1

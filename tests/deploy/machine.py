"""A virtual machine with a real systemd, on which swapd is installed as the page about systemd says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy import debian

PACKAGES = (
    "ca-certificates,curl,dbus,dbus-user-session,initramfs-tools,kmod,libgomp1,libpam-systemd,"
    "linux-image-cloud-amd64,man-db,pipx,procps,python3,python3-venv,systemd,systemd-sysv,udev"
)
BOOT_S = 180
AGENT = Path(__file__).with_name("agent.py")
AGENT_UNIT = """[Unit]
Description=Runs what the tests send
[Service]
ExecStart=/usr/bin/python3 /opt/agent.py
Environment=HOME=/root
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
"""
RULE = 'SUBSYSTEM=="virtio-ports", ATTR{name}=="swapd.test", SYMLINK+="virtio-ports/swapd.test"\n'


@dataclass(frozen=True)
class Ran:
    """A command's end, in the machine."""

    code: int
    text: str


class Machine:
    """A running virtual machine, and a line into it; with KVM if that can run a usual kernel here, else emulated."""

    def __init__(self, folder: Path, image: Path, kernel: Path, initrd: Path) -> None:
        self.console, self.line, self.log = folder / "console.log", folder / "line.sock", folder / "qemu.log"
        self.socket = socket.socket(socket.AF_UNIX)
        boot = (image, kernel, initrd)
        self.emulated = not (os.access("/dev/kvm", os.W_OK) and self._boot("kvm", boot, BOOT_S / 2))
        if self.emulated and not self._boot("tcg,thread=multi", boot, BOOT_S):
            raise AssertionError(f"no boot: {self.log.read_text()}\n{self.console.read_text()[-3000:]}")
        self.slowness = 5 if self.emulated else 1

    def _boot(self, accelerator: str, boot: tuple[Path, Path, Path], limit_s: float) -> bool:
        """Whether the agent answered in time; if not, nothing is left running."""
        command = _qemu(accelerator, *boot, self.line, self.console)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self.process.poll() is None and "KVM" not in self.log.read_text():
            time.sleep(0.2)
            if self._answers(end):
                return True
        self.close()
        return False

    def _answers(self, end: float) -> bool:
        with suppress(OSError):
            self.socket.close()
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(self.line))
            self.socket.sendall(json.dumps({"command": "true", "timeout_s": 5}).encode() + b"\n")
            self.socket.settimeout(0.5)
            while time.monotonic() < end and "KVM" not in self.log.read_text():
                with suppress(TimeoutError):
                    return bool(self.socket.recv(4096))
        return False

    def run(self, command: str, timeout_s: float = 30) -> Ran:
        """Run a shell command as root in the machine."""
        timeout_s *= self.slowness
        self.socket.settimeout(timeout_s + 10)
        self.socket.sendall(json.dumps({"command": command, "timeout_s": timeout_s}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            try:
                got = self.socket.recv(65536)
            except TimeoutError:
                got = b""
            assert got, f"no answer to {command!r}; the console ends:\n{self.console.read_text()[-3000:]}"
            answer += got
        return Ran(**json.loads(answer))

    def do(self, command: str, timeout_s: float = 30) -> str:
        """What a command printed; it must succeed."""
        ran = self.run(command, timeout_s)
        assert ran.code == 0, f"{command}: {ran.code}\n{ran.text}\n{self.run('journalctl -u swapd -n 30').text}"
        return ran.text.strip()

    def wait(self, command: str, timeout_s: float = 30) -> str:
        """Until a command succeeds, what it then printed."""
        end = time.monotonic() + timeout_s * self.slowness
        while (ran := self.run(command)).code:
            assert time.monotonic() < end, f"{command}: {ran.text}\n{self.run('journalctl -u swapd -n 30').text}"
            time.sleep(0.2)
        return ran.text.strip()

    def show(self, key: str, unit: str = "swapd") -> str:
        """A property of a unit."""
        return self.do(f"systemctl show --value --property={key} {unit}")

    def write(self, path: str, text: str) -> None:
        self.do(f"mkdir -p {os.path.dirname(path)} && printf %s {shlex.quote(text)} > {path}")

    def chat(self, model: str, address: str = "http://127.0.0.1:8080", tokens: int = 8) -> dict[str, Any]:
        """One answer of a model."""
        body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "Say hello"}]}
        text = self.do(f"curl -sS --max-time 25 {address}/v1/chat/completions --json {shlex.quote(json.dumps(body))}")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait(10)


def _qemu(accelerator: str, image: Path, kernel: Path, initrd: Path, line: Path, console: Path) -> list[str]:
    return [
        "qemu-system-x86_64", "-machine", "q35", "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "3G",
        "-display", "none", "-nodefaults", "-no-reboot", "-nic", "none", "-serial", f"file:{console}",
        "-kernel", str(kernel), "-initrd", str(initrd), "-append", "root=/dev/vda rw console=ttyS0 panic=-1",
        "-drive", f"file={image},if=virtio,format=raw,snapshot=on",
        "-device", "virtio-serial", "-chardev", f"socket,id=line,path={line},server=on,wait=off",
        "-device", "virtserialport,chardev=line,name=swapd.test",
    ]  # fmt: skip


def build(folder: Path) -> tuple[Path, Path, Path]:
    """A disk with swapd, an engine and a model, and its kernel and initrd."""
    root = folder / "root"
    debian.done(["cp", "-a", debian.base("machine", PACKAGES), root])
    debian.trust(root)
    _install(root, debian.wheel(folder))
    _furnish(root)
    image = folder / "disk.raw"
    with image.open("wb") as file:
        file.truncate(4 << 30)
    debian.done(["mkfs.ext4", "-q", "-d", root, image])
    kernel, initrd = (next((root / "boot").glob(f"{name}-*")) for name in ("vmlinuz", "initrd.img"))
    for path in (kernel, initrd):
        shutil.copy(path, folder)
    shutil.rmtree(root)
    return image, folder / kernel.name, folder / initrd.name


def _install(root: Path, wheel: Path) -> None:
    """``pipx install --global swapd`` while there is a network: the machine has none."""
    shutil.copy(wheel, root / "opt")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    debian.done(["chroot", root, "pipx", "install", "--global", f"/opt/{wheel.name}"], env=environ)


def _furnish(root: Path) -> None:
    """The engine, the model, and the agent's end of the line."""
    shutil.copytree(debian.engine(), root / "opt" / "llama", symlinks=True)
    models = root / "srv" / "models"
    models.mkdir(parents=True)
    shutil.copy(debian.demo_model(), models / "small.gguf")
    shutil.copy(AGENT, root / "opt" / "agent.py")
    system = root / "etc" / "systemd" / "system"
    (system / "agent.service").write_text(AGENT_UNIT)
    (system / "multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    (system / "multi-user.target.wants" / "agent.service").symlink_to("../agent.service")
    (root / "etc" / "udev" / "rules.d" / "50-line.rules").write_text(RULE)
    (root / "etc" / "hostname").write_text("machine\n")
    (root / "etc" / "fstab").write_text("")

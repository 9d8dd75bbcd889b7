"""A Docker daemon, base images of our own in place of those of registries, and swapd's compose files in use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import debian

UBUNTU = "swapd-test/ubuntu:24.04"
LLAMA = "swapd-test/llama.cpp:server"
OVERLAY = """services:
  swapd:
    image: swapd-test:${SWAPD_BACKEND}
    ports: !override
      - "127.0.0.1:0:8080"
"""
LLAMA_FILE = f"""FROM {UBUNTU}
RUN apt-get update && apt-get install -y libgomp1 curl
ENV LLAMA_ARG_HOST=0.0.0.0
COPY engine /app
WORKDIR /app
HEALTHCHECK CMD [ "curl", "-f", "http://localhost:8080/health" ]
ENTRYPOINT [ "/app/llama-server" ]
"""
"""As llama.cpp's own: what it sets must not reach swapd's models."""


def require() -> None:
    """Skip where there is no Docker, neither running nor to be started."""
    debian.require({"docker": "docker.io", "debootstrap": "debootstrap"})
    if subprocess.run(["docker", "info"], capture_output=True).returncode and not shutil.which("dockerd"):
        pytest.skip("no Docker daemon answers, and there is none to start (Debian package docker.io)")


@contextmanager
def daemon(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which ``docker`` finds one: that which runs, else one of our own."""
    environ = dict(os.environ)
    if subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        yield environ
        return
    bridged = Path("/sys/class/net/docker0").exists()
    environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    command = ["dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec",
               "--pidfile", folder / "pid", "--host", environ["DOCKER_HOST"]]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while subprocess.run(["docker", "info"], capture_output=True, env=environ).returncode:
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"dockerd does not start here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.2)
        yield environ
    finally:
        process.terminate()
        process.wait(30)
        if not bridged:
            subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def require_plugins(environ: Mapping[str, str]) -> None:
    """Skip without Compose 2.24 (``!override``, optional ``env_file``) and Buildx."""
    for words, package in (
        (["compose", "version", "--short"], "docker-compose"),
        (["buildx", "version"], "docker-buildx"),
    ):
        ran = subprocess.run(["docker", *words], capture_output=True, text=True, env=environ)
        version = re.search(r"(\d+)\.(\d+)", ran.stdout)
        if ran.returncode or not version or (words[0] == "compose" and tuple(map(int, version.groups())) < (2, 24)):
            pytest.skip(f"docker {words[0]} is missing or too old (Debian package {package}, of Debian 13 or later)")


class Host:
    """swapd's images and its compose project on a daemon."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.environ = {
            **environ,
            "COMPOSE_PROJECT_NAME": "swapd-test",
            "DOCKER_BUILDKIT": "1",
            "SWAPD_BACKEND": "slim",
            "SWAPD_CONFIG_DIR": str(folder / "config"),
            "SWAPD_MODELS_DIR": str(folder / "models"),
            "UBUNTU_IMAGE": UBUNTU,
            "LLAMA_IMAGE": LLAMA,
        }
        for name in ("config", "models"):
            (folder / name).mkdir()
        shutil.copy(debian.demo_model(), folder / "models" / "small.gguf")
        (folder / "overlay.yaml").write_text(OVERLAY)

    def docker(self, *words: str | Path, timeout_s: float = 60, **environ: str) -> str:
        """What a docker command printed."""
        return debian.done(["docker", *words], timeout_s, env={**self.environ, **environ}, cwd=debian.ROOT).strip()

    def compose(self, *words: str, timeout_s: float = 120, **environ: str) -> str:
        """``docker compose`` over the files of a host without a GPU."""
        files = ["docker/compose.yaml", "docker/compose.cpu.yaml", str(self.folder / "overlay.yaml")]
        return self.docker("compose", *(w for f in files for w in ("-f", f)), *words, timeout_s=timeout_s, **environ)

    def bases(self) -> None:
        """Make the images that the Dockerfile starts from."""
        root = self.folder / "ubuntu"
        debian.done(["cp", "-a", debian.base("image", "ca-certificates"), root])
        debian.trust(root)
        tar = self.folder / "ubuntu.tar"
        debian.done(["tar", "-C", root, "--exclude=./proc/*", "--exclude=./sys/*", "-cf", tar, "."])
        self.docker("import", tar, UBUNTU)
        context = self.folder / "llama"
        shutil.copytree(debian.engine(), context / "engine", symlinks=True)
        (context / "Dockerfile").write_text(LLAMA_FILE)
        self.docker("build", "--tag", LLAMA, context, timeout_s=300)

    def configure(self, text: str) -> None:
        (self.folder / "config" / "swapd.toml").write_text(text)

    @property
    def container(self) -> str:
        return self.compose("ps", "--all", "--quiet", "swapd")

    def state(self) -> dict[str, Any]:
        """What Docker knows of swapd's container; its restarts as ``Restarts``."""
        (found,) = json.loads(self.docker("inspect", self.container))
        return {**found["State"], "Restarts": found["RestartCount"]}

    def wait(self, health: str, timeout_s: float = 60) -> None:
        """Until Docker calls the container so."""
        end = time.monotonic() + timeout_s
        while (state := self.state())["Health"]["Status"] != health or not state["Running"]:
            assert time.monotonic() < end, f"{state}\n{self.compose('logs', '--tail', '20')}"
            time.sleep(0.5)

    def ask(self, path: str, body: object = None, timeout_s: float = 60) -> Any:
        """An open answer of the published port."""
        address = self.compose("port", "swapd", "8080")
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://{address}{path}", data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout_s)

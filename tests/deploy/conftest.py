"""One machine and one set of images for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy import debian, docker_host, machine


@pytest.fixture(scope="session")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[machine.Machine]:
    """A machine in which swapd is installed, but nothing of systemd's yet."""
    debian.require({"debootstrap": "debootstrap", "qemu-system-x86_64": "qemu-system-x86"})
    debian.engine(), debian.demo_model()
    folder = tmp_path_factory.mktemp("machine")
    running = machine.Machine(folder, *machine.build(folder))
    yield running
    running.close()


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker_host.Host]:
    """A daemon with the slim image, as compose builds it."""
    docker_host.require()
    debian.engine(), debian.demo_model()
    with docker_host.daemon(tmp_path_factory.mktemp("dockerd")) as environ:
        docker_host.require_plugins(environ)
        found = docker_host.Host(tmp_path_factory.mktemp("docker"), environ)
        found.bases()
        found.compose("build", timeout_s=600)
        yield found
        found.compose("down", "--volumes")
        images = found.docker(
            "images", "--quiet", "--filter", "reference=swapd-test*", "--filter", "reference=swapd-test/*"
        )
        found.docker("rmi", "--force", *set(images.split()))

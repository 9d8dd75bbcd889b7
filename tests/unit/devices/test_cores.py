"""Physical cores, not hyper-threads; in a container those of its CPU set."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.devices.host import physical_cores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two packages of two cores with two threads each; threads of a core are four numbers apart."""
    for cpu in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    return tmp_path


def test_threads_of_one_core_count_once(root: Path) -> None:
    assert physical_cores(root, range(8)) == 4


def test_only_cores_that_may_be_used_count(root: Path) -> None:
    assert physical_cores(root, [0, 4]) == 1
    assert physical_cores(root, [0, 1, 4]) == 2


def test_a_machine_that_does_not_say_is_unknown(root: Path) -> None:
    assert physical_cores(root, [99]) == 0

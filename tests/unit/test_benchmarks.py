"""The benchmarks' stand-ins have what the ports ask for: no type checker reads them."""

from __future__ import annotations

import pytest
from benchmarks.agents.real import Card
from benchmarks.real import ReadyLauncher

from swapd.supervisor.ports import DeviceMonitor, FootprintStore, Launcher


@pytest.mark.parametrize("stand_in", [ReadyLauncher, Card])
@pytest.mark.parametrize("port", [DeviceMonitor, FootprintStore, Launcher])
def test_stand_in_has_every_method_of_its_port(stand_in: type, port: type) -> None:
    assert {name for name in vars(port) if not name.startswith("_")} <= set(dir(stand_in))

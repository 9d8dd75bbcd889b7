"""Random worlds, judged by the world and not by the ledger under test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings

from tests.unit.core.judged_world import Judge, WorldSpec, worlds

WORLDS = int(os.environ.get("SWAPD_WORLDS", "2000"))
PHASES = [Phase.generate] if os.environ.get("SWAPD_NO_SHRINK") else list(Phase)


@settings(phases=PHASES, max_examples=WORLDS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(worlds())
def test_no_invariant_is_violated_in_random_worlds(world: WorldSpec) -> None:
    assert Judge(world).run() == []

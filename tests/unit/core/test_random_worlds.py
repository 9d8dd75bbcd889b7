"""Random worlds, judged by the world and not by the ledger under test."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.unit.core.judged_world import Judge, WorldSpec, worlds

WORLDS = int(os.environ.get("SWAPD_WORLDS", "2000"))
SEED = int(os.environ.get("SWAPD_SEED", "0"))
PARTS = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_is_violated_in_random_worlds(part: int) -> None:
    @seed(SEED * PARTS + part)
    @settings(max_examples=WORLDS // PARTS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(worlds())
    def run(world: WorldSpec) -> None:
        assert Judge(world).run() == []

    run()

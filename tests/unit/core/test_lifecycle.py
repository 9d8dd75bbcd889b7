"""The state machine is a table, and the docs draw it from the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.core.lifecycle import TRANSITIONS, IllegalTransition, InstanceState, Step, advance, diagram

ROOT = Path(__file__).parents[3]


def test_a_pair_that_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(IllegalTransition, match="STOPPED does not take DRAIN"):
        advance(InstanceState.STOPPED, Step.DRAIN)


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(InstanceState)
    assert {source for source, _ in TRANSITIONS} == set(InstanceState)


def test_any_state_with_a_living_process_ends_when_it_exits() -> None:
    for state in (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING, InstanceState.STOPPING):
        assert advance(state, Step.EXIT) is InstanceState.RELEASING
    assert advance(InstanceState.LOST, Step.EXIT) is InstanceState.STOPPED


def test_the_diagram_in_the_docs_is_the_table() -> None:
    assert diagram() in (ROOT / "docs" / "why" / "states.md").read_text()

"""How long a model is held for its agent's next turn."""

from __future__ import annotations

import pytest

from swapd.core.linger import hold_s


def test_a_configured_linger_is_taken_as_it_is() -> None:
    assert hold_s(30.0, [1.0, 2.0, 3.0], 5.0) == 30.0
    assert hold_s(0.0, [1.0, 2.0, 3.0], 5.0) == 0.0


@pytest.mark.parametrize(("bring_back", "held"), [(1.2, 1.2), (20.0, 8.0)])
def test_with_fewer_than_three_gaps_it_holds_what_a_reload_costs_but_not_long(bring_back: float, held: float) -> None:
    assert hold_s("auto", [2.0, 2.0], bring_back) == held


def test_it_holds_a_little_longer_than_the_gaps_it_has_seen() -> None:
    assert hold_s("auto", [1.0, 2.0, 3.0], 20.0) == pytest.approx(3.6)


def test_a_gap_that_is_worth_no_waiting_is_not_waited_for() -> None:
    # Holding 2 s for each of three long gaps costs more than one reload saves.
    assert hold_s("auto", [60.0, 60.0, 60.0, 2.0], 3.0) == 0.0


def test_a_cheap_model_is_never_held_longer_than_its_reload() -> None:
    assert hold_s("auto", [1.0, 1.0, 1.0], 1.1) == pytest.approx(1.1)


def test_long_gaps_do_not_hide_the_short_ones() -> None:
    assert hold_s("auto", [2.0, 2.0, 2.0, 90.0], 20.0) == pytest.approx(2.4)

"""Law L1 as arithmetic: what is mapped against the RAM left to cache it."""

from __future__ import annotations

from swapd.planner.page_cache import cache_room, judge_cache
from swapd.units import GIB, MIB

ROOM = cache_room(15 * GIB, [2 * GIB, 900 * MIB])


def test_the_file_that_fitted_fits_and_the_one_that_thrashed_does_not() -> None:
    assert judge_cache([11_700_000_000], ROOM).fits
    verdict = judge_cache([17_700_000_000], ROOM)
    assert not verdict.fits
    assert verdict.text.startswith("16.5 GiB of weights are read through the page cache, which has room for 12.1 GiB")
    assert "23 tokens/s" in verdict.text and "2.8" in verdict.text


def test_models_that_run_together_share_the_cache() -> None:
    assert judge_cache([11 * GIB], ROOM).fits and judge_cache([2 * GIB], ROOM).fits
    assert not judge_cache([11 * GIB, 2 * GIB], ROOM).fits


def test_what_maps_nothing_fits_even_where_no_room_is_left() -> None:
    full = cache_room(8 * GIB, [9 * GIB])
    assert judge_cache([], full).fits and not judge_cache([1], full).fits
    assert "room for 0 MiB" in judge_cache([1], full).text

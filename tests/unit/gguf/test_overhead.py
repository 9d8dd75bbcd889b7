"""What a GPU holds besides buffers."""

from __future__ import annotations

import pytest

from swapd.gguf.overhead import overhead_bytes, rounded
from tests.unit.gguf.measured import MIB, prediction

GIVEN = int(597.5 * MIB)


@pytest.mark.parametrize(
    ("resident", "visited", "pinned", "mib"),
    [(True, True, 0, 594.8), (False, False, 0, 526.8), (False, True, 0, 532.8), (True, True, 4352 * MIB, 602.8)],
)
def test_context_and_kernels(resident: bool, visited: bool, pinned: int, mib: float) -> None:
    found = overhead_bytes(GIVEN, resident=resident, visited=visited, pinned=pinned, contexts=1)
    assert found / MIB == pytest.approx(mib, abs=1)


def test_allocations_come_in_pieces_of_two_mib() -> None:
    assert [rounded(size) // MIB for size in (0, 1, 2 * MIB, 2 * MIB + 1)] == [0, 2, 2, 4]


@pytest.mark.parametrize(
    ("model", "args", "mib"),
    [
        ("q8b", "-c 8192", 12),
        ("q8b", "-c 32768 -ub 2048", 28),
        ("moe", "-c 8192", 110),
        ("moe", "-c 8192 -ub 2048 -b 2048", 136),
        ("oss", "-c 8192 -ub 2048 -b 2048", 126),
        ("f16m", "-c 4096", 108),
        ("hyb", "-c 4096", 116),
        ("hyb", "-c 8192 --spec-type draft-mtp", 222),
    ],
)
def test_growth_is_near_what_was_measured(model: str, args: str, mib: int) -> None:
    assert prediction(model, f"-ngl 99 -np 1 {args}").devices[0].growth / MIB == pytest.approx(mib, abs=10)

"""Best fit, in-place results, and memory freed after the last use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.gguf.allocator import Allocator, Arena
from swapd.gguf.graph import Graph, Node, like, make, view
from swapd.gguf.graph import given as supplied


def sizes(last: Node) -> list[int]:
    graph = Graph()
    graph.expand(last)
    for node in [*graph.leafs, *graph.nodes]:
        node.backend = 0
    return Allocator(2, host_alignment=32).run(graph.leafs, graph.nodes, [0] * len(graph.nodes))


def test_a_sum_overwrites_its_first_term() -> None:
    x = supplied((64,))
    assert sizes(like("add", make("mul_mat", (64,), x), x)) == [512, 0]


def test_a_result_that_may_not_overwrite_stands_beside_its_source() -> None:
    assert sizes(make("mul_mat", (64,), make("mul_mat", (64,), supplied((64,))))) == [512, 0]
    assert sizes(
        make("glu", (64,), make("mul_mat", (64,), supplied((64,))), make("mul_mat", (64,), supplied((64,))))
    ) == [768, 0]


def test_a_view_keeps_its_tensor_alive() -> None:
    x = make("mul_mat", (64,), supplied((64,)))
    late = view(x, (8, 8))
    y = make("mul_mat", (64,), make("mul_mat", (64,), x))
    assert sizes(make("glu", (64,), y, late)) > sizes(make("glu", (64,), y, y))


def test_outputs_are_never_freed() -> None:
    x = make("mul_mat", (64,), supplied((64,)))
    x.is_output = True
    assert sizes(make("mul_mat", (64,), make("mul_mat", (64,), x))) == [768, 0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_blocks_never_overlap_and_all_comes_back(lengths: list[int], random: object) -> None:
    arena = Arena(128)
    held: list[tuple[int, int]] = []
    for length in lengths:
        start = arena.take(length)
        padded = arena.padded(length)
        assert all(start + padded <= at or at + size <= start for at, size in held)
        held.append((start, padded))
        if len(held) > 5:
            arena.give(*held.pop(random.randrange(len(held))))  # type: ignore[attr-defined]
    for at, size in held:
        arena.give(at, size)
    assert arena.take(arena.peak) == 0

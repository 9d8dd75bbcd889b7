"""Where one websocket frame ends, however its bytes come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.proxy.frames import FrameEdge


def frame(size: int, masked: bool) -> bytes:
    mask = 0x80 if masked else 0
    if size < 126:
        head = bytes([0x82, mask | size])
    elif size < 1 << 16:
        head = bytes([0x82, mask | 126]) + size.to_bytes(2)
    else:
        head = bytes([0x82, mask | 127]) + size.to_bytes(8)
    return head + (b"mask" if masked else b"") + b"\x88" * size


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 125, 126, 300, 65535, 65536, 70000]), st.booleans()), max_size=6),
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
)
def test_edges_are_found_wherever_the_bytes_are_cut(frames: list[tuple[int, bool]], cuts: list[int]) -> None:
    wire, edges = b"", {0}
    for size, masked in frames:
        wire += frame(size, masked)
        edges.add(len(wire))
    edge, position, turn = FrameEdge(), 0, 0
    while position < len(wire):
        step = cuts[turn % len(cuts)]
        edge.feed(wire[position : position + step])
        position, turn = min(position + step, len(wire)), turn + 1
        assert edge.at_edge == (position in edges)
    assert edge.at_edge

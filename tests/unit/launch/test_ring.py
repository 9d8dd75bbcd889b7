from __future__ import annotations

import asyncio

from swapd.launch.ring import OutputRing, Tail


def test_ring_keeps_the_last_bytes_only() -> None:
    ring = OutputRing(capacity_bytes=10)
    for piece in (b"0123456", b"789abc", b"d"):
        ring.append(piece)
    assert ring.snapshot() == b"456789abcd"


def test_a_piece_larger_than_the_ring_leaves_its_end() -> None:
    ring = OutputRing(capacity_bytes=4)
    ring.append(b"x" * 100 + b"tail")
    assert ring.snapshot() == b"tail"


async def test_follower_gets_what_is_kept_then_news_in_order() -> None:
    ring = OutputRing(capacity_bytes=100)
    ring.append(b"old ")
    follower = ring.follow()
    assert await anext(follower) == b"old "
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    ring.append(b"new")
    assert await waiting == b"new"
    ring.close()
    assert [piece async for piece in follower] == []


async def test_slow_follower_loses_bytes_never_order() -> None:
    ring = OutputRing(capacity_bytes=4)
    follower = ring.follow()
    ring.append(b"ab")
    assert await anext(follower) == b"ab"
    ring.append(b"cdefgh")
    assert await anext(follower) == b"efgh"
    await follower.aclose()


async def test_a_follower_that_leaves_is_forgotten() -> None:
    ring = OutputRing()
    waiting = asyncio.ensure_future(anext(ring.follow()))
    await asyncio.sleep(0)
    assert len(ring._waiting) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert ring._waiting == set()


def test_tail_decodes_whatever_a_child_writes() -> None:
    tail = Tail(capacity_bytes=8)
    tail.append(b"a long line \xff\xfe ok")
    assert tail.text() == "e \ufffd\ufffd ok" or len(tail.text()) == 8

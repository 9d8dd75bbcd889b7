from __future__ import annotations

import asyncio

import pytest

from swapd.proxy.stepping import Driven, resumed


async def test_driven_coroutine_tells_when_it_is_done() -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done: list[int] = []

    async def work() -> int:
        await asyncio.sleep(0)
        return await gate + 1

    driven = Driven(work(), lambda: done.append(1))
    await asyncio.sleep(0.01)
    assert not driven.done
    gate.set_result(41)
    await asyncio.sleep(0.01)
    assert (driven.done, driven.result(), done) == (True, 42, [1])


async def test_driven_coroutine_that_raises_raises_at_the_result() -> None:
    async def work() -> None:
        raise ValueError("x")

    driven = Driven(work(), lambda: None)
    with pytest.raises(ValueError, match="x"):
        driven.result()


async def test_closed_coroutine_ends_where_it_waits_and_calls_nobody() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    async def work() -> None:
        try:
            await gate
        finally:
            ended.append("finally")

    driven = Driven(work(), lambda: ended.append("done"))
    driven.close()
    gate.set_result(None)
    await asyncio.sleep(0.01)
    assert ended == ["finally"]


async def test_stepped_coroutine_is_taken_over_by_a_task() -> None:
    gates = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def work() -> str:
        with pytest.raises(KeyError):
            await gates[0]
        await gates[1]
        return "end"

    coro = work()
    waits_for = coro.send(None)
    asyncio.get_running_loop().call_later(0.01, gates[0].set_exception, KeyError("k"))
    asyncio.get_running_loop().call_later(0.02, gates[1].set_result, None)
    assert await resumed(coro, waits_for) == "end"

"""Coroutines driven without a task of their own: what keeps the relay's fast path short.

uvicorn's ``send`` suspends only under back-pressure and its ``receive`` only until
the client hangs up. A task for each would cost more than all the rest of a
request, so the one is stepped once right where bytes come in, and the other is
driven by the callback of the future it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Driven(Generic[T]):
    """A coroutine driven to its end by callbacks; ``on_done`` is called once, unless ``close`` came first."""

    __slots__ = ("_coro", "_error", "_on_done", "_value", "_waits_for", "done")

    def __init__(self, coro: Coroutine[Any, Any, T], on_done: Callable[[], None]) -> None:
        self.done = False
        self._coro = coro
        self._on_done = on_done
        self._value: T
        self._error: Exception | None = None
        self._waits_for: asyncio.Future[Any] | None = None
        self._step()

    def result(self) -> T:
        """What the coroutine returned; raises what it raised. Only once it is done."""
        if self._error is not None:
            raise self._error
        return self._value

    def close(self) -> None:
        """Stop driving; the coroutine ends where it waits."""
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is not None:
            waits_for.remove_done_callback(self._step)
        self.done = True
        self._coro.close()

    def _step(self, _: object = None) -> None:
        self._waits_for = None
        if self.done:
            return
        try:
            waits_for = self._coro.send(None)
        except StopIteration as stop:
            self.done, self._value = True, stop.value
            self._on_done()
        except Exception as error:  # noqa: BLE001 - kept for whoever asks for the result
            self.done, self._error = True, error
            self._on_done()
        else:
            self._wait(waits_for)

    def _wait(self, waits_for: asyncio.Future[Any] | None) -> None:
        if waits_for is None:  # a bare yield: once more at the next turn of the loop
            asyncio.get_running_loop().call_soon(self._step)
            return
        waits_for._asyncio_future_blocking = False  # what a task does to say that it has seen the future
        waits_for.add_done_callback(self._step)
        self._waits_for = waits_for


@coroutine
def resumed(coro: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that was stepped once, for a task to await; ``waits_for``: what that step yielded."""
    while True:
        try:
            got = yield waits_for
        except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
            value: Any = error
            step: Callable[[Any], Any] = coro.throw
        else:
            value, step = got, coro.send
        try:
            waits_for = step(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

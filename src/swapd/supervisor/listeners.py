"""Who follows the changes of models' states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

CHANGES_KEPT: Final = 256
"""So many a slow listener may lag behind; older ones are dropped."""


class Listeners:
    """A queue for each; telling never waits."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Mapping[str, Any]]] = set()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def tell(self, change: Mapping[str, Any]) -> None:
        """Hand a change to all."""
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(change)

    async def follow(self) -> AsyncIterator[Mapping[str, Any]]:
        """The changes from now on, until closed."""
        queue: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(CHANGES_KEPT)
        self._queues.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)

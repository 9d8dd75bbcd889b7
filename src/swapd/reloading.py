"""A configuration that is replaced while swapd serves: read, compared, put in force; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from swapd.config.diff import Changes, changes
from swapd.config.resolve import Resolved
from swapd.errors import ConfigError
from swapd.proxy.settings import ProxySettings

SETTLE_S: Final = 0.1
"""Editors write in pieces: the file is read this long after its last change."""

WATCH_STEP_MS: Final = 1_000
"""The watcher's thread looks this often whether the kernel has told it anything."""

LOOK_ANYWAY_MS: Final = 5_000
"""The file is read this often even if nothing was told: network file systems tell nothing."""

log = structlog.get_logger(__name__)


class Reloader:
    """``read`` gives the configuration anew, ``put_in_force`` makes it hold; both are called one after another."""

    def __init__(
        self,
        current: Resolved,
        settings: ProxySettings,
        *,
        read: Callable[[], Resolved],
        put_in_force: Callable[[Resolved, Changes], None],
    ) -> None:
        self._current, self._settings = current, settings
        self._read, self._put_in_force = read, put_in_force
        self._turn = asyncio.Lock()
        self._asked = asyncio.Event()
        settings.reload = self.reload

    async def reload(self) -> dict[str, Any]:
        """What changed, as the API tells it.

        Raises:
            ConfigError: the file has mistakes; the configuration before it stays, and ``status`` shows them.
        """
        async with self._turn:
            try:
                new = await asyncio.to_thread(self._read)
            except ConfigError as error:
                self._settings.config_error = error.message
                log.error("the configuration was not reloaded", error=error.message)
                raise
            found = changes(self._current, new)
            self._put_in_force(new, found)
            self._current, self._settings.config_error = new, None
            told = {key: list(value) for key, value in asdict(found).items()}
            log.info("configuration reloaded", **told)
            return told | {"warnings": list(new.warnings)}

    def ask(self) -> None:
        """Reload soon (SIGHUP)."""
        self._asked.set()

    async def watch(self) -> None:
        """Reload whenever asked, and whenever the file's content changes, however it was replaced."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_file())
            while True:
                await self._asked.wait()
                self._asked.clear()
                await self._quietly()

    async def _quietly(self) -> None:
        try:
            await self.reload()
        except ConfigError:
            return
        except Exception:  # a bug in putting it in force must not end the server
            log.exception("reload failed")

    async def _watch_file(self) -> None:
        path = self._current.path
        if path is None:
            return
        seen = _digest(path)
        try:
            async for _ in _touched(path):
                await asyncio.sleep(SETTLE_S)
                now = _digest(path)
                if now is not None and now != seen:
                    seen = now
                    self.ask()
        except (OSError, RuntimeError) as error:  # RuntimeError: what watchfiles makes of the kernel's errors
            log.warning("the file is not watched: reload by SIGHUP or swapd reload", path=str(path), error=str(error))


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def _folders(path: Path) -> set[str]:
    return {str(path.absolute().parent), str(path.resolve().parent)}


async def _touched(path: Path) -> AsyncIterator[None]:
    """Whenever something happens beside the file, or beside what it links to (a ConfigMap's folder is swapped)."""
    try:
        from watchfiles import awatch
    except ImportError:
        log.warning("watchfiles is not installed: reload by SIGHUP or swapd reload")
        return
    async for _ in awatch(
        *_folders(path), recursive=False, step=WATCH_STEP_MS, rust_timeout=LOOK_ANYWAY_MS, yield_on_timeout=True
    ):
        yield None

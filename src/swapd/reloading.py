"""A configuration that is replaced while swapd serves: read, compared, put in force; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from swapd.config.diff import Changes, changes
from swapd.config.resolve import Resolved
from swapd.errors import ConfigError
from swapd.proxy.settings import ProxySettings
from swapd.units import format_duration

SETTLE_S: Final = 0.1
"""Editors write in pieces: the file is read this long after its last change."""

LOOK_ANYWAY_S: Final = 10.0
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
        self._told = current
        self._read, self._put_in_force = read, put_in_force
        self._turn = asyncio.Lock()
        self._asked = asyncio.Event()
        settings.reload = self.reload

    async def reload(self) -> dict[str, Any]:
        """What changed since somebody was last told, as the API tells it: a change may have been seen and made before.

        Raises:
            ConfigError: the file has mistakes; the configuration before it stays, and ``status`` shows them.
        """
        new = await self._take_in()
        found, self._told = changes(self._told, new), new
        return _listed(found) | {"warnings": list(new.warnings)}

    async def _take_in(self) -> Resolved:
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
            log.info("configuration reloaded", **_listed(found))
            return new

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
            await self._take_in()
        except ConfigError:
            return
        except Exception:  # a bug in putting it in force must not end the server
            log.exception("reload failed")

    async def _watch_file(self) -> None:
        path = self._current.path
        if path is None:
            return
        seen: str | None = self._current.text
        async for _ in _touched(path):
            now = _content(path)
            if now is not None and now != seen:
                seen = now
                self.ask()


def _listed(found: Changes) -> dict[str, Any]:
    return {key: list(value) for key, value in asdict(found).items()}


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


async def _touched(path: Path) -> AsyncIterator[None]:
    """At once, whenever another file is there or its content may be another, and every ``LOOK_ANYWAY_S``."""
    told = asyncio.Event()
    with _told_by_the_kernel(path, told.set):
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), LOOK_ANYWAY_S)
                await asyncio.sleep(SETTLE_S)
            told.clear()


@contextlib.contextmanager
def _told_by_the_kernel(path: Path, tell: Callable[[], None]) -> Iterator[None]:
    """Calls ``tell`` in the loop when something happened to the file; nothing wakes while nothing happens.

    The folders are watched, of the file and of what it links to: editors replace it, and
    a ConfigMap's is swapped as a whole. What else goes on there is no news.
    """
    from watchdog import events
    from watchdog.observers import Observer

    loop = asyncio.get_running_loop()

    class Handler(events.FileSystemEventHandler):
        seen = _identity(path)

        def on_any_event(self, event: events.FileSystemEvent) -> None:
            before, self.seen = self.seen, _identity(path)
            if self.seen != before:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(tell)

    observer, handler = Observer(), Handler()
    news: list[type[events.FileSystemEvent]] = [events.FileClosedEvent, events.FileCreatedEvent, events.FileMovedEvent]
    try:
        for folder in {path.absolute().parent, path.resolve().parent}:
            observer.schedule(handler, str(folder), event_filter=news)
        observer.start()
    except OSError as error:
        observer.unschedule_all()
        text = f"the kernel does not tell of changes; the file is read every {format_duration(LOOK_ANYWAY_S)} instead"
        log.warning(text, path=str(path), error=str(error))
        yield
        return
    try:
        yield
    finally:
        observer.stop()


def _identity(path: Path) -> tuple[int, ...] | None:
    """Which file it is, and when it was last written."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

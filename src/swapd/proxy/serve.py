"""uvicorn, with our own signals and shutdown: children are stopped before it waits for any stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import uvicorn

from swapd.proxy.asgi import App
from swapd.proxy.calm import settle
from swapd.proxy.http import HttpProtocol
from swapd.proxy.listen import Address, bind
from swapd.proxy.notify import Notifier, notified
from swapd.supervisor.pool import Supervisor

KEEP_ALIVE_S: Final = 120
"""uvicorn's 5 s would reset agents between turns."""
CALM_AFTER_S: Final = 0.5
CLOSE_S: Final = 2
"""What is still open when the children are gone gets this long."""
_CUT: Final = "ASGI callable returned without completing response."


class Server(uvicorn.Server):
    """uvicorn without its signal handlers and its tick: ``proxy.http`` dates each answer itself."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening
        self._leave = asyncio.Event()

    def leave(self) -> None:
        """Stop listening and close; every connection gets ``CLOSE_S``."""
        self.should_exit = True
        self._leave.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()
        asyncio.get_running_loop().call_later(CALM_AFTER_S, settle)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._leave.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(
    app: App,
    listen: Address,
    supervisor: Supervisor,
    on_listening: Callable[[str], None],
    sockets: Sequence[socket.socket] | None = None,
    *,
    is_inherited: bool = False,
) -> None:
    """Serve until a signal; returns when the children are stopped and the connections closed.

    The first SIGTERM or SIGINT stops admitting, drains and stops the children
    (``Supervisor.shutdown``), then closes the server. A second one ends at once.
    ``on_listening`` is told the address. ``sockets``: those of ``listen``, if they are bound already;
    ``is_inherited``: by a service manager, whose they stay.

    Raises:
        SwapdError: if the address is taken.
    """
    sockets = list(sockets or bind(listen))
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    notifier = Notifier()

    def listening() -> None:
        url = url_of(listen, sockets)
        on_listening(url)
        notifier.ready(url)

    server = Server(server_config(app), listening)
    signalled: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.put_nowait, None)
    try:
        async with notified(notifier, supervisor), asyncio.TaskGroup() as group:
            watch = group.create_task(_obey(signalled, supervisor, server, notifier))
            await server.serve(sockets=sockets)
            watch.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if listen.path and not is_inherited:
            with contextlib.suppress(OSError):
                os.unlink(listen.path)


def url_of(listen: Address, sockets: Sequence[socket.socket]) -> str:
    """What a client on this machine would be given: an ``http`` URL, or the socket's path."""
    if listen.path:
        return listen.path
    host = "127.0.0.1" if listen.host in ("", "0.0.0.0", "::") else listen.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{sockets[0].getsockname()[1]}"


async def _obey(signalled: asyncio.Queue[None], supervisor: Supervisor, server: Server, notifier: Notifier) -> None:
    """On the first signal in order, on the second at once."""
    await signalled.get()
    notifier.stopping()
    async with asyncio.TaskGroup() as group:
        group.create_task(_shut_down(supervisor, server))
        await signalled.get()
        supervisor.shutdown_now()
        server.force_exit = True
        server.leave()


async def _shut_down(supervisor: Supervisor, server: Server) -> None:
    await supervisor.shutdown()
    server.leave()


def server_config(app: App) -> uvicorn.Config:
    options: dict[str, Any] = {
        "http": HttpProtocol,
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "date_header": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": CLOSE_S,
    }
    return uvicorn.Config(app, **options)


def _is_news(record: logging.LogRecord) -> bool:
    """An answer that is cut on purpose is no error of the server's."""
    return record.getMessage() != _CUT

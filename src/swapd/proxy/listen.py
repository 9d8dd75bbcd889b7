"""The sockets of an address to listen at."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Final

from swapd.config.listen import Address as Address
from swapd.config.listen import parse_listen as parse_listen
from swapd.errors import SwapdError

BACKLOG: Final = 2048


def bind(address: Address) -> list[socket.socket]:
    """Sockets that listen there.

    Raises:
        SwapdError: if the address is taken or cannot be used.
    """
    try:
        return [_bind_unix(address.path)] if address.path else _bind_tcp(address)
    except OSError as error:
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise SwapdError(f"cannot listen at {address}: {why}") from error


def _bind_tcp(address: Address) -> list[socket.socket]:
    if not address.host:
        return [_bind_all(address.port)]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            sockets.append(_listening(family, (where[0], port, *where[2:])))
            port = sockets[0].getsockname()[1]  # port 0: the same free one for every family
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


def _bind_all(port: int) -> socket.socket:
    """IPv6 and IPv4 at once; IPv4 alone where the machine has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


def _listening(family: int, where: tuple[str | int, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(where)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _bind_unix(path: str) -> socket.socket:
    if _is_stale(path):
        os.unlink(path)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(path)
        os.chmod(path, 0o660)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _is_stale(path: str) -> bool:
    """A socket file whose server has gone."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(path) == errno.ECONNREFUSED

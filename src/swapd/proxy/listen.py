"""The sockets of an address to listen at."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping
from typing import Final

from swapd.config.listen import Address as Address
from swapd.config.listen import parse_listen as parse_listen
from swapd.errors import SwapdError

BACKLOG: Final = 2048
FIRST_INHERITED_FD: Final = 3


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


def inherited(environ: Mapping[str, str] = os.environ, first_fd: int = FIRST_INHERITED_FD) -> list[socket.socket]:
    """Sockets at which a service manager listens for us (socket activation); none if it does not.

    They stay the manager's: no child gets them, and a socket's path is not removed at the end.

    Raises:
        SwapdError: if one of them is no listening stream socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environ.get("LISTEN_FDS", "")
    fds = range(first_fd, first_fd + (int(count) if count.isdigit() else 0))
    return [_adopt(fd) for fd in fds]


def _adopt(fd: int) -> socket.socket:
    try:
        one = socket.socket(fileno=fd)
        listens = one.type == socket.SOCK_STREAM and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise SwapdError(f"descriptor {fd} of LISTEN_FDS is no socket: {error.strerror}") from error
    if not listens:
        raise SwapdError(f"descriptor {fd} of LISTEN_FDS is no listening stream socket (Accept=no, ListenStream=…)")
    os.set_inheritable(fd, False)  # noqa: FBT003
    os.set_blocking(fd, False)
    return one


def address_of(one: socket.socket) -> Address:
    """Where a socket listens."""
    name = one.getsockname()
    if one.family == socket.AF_UNIX:
        path = name.decode() if isinstance(name, bytes) else name
        return Address(path="@" + path[1:] if path.startswith("\0") else path)
    return Address(host=name[0], port=name[1])


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

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from swapd.errors import ConfigError, SwapdError
from swapd.proxy.listen import Address, bind, parse_listen


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("8080", Address(host="127.0.0.1", port=8080), True),
        (":8080", Address(port=8080), False),
        ("127.0.0.1:80", Address(host="127.0.0.1", port=80), True),
        ("127.0.0.9:80", Address(host="127.0.0.9", port=80), True),
        ("localhost:80", Address(host="localhost", port=80), True),
        ("box.lan:80", Address(host="box.lan", port=80), False),
        ("0.0.0.0:80", Address(host="0.0.0.0", port=80), False),
        ("[::1]:80", Address(host="::1", port=80), True),
        ("[::]:80", Address(host="::", port=80), False),
        ("/run/swapd.sock", Address(path="/run/swapd.sock"), False),
    ],
)
def test_forms_of_an_address(text: str, address: Address, loopback: bool) -> None:
    assert parse_listen(text) == address
    assert address.is_loopback is loopback


@pytest.mark.parametrize(
    "text", ["", "abc", "host:", "host:http", "::1:80", "1:2:3", "99999", "host:-1", "relative.sock"]
)
def test_what_is_no_address_names_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="write '8080'"):
        parse_listen(text)


def test_taken_port_is_told_plainly() -> None:
    first = bind(Address(host="127.0.0.1"))
    port = first[0].getsockname()[1]
    with pytest.raises(SwapdError, match=f"cannot listen at 127.0.0.1:{port}: another program listens there"):
        bind(Address(host="127.0.0.1", port=port))
    for one in first:
        one.close()


def test_all_interfaces_take_both_families() -> None:
    sockets = bind(Address())
    with socket.create_connection(("127.0.0.1", sockets[0].getsockname()[1])):
        pass
    for one in sockets:
        one.close()


def test_stale_socket_file_is_replaced_and_a_live_one_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    bind(Address(path=path))[0].close()
    live = bind(Address(path=path))
    with pytest.raises(SwapdError, match="another program listens there"):
        bind(Address(path=path))
    live[0].close()


def test_ordinary_file_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(SwapdError):
        bind(Address(path=str(path)))
    assert path.read_text() == "data"

from __future__ import annotations

import pytest

from swapd.errors import Forbidden, Unauthorized
from swapd.proxy.keys import Gatekeeper
from swapd.proxy.settings import ProxySettings


@pytest.mark.parametrize(
    ("path", "admin"),
    [
        ("/api/models/a/load", True),
        ("/api/models/org/m/unload", True),
        ("/api/models/a/logs", True),
        ("/api/models//unload", True),
        ("/api/models/line\nbreak/logs", True),
        ("/api/unload", True),
        ("/api/captures/r1", True),
        ("/api/models/unload/a", True),
        ("/unload", True),
        ("/logs/stream/a", True),
        ("/models/load", True),
        ("/api/status", False),
        ("/api/explain/a", False),
        ("/v1/models", False),
        ("/upstream/a/load", False),
    ],
)
def test_what_needs_an_admin_key(path: str, admin: bool) -> None:
    gate = Gatekeeper(ProxySettings(api_keys=("k",), admin_keys=("boss",)))
    gate.check_key(path, {b"x-api-key": b"boss"})
    if admin:
        with pytest.raises(Forbidden):
            gate.check_key(path, {b"x-api-key": b"k"})
        with pytest.raises(Unauthorized):
            gate.check_key(path, {})
    else:
        gate.check_key(path, {b"x-api-key": b"k"})


def test_any_key_gives_orders_where_there_are_no_admin_keys() -> None:
    gate = Gatekeeper(ProxySettings(api_keys=("k",)))
    gate.check_key("/api/unload", {b"authorization": b"Bearer k"})


def test_star_allows_every_origin() -> None:
    gate = Gatekeeper(ProxySettings(cors_origins=("*",)))
    gate.check_browser({b"origin": b"null", b"host": b"localhost"})


def test_refused_host_is_not_remembered_as_allowed() -> None:
    gate = Gatekeeper(ProxySettings())
    gate.check_browser({b"host": b"localhost:8080"})
    for _ in range(2):
        with pytest.raises(Forbidden):
            gate.check_browser({b"host": b"evil.example"})

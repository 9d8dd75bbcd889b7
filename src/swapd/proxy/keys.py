"""Who may ask: browser origins, host names and keys; pure, nothing here sends."""

from __future__ import annotations

import binascii
import hmac
import re
import socket
from base64 import b64decode
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from swapd.errors import Forbidden, Unauthorized
from swapd.proxy.settings import ProxySettings

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
"""These need no key."""

_OWN_ORIGINS: Final = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?|(app|tauri)://.*", re.IGNORECASE)
_ADMIN: Final = re.compile(
    r"/api/models/.*/(load|unload|logs)/?|/api/unload/?|/api/models/unload(/.*)?|/api/captures(/.*)?|/api/requests/.*/cancel/?"
    r"|/api/reload/?"
    r"|/unload/?|/logs(/.*)?|/models/(load|unload)/?",
    re.DOTALL,
)
_ADMIN_ONLY: Final = frozenset({("PUT", "/api/profile")})
_LOOPBACK_NAMES: Final = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def is_admins(method: str, path: str) -> bool:
    """Whether a request needs one of ``admin_keys``, if there are some."""
    if path.startswith("/v1/"):  # all that is asked often
        return False
    return _ADMIN.fullmatch(path) is not None or (method, path) in _ADMIN_ONLY


class Gatekeeper:
    """Applies the contract's browser rule and keys."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._read(settings)

    def _read(self, settings: ProxySettings) -> None:
        self._version = settings.version
        self._keys = tuple(key.encode() for key in (*settings.api_keys, *settings.admin_keys))
        self._admin_keys = tuple(key.encode() for key in settings.admin_keys)
        self._needs_key = bool(settings.api_keys)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.cors_origins)
        self._checks_host = settings.bound_to_loopback
        own_name = socket.gethostname().lower()
        own_names = (own_name, own_name.partition(".")[0], f"{own_name.partition('.')[0]}.local")
        self._hosts = frozenset((*_LOOPBACK_NAMES, *own_names, *(name.lower() for name in settings.hosts)))
        self._host_seen = b""  # the last one that was allowed: clients rarely change it

    def origin_allowed(self, origin: bytes) -> bool:
        """Whether pages of this origin may ask."""
        text = origin.decode("latin-1")
        return _OWN_ORIGINS.fullmatch(text) is not None or text.lower() in self._origins or "*" in self._origins

    def check_browser(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse other sites' pages, and host names that are not ours.

        Raises:
            Forbidden: naming the key that allows it.
        """
        if self._version != self._settings.version:
            self._read(self._settings)
        origin = headers.get(b"origin")
        if origin is not None:
            if not self.origin_allowed(origin):
                shown = origin.decode("latin-1")[:200]
                raise Forbidden(f"pages of {shown} may not use this server; [server] cors_origins allows more origins")
        elif headers.get(b"sec-fetch-site") == b"cross-site":
            raise Forbidden("another site's page asked; [server] cors_origins allows more origins")
        if self._checks_host:
            host = headers.get(b"host")
            if host is not None and host != self._host_seen:
                self._check_host(host)

    def check_key(self, path: str, headers: Mapping[bytes, bytes], method: str = "") -> None:
        """Refuse what has no key, or no admin key where one is needed.

        Raises:
            Unauthorized: no key, or a wrong one.
            Forbidden: a key, but no admin key.
        """
        needs_admin = bool(self._admin_keys) and is_admins(method, path)
        if not (self._needs_key or needs_admin) or path in OPEN_PATHS:
            return
        given = _keys_given(headers)
        if needs_admin and not _any_equal(given, self._admin_keys):
            if _any_equal(given, self._keys):
                raise Forbidden("this needs one of [server] admin_keys")
            raise Unauthorized("this needs one of [server] admin_keys (Authorization: Bearer, x-api-key or Basic)")
        if not _any_equal(given, self._keys):
            what = "this key is not known" if given else "a key is needed"
            raise Unauthorized(f"{what} (Authorization: Bearer, x-api-key or Basic; [server] api_keys)")

    def _check_host(self, host: bytes) -> None:
        shown = host.decode("latin-1")[:200]
        try:
            name = urlsplit(f"//{shown}").hostname or ""
        except ValueError:
            name = ""
        if name.rstrip(".") not in self._hosts and not _is_address(name):
            raise Forbidden(f"this server is not known as {name or shown}; [server] hosts allows more host names")
        self._host_seen = host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _keys_given(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """Every key a request carries: Bearer, ``x-api-key``, and user or password of Basic."""
    given = [headers[b"x-api-key"]] if b"x-api-key" in headers else []
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        given.append(value.strip())
    elif scheme.lower() == b"basic":
        try:
            user, _, password = b64decode(value.strip()).partition(b":")
        except (binascii.Error, ValueError):
            return given
        given += [user, password]
    return [key for key in given if key]


def _any_equal(given: list[bytes], valid: tuple[bytes, ...]) -> bool:
    """Compare all with all, always, so that the time tells nothing."""
    found = False
    for key in valid:
        for one in given:
            found |= hmac.compare_digest(key, one)
    return found

"""The address to listen at, in all its forms."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from swapd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a unix socket ``path``, or ``host`` (empty: all interfaces) and ``port`` (0: any free one)."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Only this machine's own programs can connect, by TCP."""
        if self.path or not self.host:
            return False
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


def parse_listen(text: str) -> Address:
    """``"8080"``, ``":8080"``, ``"host:port"``, ``"[::1]:8080"`` or ``"/run/swapd.sock"``.

    Raises:
        ConfigError: if it is none of these.
    """
    if text.startswith("/"):
        return Address(path=text)
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    bracketed = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not bracketed):
        forms = "'8080', ':8080', 'host:port', '[::1]:8080' or '/run/swapd.sock'"
        raise ConfigError(f"listen = {text!r} is no address: write {forms}", key="server.listen")
    return Address(host=host[1:-1] if bracketed else host, port=int(port))

"""What the proxy is told: plain data, replaced as a whole by a reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(slots=True)
class ProxySettings:
    """``[server]`` as far as the proxy needs it; durations in seconds.

    ``bound_to_loopback``: the ``Host`` rule holds. ``config_error``: what is wrong
    with a file that was refused at reload. ``heartbeat_s`` 0: no keep-alives.
    ``reload``: reads the configuration again. ``version`` grows with every reload.
    ``spool_dir``: where large bodies wait, made when needed; empty: the system's own place.
    """

    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    header_hold_s: float = 20.0
    heartbeat_s: float = 10.0
    max_body_bytes: int = 256 << 20
    bound_to_loopback: bool = True
    config_path: str = ""
    config_error: str | None = None
    loading_status: Literal["off", "comment", "reasoning"] = "off"
    spool_dir: str = ""
    capture: bool = False
    reload: Callable[[], Awaitable[dict[str, Any]]] | None = None
    version: int = 0

    def take(self, other: ProxySettings) -> None:
        """Everything a configuration says, as another one says it."""
        kept = {"reload", "version", "config_error", "bound_to_loopback", "capture"}
        for field in fields(self):
            if field.name not in kept:
                setattr(self, field.name, getattr(other, field.name))
        self.version += 1

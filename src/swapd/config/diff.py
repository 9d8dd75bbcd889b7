"""What a new configuration changes: models, and keys that hold only from the next start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from swapd.config.resolve import Resolved
from swapd.core.spec import ModelId

AT_START: Final = ("listen", "state_dir", "log_format", "log_level", "capture")
"""Keys of ``[server]`` that are looked at once."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Ids in file order; ``changed``: their process would be started differently. ``at_restart``: keys that wait."""

    added: tuple[ModelId, ...] = ()
    changed: tuple[ModelId, ...] = ()
    removed: tuple[ModelId, ...] = ()
    at_restart: tuple[str, ...] = ()


def changes(old: Resolved, new: Resolved) -> Changes:
    """From one configuration to the next."""
    before, after = old.launches, new.launches
    later = [f"server.{key}" for key in AT_START if getattr(old.server, key) != getattr(new.server, key)]
    if old.device_source != new.device_source:
        later.append("devices.source")
    return Changes(
        added=tuple(m for m in after if m not in before),
        changed=tuple(m for m in after if m in before and after[m] != before[m]),
        removed=tuple(m for m in before if m not in after),
        at_restart=tuple(later),
    )

"""Sizes in bytes and durations in seconds, parsed from and printed as people write them."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_size(text: str | int) -> int:
    """Bytes from ``"1 GiB"``, ``"2GB"``, ``"512 MiB"`` or a bare number of bytes.

    Raises:
        ValueError: with what is wrong and an example.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError(f"not a size: {text!r} (write '512 MiB', '1 GiB' or a number of bytes)")
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"a size cannot be negative: {text}")
        return text
    match = _SIZE.fullmatch(text)
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"not a size: {text!r} (write '512 MiB', '1 GiB' or a number of bytes)")
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_duration(text: str) -> float:
    """Seconds from ``"30s"``, ``"250ms"``, ``"10m"``, ``"1h30m"`` or ``"0s"``.

    Raises:
        ValueError: with what is wrong and an example.
    """
    if isinstance(text, str):
        compact = text.replace(" ", "")
        parts = _DURATION_PART.findall(compact)
        if parts and "".join(n + u for n, u in parts) == compact:
            return sum(float(n) * _DURATION_UNITS[u] for n, u in parts)
    raise ValueError(f"not a duration: {text!r} (write '30s', '250ms', '10m' or '1h30m')")


def mib(size_bytes: int) -> int:
    """Whole MiB, rounded up: what is asked of a device must not look smaller than it is."""
    return -(-size_bytes // MIB)


def format_size(size_bytes: int) -> str:
    """``"612 MiB"`` below 10 GiB, ``"12.3 GiB"`` from there on."""
    if abs(size_bytes) < 10 * GIB:
        return f"{size_bytes / MIB:,.0f} MiB"
    return f"{size_bytes / GIB:,.1f} GiB"


def format_duration(seconds: float) -> str:
    """The two largest units: ``"250ms"``, ``"42s"``, ``"3m10s"``, ``"2h05m"``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"

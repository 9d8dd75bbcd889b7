"""The engine's own word on what it will allocate: printed before a weight is read, so it is started, read and ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from swapd.units import MIB

PROJECTION_ARGS: Final = ("--fit", "on", "--log-jsonl")
"""``--fit`` makes it measure; with ``-c`` and ``-ngl`` given it then changes nothing."""
PROJECTION_BOUND_S: Final = 30.0
_TYPE: Final = "fit_memory_breakdown"


class ProjectionReader:
    """Finds the first breakdown in the output; ``by_gpu`` is ``None`` until it has come."""

    def __init__(self) -> None:
        self._rest = b""
        self.by_gpu: list[int] | None = None

    def feed(self, data: bytes) -> bool:
        """Take a piece of the output; True once the answer is there."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.by_gpu is None and _TYPE.encode() in line:
                self.by_gpu = parse_breakdown(line)
        return self.by_gpu is not None


def parse_breakdown(line: bytes | str) -> list[int] | None:
    """Bytes by GPU in the engine's order (weights, context, compute); ``None`` if the line is no breakdown."""
    try:
        tree = json.loads(line)
        rows = tree["data"]["rows"] if tree.get("type") == _TYPE else None
        return None if rows is None else _devices(rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _devices(rows: Sequence[dict[str, object]]) -> list[int]:
    return [size * MIB for row in rows if row["kind"] == "device" and isinstance(size := row["self"], int)]

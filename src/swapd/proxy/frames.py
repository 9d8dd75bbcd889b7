"""Where one websocket frame ends and the next begins (RFC 6455, 5.2); pure, and never looks at a payload."""

from __future__ import annotations

from typing import Final

GOING_AWAY: Final = b"\x88\x02\x03\xe9"
"""A server's close frame with code 1001: it goes away, or is restarted."""


class FrameEdge:
    """Follows one direction of a websocket."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def at_edge(self) -> bool:
        """Nothing of a frame has come that has not come whole: another may be put in here."""
        return not self._head and not self._left

    def feed(self, data: bytes) -> None:
        """What went by."""
        position = 0
        while position < len(data):
            step = min(self._left, len(data) - position)
            self._left -= step
            position += step
            if position < len(data):
                self._head += data[position : position + 1]
                position += 1
                self._read_head()

    def _read_head(self) -> None:
        """Take the head for what it says once it is there whole."""
        head = self._head
        if len(head) < 2:
            return
        short, mask = head[1] & 0x7F, 4 if head[1] & 0x80 else 0
        extended = {126: 2, 127: 8}.get(short, 0)
        if len(head) == 2 + extended:
            self._left = (int.from_bytes(head[2:]) if extended else short) + mask
            self._head = b""

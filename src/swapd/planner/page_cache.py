"""Law L1: weights left in the file are read through the page cache at every token; what does not fit, from disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swapd.units import format_size

FIGURE = "12.3 GB that fit decode at 23 tokens/s, 17.7 GB that do not at 2.8, cold or warm"
"""Host L: 15 GiB of RAM, of which 12 to 13 GB were left to cache."""


@dataclass(frozen=True, slots=True)
class CacheVerdict:
    """Whether the mapped weights of all models that run fit the RAM left to cache them; bytes."""

    needed_bytes: int
    room_bytes: int

    @property
    def fits(self) -> bool:
        """Whether decoding is spared the disk; a set that maps nothing always fits."""
        return self.needed_bytes <= max(self.room_bytes, 0)

    @property
    def problem(self) -> str:
        """What is needed, and what there is."""
        room = format_size(max(self.room_bytes, 0))
        return f"{format_size(self.needed_bytes)} of weights are read through the page cache, which has room for {room}"

    @property
    def text(self) -> str:
        """The same, with what was measured on either side of the cliff."""
        return f"{self.problem} (measured: {FIGURE})"


def cache_room(ram_bytes: int, held_bytes: Iterable[int]) -> int:
    """RAM left to the page cache: the machine's or the container's, less everything that cannot be reclaimed.

    ``held_bytes``: anonymous and pinned memory, of the models and of other programs. The RAM headroom is not taken
    off: it is kept free of just such memory, and the page cache may fill it.
    """
    return ram_bytes - sum(held_bytes)


def judge_cache(mapped_bytes: Iterable[int], room_bytes: int) -> CacheVerdict:
    """The verdict for models that run together.

    ``mapped_bytes``: of each, the weights that stay on the host and are mapped. Those read with ``--load-mode none``
    or ``dio`` are process memory: they belong to ``held_bytes`` of ``cache_room``.
    """
    return CacheVerdict(sum(mapped_bytes), room_bytes)

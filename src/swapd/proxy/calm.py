"""Where swapd's memory lies: it mostly waits, and wakes with cold caches. One call begins the start, one ends it."""

from __future__ import annotations

import gc
import mmap
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HEAP_BYTES: Final = 24 << 20
"""A little less than a swapd with few models has in small objects. It costs 1 to 2.4 MiB; 28 MiB would cost 2 to 6."""
_ARENA_BYTES: Final = 1 << 20
"""So much CPython asks the system for at once, since 3.10."""
_BLOCK_BYTES: Final = 512
"""Larger objects lie elsewhere."""
_EMPTY_BYTES: Final = b"".__sizeof__()
HUGE_BYTES: Final = 2 << 20
_PAGES: Final = HUGE_BYTES // mmap.PAGESIZE
_FULL: Final = 0.75
"""A range with fewer of its pages in use stays as it is: a huge page takes the memory of all of them."""
_PRESENT: Final = 1 << 63
_MADV_COLLAPSE: Final = 25
"""Of Linux 6.1: huge pages now, also where they are not given unasked."""
_MODES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_held: list[bytes | None] = []


def gather_heap() -> None:
    """Ask for the whole heap at once: later, its pieces would lie between the libraries, too small for huge pages.

    All of it is free again but a few blocks in each piece, so that none is given back.
    """
    global _held
    blocks: list[bytes | None] = [None] * (HEAP_BYTES // _BLOCK_BYTES)  # one that grew would move, and leave gaps
    for i in range(len(blocks)):
        blocks[i] = bytes(_BLOCK_BYTES - _EMPTY_BYTES)
    _held = blocks[:: _ARENA_BYTES // _BLOCK_BYTES // 2]  # two of each


def settle() -> None:
    """Keep the garbage collector off the hot path, and the heap on huge pages.

    What the start made is never looked at again for garbage. A wake of an idle process
    touches a little of everything: with a page of 2 MiB in place of 512 small ones it
    finds its way there without walking page tables.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    threading.Thread(target=collapse_heap, name="huge pages").start()  # the kernel takes milliseconds for each


def collapse_heap() -> int:
    """Put the filled ranges of the heap on huge pages; how many. 0 where the system has none, or none are wanted."""
    import ctypes  # here, because the start need not wait for it

    try:
        ranges = [] if "[never]" in _MODES.read_text() else list(_filled())
    except (OSError, ValueError):  # a kernel without huge pages; no /proc, or one that says less
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(advise(start, HUGE_BYTES, _MADV_COLLAPSE) == 0 for start in ranges)


def _filled() -> Iterator[int]:
    """Where the aligned ranges of private memory begin that are mostly in use."""
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for line in maps:
            span, flags, _, _, _, *name = line.split()
            if flags != "rw-p" or name not in ([], ["[heap]"]):
                continue
            low, high = (int(text, 16) for text in span.split("-"))
            for start in range(-(-low // HUGE_BYTES) * HUGE_BYTES, high - HUGE_BYTES + 1, HUGE_BYTES):
                pages.seek(start // mmap.PAGESIZE * 8)
                used = sum(entry >= _PRESENT for entry in array("Q", pages.read(8 * _PAGES)))
                if used >= _FULL * _PAGES:
                    yield start

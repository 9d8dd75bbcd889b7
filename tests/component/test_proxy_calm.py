"""The heap on huge pages, in a process of its own."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.proxy import calm
from tests.component.fake_supervisor import StubUpstream, on_uvloop, until
from tests.component.test_proxy_serve import served, short_stream

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SCRIPT = """
import json, os, sys
from pathlib import Path
from swapd.proxy import calm

def told(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

if sys.argv[1]:
    calm._MODES = Path(sys.argv[1])
kept = [bytes(1000) + os.urandom(24) for _ in range(20_000)]  # 20 MB of small objects: all of their pages are in use
copies = [bytes(one) for one in kept]
before = told("Rss:")
count = calm.collapse_heap()
print(json.dumps({"count": count, "huge_kib": told("AnonHugePages:"), "grown_kib": told("Rss:") - before,
                  "intact": kept == copies}))
"""


GATHERED = """
from swapd.proxy import calm

calm.gather_heap()
import ctypes, sqlite3, ssl, swapd.proxy.app  # libraries and some megabytes of small objects

for line in open("/proc/self/maps"):
    span, flags, _, _, _, *name = line.split()
    low, high = (int(text, 16) for text in span.split("-"))
    if flags == "rw-p" and not name:
        print(high - low)
"""


def collapsed(modes: str = "") -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, modes], capture_output=True, text=True, check=True, timeout=60)
    told: dict[str, int] = json.loads(done.stdout)
    assert told["intact"]
    return told


def gives_huge_pages() -> bool:
    """Whether this kernel does it when it is asked by somebody else."""
    size = 2 << 20
    with mmap.mmap(-1, 3 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        try:
            memory.madvise(25)  # MADV_COLLAPSE
        except OSError:
            return False
    return "[never]" not in MODES.read_text()


needs_huge_pages = pytest.mark.skipif(not gives_huge_pages(), reason="this kernel gives no huge pages")


@needs_huge_pages
def test_filled_part_of_the_heap_moves_to_huge_pages_and_takes_little_more_memory() -> None:
    told = collapsed()
    assert told["count"] > 0 and told["huge_kib"] >= told["count"] * 2048
    assert told["grown_kib"] <= told["count"] * 512 + 1024, "at least three quarters of each were in use"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
def test_gathered_heap_lies_in_one_piece_that_the_imports_fill() -> None:
    def largest(script: str) -> int:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        return max(map(int, done.stdout.split()))

    assert largest(GATHERED) >= calm.HEAP_BYTES > largest(GATHERED.replace("calm.gather_heap()", ""))


@needs_huge_pages
def test_server_does_it_by_itself_soon_after_its_start(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with served(tmp_path, StubUpstream(short_stream), 1.0) as (process, _):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup")
            await until(lambda: "AnonHugePages:         0 kB" not in rollup.read_text())

    scenario()


def test_nothing_moves_where_the_administrator_wants_no_huge_pages(tmp_path: Path) -> None:
    modes = tmp_path / "enabled"
    modes.write_text("always madvise [never]\n")
    assert collapsed(str(modes))["count"] == 0

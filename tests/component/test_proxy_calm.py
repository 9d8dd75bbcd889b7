"""The heap on huge pages, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def collapsed(modes: str = "") -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, modes], capture_output=True, text=True, check=True, timeout=60)
    told: dict[str, int] = json.loads(done.stdout)
    assert told["intact"]
    return told


@pytest.mark.skipif(not MODES.exists() or "[never]" in MODES.read_text(), reason="this kernel gives no huge pages")
def test_filled_part_of_the_heap_moves_to_huge_pages_and_takes_little_more_memory() -> None:
    told = collapsed()
    if not told["count"]:
        pytest.skip("the kernel had none to give")
    assert told["huge_kib"] >= told["count"] * 2048
    assert told["grown_kib"] <= told["count"] * 512 + 1024, "at least three quarters of each were in use"


def test_nothing_moves_where_the_administrator_wants_no_huge_pages(tmp_path: Path) -> None:
    modes = tmp_path / "enabled"
    modes.write_text("always madvise [never]\n")
    assert collapsed(str(modes))["count"] == 0

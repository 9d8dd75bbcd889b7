"""``make bench``: what swapd itself costs, as ratios and sums of one run on this machine."""

from __future__ import annotations

import subprocess
import sys

PARTS = (
    ("the relay against a bare splice", ["benchmarks.relay", "--factory", "benchmarks.real:build"]),
    ("what swapd adds to a swap", ["benchmarks.swap"]),
    ("one scheduler event: 1,000 models, 2,000 waiters, 8 GPUs", ["benchmarks.scheduler"]),
    ("idle, start and status", ["benchmarks.idle"]),
)


def main() -> None:
    for title, (module, *options) in PARTS:
        print(f"\n== {title}", flush=True)
        subprocess.run([sys.executable, "-m", module, *options], check=False)


if __name__ == "__main__":
    main()

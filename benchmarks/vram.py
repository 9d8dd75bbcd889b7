"""Prints what the memory predictor says beside what a real llama-server took, and beside llama-fit-params' errors.

``python -m benchmarks.vram [--all]``: a line a configuration with ``--all``, else the summary. MiB.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tests.unit.gguf.measured import (
    OVERHEAD_MIB,
    gpus,
    host_errors,
    idle_errors,
    measurements,
    models,
    peak_errors,
)

from swapd.gguf.memory import predict
from swapd.llama.flags import parse_flags

SETS = {"one": "one GPU", "two": "two GPUs, each", "more": "one GPU, other shapes"}


def main(args: Sequence[str]) -> None:
    """Print the tables."""
    if "--all" in args:
        print(f"{'configuration':<58}{'measured':>10}{'predicted':>10}{'error':>8}{'peak':>8}{'fit-params':>11}")
        for row in measurements():
            _print_row(row)
        print()
    print(f"{'error of':<34}{'n':>5}{'median':>9}{'95 %':>9}{'worst':>9}")
    for name, words in SETS.items():
        rows = [row for row in measurements() if row["set"] == name]
        _print_summary(f"idle use, {words}", (error for row in rows for error in idle_errors(row)))
        _print_summary(f"peak, {words}", (error for row in rows for error in peak_errors(row)))
    fitted = [row for row in measurements() if "fit" in row]
    _print_summary("llama-fit-params + overhead", (_fit_error(row) for row in fitted))
    _print_summary("the same configurations, swapd", (error for row in fitted for error in idle_errors(row)))
    for kind in ("anonymous", "pinned", "mapped"):
        _print_summary(f"host, {kind}", (host_errors(row)[kind][0] for row in measurements() if "host" in row))
    print(f"\nslowest prediction: {1000 * max(_seconds(row) for row in measurements() if row['gpus']):.0f} ms")


def _print_row(row: dict[str, Any]) -> None:
    errors, peaks = idle_errors(row), peak_errors(row)
    fit = f"{_fit_error(row):+11.1f}" if "fit" in row else " " * 11
    for index, error in enumerate(errors):
        found = row["vram"][index]
        peak = f"{peaks[index]:+8.1f}" if peaks else " " * 8
        print(f"{row['id'] if not index else '':<58}{found:10.1f}{found + error:10.1f}{error:+8.1f}{peak}{fit}")


def _print_summary(words: str, errors: Iterable[float]) -> None:
    values = sorted(errors, key=abs)
    sizes = [abs(value) for value in values]
    p95 = sizes[int(0.95 * len(sizes))]
    print(f"{words:<34}{len(values):>5}{statistics.median(sizes):>9.2f}{p95:>9.2f}{values[-1]:>+9.1f}")


def _fit_error(row: dict[str, Any]) -> float:
    return float(row["fit"] + OVERHEAD_MIB - row["vram"][0])


def _seconds(row: dict[str, Any]) -> float:
    flags = parse_flags(row["args"])
    start = time.perf_counter()
    predict(models()[row["model"]], flags, gpus(row["gpus"]))
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])

"""The engine's own breakdown, read out of its output."""

from __future__ import annotations

import pytest

from swapd.llama.projection import ProjectionReader, parse_breakdown
from swapd.units import MIB

LINE = (
    b'{"type":"fit_memory_breakdown","data":{"unit":"MiB","rows":['
    b'{"kind":"device","name":"CUDA0","description":"H200","total":143155,"free":142629,"self":1370,"model":914},'
    b'{"kind":"device","name":"CUDA1","self":20,"model":10},'
    b'{"kind":"host","name":"Host","self":102,"model":78}]}}'
)
"""As llama-server b11434 prints it, shortened."""


def test_devices_come_in_the_engines_order_and_the_host_is_left_out() -> None:
    assert parse_breakdown(LINE) == [1370 * MIB, 20 * MIB]


def test_the_answer_is_found_in_pieces_among_other_lines() -> None:
    reader = ProjectionReader()
    output = b'{"type":"log","msg":"x"}\nno json\n' + LINE + b"\nmore\n"
    told = [reader.feed(output[i : i + 7]) for i in range(0, len(output), 7)]
    assert told[-1] and not told[0] and reader.by_gpu == [1370 * MIB, 20 * MIB]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"fit_memory_breakdown"}',
        b'{"type":"fit_memory_breakdown","data":{"rows":[{}]}}',
    ],
)
def test_what_is_no_breakdown_tells_nothing(line: bytes) -> None:
    assert parse_breakdown(line) is None

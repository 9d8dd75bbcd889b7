"""Whether heavy neighbours are felt: gaps between a stream's tokens beside huge lines, huge bodies and a long queue.

``python -m benchmarks.stress``. One real swapd over fake engines. First eight streams alone, then the same beside: a
stream of 1 MB lines, 60 MB bodies one after another, and 2,000 requests that wait for a model that loads. Prints
the gaps' p50, p99 and maximum in both cases, what the same clients see of the engine without swapd, and swapd's memory.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.integration.swapd_process import Swapd

STREAMS = 8
TOKENS, TOKENS_PER_S = 500, 50
WAITERS = 2_000
BODY_BYTES = 60 << 20
LINE_BYTES = 1 << 20


def request(url: str, body: bytes, path: str = "/v1/chat/completions") -> bytes:
    host = urlsplit(url).netloc
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def chat(model: str, **keys: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **keys}).encode()


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=4 << 20)


async def gaps_of(url: str) -> list[float]:
    """Seconds between the pieces of one stream."""
    reader, writer = await connect(url)
    writer.write(request(url, chat("fast", stream=True)))
    gaps, last = [], 0.0
    while data := await reader.read(1 << 16):
        now = time.perf_counter()
        if last:
            gaps.append(now - last)
        last = now
        if b"[DONE]" in data:
            break
    writer.close()
    return gaps


def measure(url: str, results: Any) -> None:
    """In a process of its own: what loads the server must not load the clock."""

    async def run() -> list[float]:
        found = await asyncio.gather(*(gaps_of(url) for _ in range(STREAMS)))
        return [gap for gaps in found for gap in gaps]

    results.put(asyncio.run(run()))


def disturb(url: str, ready: Any, stop: Any) -> None:
    """Lines, bodies and waiters, until told to stop."""

    async def lines() -> None:
        while not stop.is_set():
            reader, writer = await connect(url)
            writer.write(request(url, chat("lines", stream=True)))
            while b"[DONE]" not in (await reader.read(1 << 20) or b"[DONE]"):
                pass
            writer.close()

    async def bodies() -> None:
        picture = "A" * BODY_BYTES
        body = chat("pictures", images=[picture], max_tokens=1)
        while not stop.is_set():
            reader, writer = await connect(url)
            writer.write(request(url, body))
            await writer.drain()
            await reader.readline()
            writer.close()

    async def waiter() -> None:
        _, writer = await connect(url)
        writer.write(request(url, chat("slow")))
        await writer.drain()
        await done.wait()
        writer.close()

    async def watch() -> None:
        await asyncio.to_thread(stop.wait)
        done.set()

    async def run() -> None:
        waiters = [asyncio.create_task(waiter()) for _ in range(WAITERS)]
        others = [asyncio.create_task(lines()), asyncio.create_task(bodies())]
        await asyncio.sleep(3)
        ready.set()
        await asyncio.gather(*waiters, *others, watch())

    done = asyncio.Event()
    asyncio.run(run())


def gaps(url: str) -> list[float]:
    results: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=measure, args=(url, results))
    process.start()
    found: list[float] = results.get(timeout=120)
    process.join()
    return found


def row(what: str, found: list[float]) -> str:
    cuts = statistics.quantiles(found, n=100)
    return f"{what:<34}{cuts[49] * 1e3:>9.1f}{cuts[98] * 1e3:>9.1f}{max(found) * 1e3:>9.1f}"


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    knobs = {"TOKENS": TOKENS, "TOK_S": TOKENS_PER_S}
    models = {
        "fast": {"vram": "10 MiB", "knobs": knobs},
        "lines": {"vram": "10 MiB", "knobs": {"TOKENS": 200, "TOK_S": 20, "PIECE_BYTES": LINE_BYTES}},
        "pictures": {"vram": "10 MiB"},
        "slow": {"vram": "10 MiB", "knobs": {"LOAD_S": 300}},
    }
    ready, stop = multiprocessing.Event(), multiprocessing.Event()
    with tempfile.TemporaryDirectory() as folder, Swapd(Path(folder), models, server={"max_body": "256 MiB"}) as one:
        for model in ("fast", "lines", "pictures"):
            one.load(model)
        alone = gaps(one.url)
        before = rss_mib(one.pid)
        noise = multiprocessing.Process(target=disturb, args=(one.url, ready, stop))
        noise.start()
        ready.wait(60)
        beside = gaps(one.url)
        waiting = one.status()["queued"]
        during = rss_mib(one.pid)
        stop.set()
        noise.join(30)
        noise.kill()
        one.unload("slow", "?force=1")
    print(f"{'gaps between tokens, ms':<34}{'p50':>9}{'p99':>9}{'max':>9}")
    print(row("alone", alone))
    print(row(f"beside {waiting} waiters, lines, bodies", beside))
    print(f"swapd's memory: {before:.0f} MiB before, {during:.0f} MiB during")
    if waiting < WAITERS:
        sys.exit(f"only {waiting} requests waited")


if __name__ == "__main__":
    main()

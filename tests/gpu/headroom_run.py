"""Real NVML, a real CUDA llama-server, `swapd serve` itself: does free VRAM ever fall below the headroom?

Run on a machine with one NVIDIA GPU:

    python -m tests.gpu.headroom_run --engine DIR/llama-server --models DIR --out result.json

The engine's libraries are found through LD_LIBRARY_PATH. DIR holds GGUFs (any; the synthetic ones of the
measurements will do). Most of the card is taken by one plain allocation, so that the models have to make room for each
other. In the first round each is loaded as predicted; then the allocation leaves just what a pair of them was measured
to take, the headroom and SPARE_MIB. The first two models are also asked for with ``ctx = "auto"`` and ``n_cpu_moe =
"auto"``, which take what is free. A sampler reads NVML every 10 ms; every load and request is noted with what was
predicted, reserved and measured.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pynvml

MIB = 1 << 20
HEADROOM_MIB = 1024
PORT = 18_080
LOOSE_MIB = 20_000
"""Left free for swapd in the first round."""
SPARE_MIB = 16
"""What a tight round leaves beyond a pair's measured sizes and the headroom."""
TIGHT_ROUNDS = 3


class Sampler(threading.Thread):
    """The lowest free memory since the last look."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.lowest = self.free()

    def free(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self.handle).free) // MIB

    def run(self) -> None:
        while True:
            self.lowest = min(self.lowest, self.free())
            time.sleep(0.01)

    def look(self) -> int:
        lowest, self.lowest = self.lowest, self.free()
        return lowest


class Ballast:
    """One plain allocation of a process of its own."""

    def __init__(self, sampler: Sampler, leave_mib: int) -> None:
        code = f"import tests.gpu.headroom_run as h, sys; h.hold({leave_mib})"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline().strip() == b"held"
        self.free = sampler.free()

    def release(self) -> None:
        self.process.kill()
        self.process.wait(30)


def hold(leave_mib: int) -> None:
    """Allocate all but so much of GPU 0 with the driver's API, say so, and sleep."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, free, total = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    for call in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
    ):
        assert call == 0, call
    pointer = ctypes.c_void_p()
    size = ctypes.c_size_t(free.value - leave_mib * MIB)
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) == 0
    print("held", flush=True)
    time.sleep(3600)


def configuration(engine: Path, models: list[Path], folder: Path) -> Path:
    libraries = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    lines = [
        f'[server]\nlisten = "{PORT}"\nstate_dir = {json.dumps(str(folder / "state"))}\nheader_hold = "5m"',
        f'[headroom]\nvram = "{HEADROOM_MIB} MiB"',
        '[scheduling]\nlinger = "0s"\n[devices]\nsample_interval = "500ms"',
        f"[binaries.cuda]\npath = {json.dumps(str(engine))}\nlibrary_path = {json.dumps(libraries)}",
        '[defaults]\nbinary = "cuda"\nexpect_gpu = true\nargs = "-np 1"\nctx = 8192',
    ]
    lines += [f'[models."{path.stem}"]\ngguf = {json.dumps(str(path))}' for path in models]
    lines += [
        f'[models."{name}"]\ngguf = {json.dumps(str(path))}\n{key} = "auto"' for name, path, key in elastic(models)
    ]
    file = folder / "swapd.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def elastic(models: list[Path]) -> list[tuple[str, Path, str]]:
    """Ids, files and the key that is left open."""
    ways = [("ctx", models[0])] + [("n_cpu_moe", path) for path in models if "moe" in path.stem or "hyb" in path.stem]
    return [(f"{path.stem}-auto-{key}", path, key) for key, path in ways]


def call(method: str, path: str, body: Any = None, timeout: float = 300) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data)


def ask(model: str, words: int) -> tuple[int, Any]:
    text = "word and another one " * (words // 4)
    return call("POST", "/v1/completions", {"model": model, "prompt": text, "max_tokens": 48, "ignore_eos": True})


def entry(model: str) -> dict[str, Any]:
    return next(m for m in call("GET", "/api/status")[1]["models"] if m["id"] == model)


def one_visit(model: str, sampler: Sampler, ballast: Ballast) -> dict[str, Any]:
    """Ask for a model, shortly and then with a long prompt; what was promised, and what the card really had left."""
    explained = call("GET", f"/api/explain/{model}")[1]
    loads = entry(model)["loads"]
    sampler.look()
    started = time.monotonic()
    status, answer = ask(model, 40)
    record: dict[str, Any] = {"model": model, "free_beside_ballast_mib": ballast.free, "status": status}
    record["needed_mib"], record["args"] = explained["needed_mib"], explained["args"]
    record["seconds"] = round(time.monotonic() - started, 2)
    if status == 200:
        long_status, _ = ask(model, 2200)
        time.sleep(1.2)
        now = entry(model)
        record |= {
            "loaded_now": now["loads"] > loads,
            "long_status": long_status,
            "reserved_mib": now["reserved_mib"],
            "measured_mib": now["measured_mib"],
            "loaded_beside": [m["id"] for m in call("GET", "/api/status")[1]["models"] if m["state"] == "ready"],
        }
    else:
        record["error"] = answer["error"]["message"][:300]
    record["lowest_free_mib"] = sampler.look()
    record["headroom_held"] = record["lowest_free_mib"] >= HEADROOM_MIB
    record["could_fit"] = max(explained["needed_mib"].values()) <= ballast.free - HEADROOM_MIB
    return record


def run(engine: Path, models: list[Path], folder: Path) -> dict[str, Any]:
    sampler = Sampler()
    sampler.start()
    file = configuration(engine, models, folder)
    names = [m.stem for m in models]
    open_names = [name for name, _, _ in elastic(models)]
    visits, sizes = one_round(file, folder, sampler, LOOSE_MIB, names + open_names)
    pairs = sorted({a + b for a in sizes.values() for b in sizes.values() if a < b}, reverse=True)[:TIGHT_ROUNDS]
    for pair_mib in pairs:
        leave = pair_mib + HEADROOM_MIB + SPARE_MIB
        visits += one_round(file, folder, sampler, leave, names + open_names + list(reversed(names)))[0]
    return {"visits": visits, "sizes_mib": sizes, "free_at_end_mib": sampler.free()}


def one_round(
    file: Path, folder: Path, sampler: Sampler, leave_mib: int, order: list[str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Visits in this order beside a ballast that leaves so much; and what each model was measured to take."""
    ballast = Ballast(sampler, leave_mib)
    with (folder / f"serve-{leave_mib}.log").open("wb") as log:
        command = [sys.executable, "-m", "swapd", "serve", "--config", str(file)]
        server = subprocess.Popen(command, stderr=log)
        try:
            wait_until_it_answers()
            time.sleep(5)  # engines are asked about what the formulas do not know
            visits = [one_visit(name, sampler, ballast) for name in order]
            rows = call("GET", "/api/status")[1]["models"]
            return visits, {m["id"]: sum(m["reserved_mib"].values()) for m in rows if "-auto-" not in m["id"]}
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
            ballast.release()
            time.sleep(1)


def wait_until_it_answers() -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if call("GET", "/ready", timeout=2)[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("swapd did not become ready")


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """The verdict: headroom held, what could fit was loaded, and how far off the size counted before a load was."""
    visits = result["visits"]
    loads = [v for v in visits if v.get("loaded_now")]
    return {
        "loads": len(loads),
        "requests_refused": sum(v["status"] != 200 for v in visits),
        "below_headroom": [v for v in visits if not v["headroom_held"]],
        "refused_though_it_could_fit": [v for v in visits if v["could_fit"] and v["status"] != 200],
        "lowest_free_mib": min(v["lowest_free_mib"] for v in visits),
        "reserved_before_minus_measured_mib": [
            [v["model"], " ".join(v["args"]), sum(v["needed_mib"].get(d, 0) - n for d, n in v["measured_mib"].items())]
            for v in loads
            if "-auto-" not in v["model"]  # what is chosen for these depends on who goes
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    models = sorted(options.models.glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(options.engine.resolve(), models, Path(folder))
        finally:
            logs = {p.name: p.read_text()[-6000:] for p in Path(folder).glob("*.log")}
            options.out.with_suffix(".log").write_text("\n".join(f"== {n}\n{t}" for n, t in logs.items()))
    result["verdict"] = judged(result)
    options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result["verdict"], indent=1))


if __name__ == "__main__":
    main()

"""What a model takes is known before it starts, and what is open is decided by what is free then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.swapd_process import Gpu, Swapd, wait_for
from tests.unit.gguf.measured import host_models
from tests.unit.gguf.writer import write_model

MOE, DENSE = "host-n-35b", "host-l-4b"


def model(folder: Path, name: str, **keys: Any) -> dict[str, Any]:
    """A model with a real header and no data."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_model(path, host_models()[name])
    return {"gguf": str(path), "vram": "auto", "takes": 0, "ctx": 8192, **keys}


def argv(one: Swapd, model: str) -> list[str]:
    """Of its last start."""
    return list(one.fakes("start", model)[-1]["argv"])


def value(one: Swapd, model: str, flag: str) -> str:
    words = argv(one, model)
    return words[words.index(flag) + 1] if flag in words else ""


def explained(one: Swapd, model: str) -> Any:
    return one.get(f"/api/explain/{model}").json


def needed(one: Swapd, model: str) -> int:
    return int(explained(one, model)["needed_mib"]["GPU-0"])


def test_as_few_experts_on_the_cpu_as_fit_what_is_free_then(tmp_path: Path) -> None:
    models = {"m": model(tmp_path, MOE, n_cpu_moe="auto")}
    with Swapd(tmp_path, models, gpus=(Gpu(16384),)) as one:
        assert one.chat("m").status == 200
        first = int(value(one, "m", "--n-cpu-moe"))
        assert 5 < first < 20
        one.unload("m")
        one.take_vram(4000)
        assert one.chat("m").status == 200
        assert first + 7 < int(value(one, "m", "--n-cpu-moe")) < first + 13, "4000 MiB are about nine layers' experts"


def test_two_gpus_get_a_split_by_number_with_it(tmp_path: Path) -> None:
    models = {"m": model(tmp_path, MOE, n_cpu_moe="auto")}
    gpus = (Gpu(12288), Gpu(10240))
    with Swapd(tmp_path, models, gpus=gpus) as one:
        assert one.chat("m").status == 200
        first, second = map(int, value(one, "m", "-ts").split(","))
        assert first + second == 41 and first > second


def test_the_context_is_the_largest_that_fits_and_status_tells_it(tmp_path: Path) -> None:
    models = {"m": model(tmp_path, DENSE, ctx="auto")}
    with Swapd(tmp_path, models, gpus=(Gpu(7168),)) as one:
        assert explained(one, "m")["args"] == ["-c", "24576"]
        assert one.chat("m").status == 200
        assert value(one, "m", "-c") == "24576" and argv(one, "m").count("-c") == 1
        assert one.model("m")["n_ctx"] == 24576 and one.model("m")["args"] == ["-c", "24576"]
        assert "added to its command line: -c 24576" in one.cli("explain", "m").stdout


def test_a_ladder_takes_the_largest_step_that_leaves_the_headroom(tmp_path: Path) -> None:
    ladder = {"flag": "--expert-pool", "steps": ["8GiB", "4GiB", "1GiB"]}
    models = {"m": model(tmp_path, DENSE, ladder=ladder), "other": {"vram": "4000 MiB"}}
    with Swapd(tmp_path, models, gpus=(Gpu(14000),)) as one:
        assert one.chat("m").status == 200
        assert value(one, "m", "--expert-pool") == "8GiB"
        one.unload("m")
        assert one.chat("other").status == 200
        assert one.chat("m").status == 200
        assert value(one, "m", "--expert-pool") == "4GiB" and one.model("other")["state"] == "ready"


def test_every_load_tells_how_wrong_the_prediction_was_and_corrects_the_next(tmp_path: Path) -> None:
    models = {
        "m": model(tmp_path, DENSE, takes=3700),
        "more": model(tmp_path, DENSE, takes=0, ctx=16384),
    }
    with Swapd(tmp_path, models, gpus=(Gpu(24000),)) as one:
        before = needed(one, "more")
        assert one.chat("m").status == 200
        error = wait_for(lambda: one.model("m")["prediction_error_mib"].get("GPU-0"))
        assert error < -100, "the fake takes less than a CUDA context"
        metrics = one.get("/metrics").text
        assert 'swapd_model_prediction_error_bytes{device="GPU-0",model="m"} -' in metrics
        after = needed(one, "more")
        assert after == pytest.approx(before + error, abs=2), "what m showed of the machine holds for all"


def test_flags_nobody_knows_are_asked_of_the_binary_once_and_kept(tmp_path: Path) -> None:
    models = {"m": model(tmp_path, DENSE, args="--turbo 7", knobs={"FAKE_PROJECTS": "5000"})}
    gpus = (Gpu(24000),)
    with Swapd(tmp_path, models, gpus=gpus) as one:
        told = wait_for(lambda: 5000 < (n := needed(one, "m")) < 6000 and n)
        assert told > 5500, "context and kernels come on top"
        assert len(one.fakes("project")) == 1
        assert one.chat("m").status == 200 and "--log-jsonl" not in argv(one, "m")
    with Swapd(tmp_path, models, gpus=gpus) as again:
        assert again.chat("m").status == 200
        assert len(again.fakes("project")) == 1


def test_weights_that_do_not_fit_the_page_cache_are_warned_of_or_refused(tmp_path: Path) -> None:
    models = {"m": model(tmp_path, MOE, args="--cpu-moe --mmap")}
    gpus = (Gpu(24000),)
    with Swapd(tmp_path / "warn", models, gpus=gpus, ram_mib=12000) as one:
        assert one.chat("m").status == 200
        assert "page cache" in wait_for(lambda: one.model("m")["reason"])
    refuse = {"vram": "256 MiB", "ram": "256 MiB", "page_cache": "refuse"}
    with Swapd(tmp_path / "refuse", models, gpus=gpus, ram_mib=12000, headroom=refuse) as one:
        answer = one.chat("m")
        assert answer.status == 503 and "page cache" in answer.text
    with Swapd(tmp_path / "room", models, gpus=gpus, ram_mib=40000, headroom=refuse) as one:
        assert one.chat("m").status == 200

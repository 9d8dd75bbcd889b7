"""GPUs, memory and placement, with a real swapd on simulated machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd.proxy import calm
from tests.integration.swapd_process import Gpu, Swapd, wait_for

DUO = {"duo": {"members": ["big", "small"], "swap": False, "exclusive": True}}
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")


def host_l(tmp_path: Path) -> Swapd:
    """The laptop of 4 GiB: a small model on the GPU and a big one that must not see it, and one that is neither."""
    models = {
        "big": {"gpus": [], "vram": "auto", "ram": "6000 MiB"},
        "small": {"vram": "3564 MiB"},
        "third": {"vram": "3000 MiB"},
    }
    return Swapd(tmp_path, models, DUO, (Gpu(4096),))


def test_duo_stays_loaded_a_third_model_unloads_both_and_a_member_comes_back_alone(tmp_path: Path) -> None:
    with host_l(tmp_path) as swapd:
        assert swapd.chat("big").status == swapd.chat("small").status == 200
        assert swapd.loaded() == {"big", "small"}
        assert swapd.free_vram() == 532
        for _ in range(3):
            assert swapd.chat("big").status == swapd.chat("small").status == 200
        assert len(swapd.fakes("start")) == 2

        assert swapd.chat("third").status == 200
        assert swapd.loaded() == {"third"}
        assert len(swapd.fakes("exit")) == 2

        assert swapd.chat("big").status == 200
        assert swapd.loaded() == {"big"}
        assert [row["model"] for row in swapd.fakes("start")] == ["big", "small", "third", "big"]


def test_child_without_gpus_sees_the_variables_set_and_empty(tmp_path: Path) -> None:
    with host_l(tmp_path) as swapd:
        assert swapd.load("big").status == swapd.load("small").status == 200
        hidden, shown = (swapd.fakes("start", model)[0]["env"] for model in ("big", "small"))
        assert [hidden.get(name) for name in HIDING] == [""] * 4
        assert not set(HIDING) & shown.keys()
        assert hidden["CUDA_DEVICE_ORDER"] == shown["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_gpus_are_named_by_uuid_in_the_configured_order(tmp_path: Path) -> None:
    models = {
        "both": {"gpus": [1, 0], "vram": {"0": "500 MiB", "1": "700 MiB"}, "takes": {0: 500, 1: 700}},
        "second": {"gpus": ["GPU-1"], "takes": {1: 1000}},
    }
    with Swapd(tmp_path, models, gpus=(Gpu(), Gpu(4096))) as swapd:
        assert swapd.load("both").status == swapd.load("second").status == 200
        both, second = (row["env"] for row in swapd.fakes("start"))
        assert both["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0" and both["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert second["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert swapd.model("both")["reserved_mib"] == {"GPU-0": 500, "GPU-1": 700}


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_models_are_placed_on_a_machine_with_any_number_of_gpus(tmp_path: Path, count: int) -> None:
    models = {f"m{i}": {"gpus": [i], "vram": "3000 MiB", "takes": {i: 3000}} for i in range(count)}
    models["other"] = {"gpus": [count - 1] if count else [], "takes": {max(count - 1, 0): 3000 if count else 0}}
    models["other"] |= {"vram": "3000 MiB"} if count else {"vram": "auto"}
    with Swapd(tmp_path, models, gpus=tuple(Gpu(4096) for _ in range(count))) as swapd:
        for model in models:
            assert swapd.chat(model).status == 200
        expected = {f"m{i}" for i in range(count - 1)} | {"other"}
        assert swapd.loaded() == expected
        status = swapd.status()
        assert [d["index"] for d in status["devices"]] == list(range(count))
        assert all(d["total_mib"] - d["free_mib"] == 3000 for d in status["devices"])


def test_devices_that_cannot_be_read_keep_what_runs_and_refuse_new_loads(tmp_path: Path) -> None:
    models = {"a": {}, "b": {}, "cpu": {"gpus": [], "vram": "auto"}}
    with Swapd(tmp_path, models) as swapd:
        assert swapd.chat("a").status == 200 and swapd.get("/ready").status == 200
        broken = swapd.folder / "machine.broken"
        swapd.machine.rename(broken)
        wait_for(lambda: swapd.get("/ready").status == 503, why="/ready stays 200")
        assert swapd.get("/ready").error["code"] == "devices_unknown"
        assert swapd.get("/health").status == 200
        assert swapd.chat("a").status == 200
        refused = swapd.chat("b")
        assert refused.status == 503 and refused.error["code"] == "devices_unknown" and refused.headers["retry-after"]
        assert swapd.chat("cpu").status == 200
        assert swapd.status()["known"] is False

        broken.rename(swapd.machine)
        wait_for(lambda: swapd.get("/ready").status == 200, why="/ready stays 503")
        assert swapd.chat("b").status == 200
        assert swapd.loaded() == {"a", "b", "cpu"}


def test_other_programs_that_grow_take_the_idle_model_and_never_the_busy_one(tmp_path: Path) -> None:
    models = {"idle": {"vram": "2000 MiB"}, "busy": {"vram": "2000 MiB", "knobs": {"TOKENS": 400, "TOK_S": 50}}}
    with Swapd(tmp_path, models) as swapd:
        assert swapd.chat("idle").status == 200
        stream = swapd.stream("busy")
        stream.events(1)
        wait_for(lambda: swapd.model("busy")["measured_mib"].get("GPU-0") == 2000)
        swapd.take_vram(4192 - 200)
        swapd.wait_state("idle", "stopped")
        assert "other programs" in swapd.model("idle")["reason"]
        stream.events(5)
        wait_for(lambda: swapd.free_vram() == 2200)
        swapd.take_vram(2000)  # and again: now there is nobody but the busy one
        time.sleep(1.6)
        stream.events(5)
        assert swapd.state("busy") == "ready"
        stream.leave()


def test_measured_size_is_known_after_a_restart(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"vram": "auto", "takes": 1234}}) as swapd:
        assert swapd.chat("a").status == 200
        wait_for(lambda: swapd.model("a")["measured_mib"].get("GPU-0") == 1234)
        swapd.signal()
        assert swapd.wait_ended() == 0
        swapd.launch()
        swapd.wait_listening()
        assert swapd.get("/api/explain/a").json["needed_mib"]["GPU-0"] == 1234


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """A machine with a GPU for each of the tests below, so that one swapd does for all of them."""
    models = {
        "slow-to-free": {"gpus": [0], "vram": "6000 MiB", "knobs": {"FREE_DELAY_S": 0.8}},
        "next": {"gpus": [0], "vram": "6000 MiB"},
        "kept": {"gpus": [1], "vram": "6000 MiB", "knobs": {"FREE_DELAY_S": 5}},
        "blocked": {"gpus": [1], "vram": "6000 MiB"},
        "fits": {"gpus": [2]},
        "huge": {"gpus": [2], "vram": "8000 MiB"},
        "crowded": {"gpus": [3], "vram": "4000 MiB"},
        "underestimated": {"gpus": [4], "vram": "3000 MiB", "takes": 6000},
        "makes-room": {"gpus": [4], "vram": "3000 MiB"},
        "too-big": {"gpus": [5], "vram": "3000 MiB", "takes": 9000},
        "small-size": {"gpus": [6], "vram": "1000 MiB", "takes": 1500},
        "short-context": {"gpus": [7], "ctx": 65536, "knobs": {"N_CTX": 4096}},
        "persistent": {"gpus": [8], "vram": "6000 MiB", "persistent": True},
        "never": {"gpus": [8], "vram": "6000 MiB"},
        "refuses": {"gpus": [9], "vram": "6000 MiB", "on_conflict": "refuse"},
        "refused": {"gpus": [9], "vram": "6000 MiB"},
    }
    gpus = tuple(Gpu(8192, 3000 if index == 3 else None) for index in range(10))
    with Swapd(tmp_path_factory.mktemp("many"), models, gpus=gpus, scheduling={"release_timeout": "2500ms"}) as one:
        yield one


def test_next_model_starts_only_when_the_freed_memory_is_seen(many: Swapd) -> None:
    assert many.chat("slow-to-free").status == many.chat("next").status == 200
    gone, begun = many.fakes("exit", "slow-to-free")[0]["t"], many.fakes("start", "next")[0]["t"]
    assert 0.8 <= begun - gone < 3
    assert many.model("next")["loads"] == 1


def test_memory_that_does_not_come_back_is_not_waited_for_without_bound(many: Swapd) -> None:
    assert many.chat("kept").status == 200
    refused = many.chat("blocked")
    assert refused.status == 503 and refused.error["code"] == "memory_held_by_others"
    assert 2.4 < refused.seconds < 4.9 and int(refused.headers["retry-after"]) >= 1
    wait_for(lambda: many.free_vram(1) == 8192)
    assert many.chat("blocked").status == 200


def test_what_can_never_fit_is_refused_in_under_a_second_with_sizes(many: Swapd) -> None:
    assert many.chat("fits").status == 200
    refused = many.chat("huge")
    assert refused.status == 503 and refused.error["code"] == "insufficient_memory" and refused.seconds < 1
    assert refused.error["needed_mib"]["GPU-2"] == 8000 and refused.error["available_mib"]["GPU-2"] == 7936
    assert "retry-after" not in refused.headers
    assert many.state("fits") == "ready" and not many.fakes("start", "huge")


def test_model_that_other_programs_leave_no_room_for_is_refused_and_never_spawned(many: Swapd) -> None:
    """Free 3000, needed 4000, headroom 256."""
    refused = many.chat("crowded")
    assert refused.status == 503 and refused.error["code"] == "memory_held_by_others" and refused.seconds < 2
    assert not many.fakes("start", "crowded")


def test_out_of_memory_at_load_evicts_what_may_go_and_retries_once(many: Swapd) -> None:
    assert many.chat("makes-room").status == many.chat("underestimated").status == 200
    assert len(many.fakes("start", "underestimated")) == 2 and len(many.fakes("start", "makes-room")) == 1
    assert many.state("makes-room") == "stopped"


def test_out_of_memory_is_told_when_nothing_may_go(many: Swapd) -> None:
    failed = many.chat("too-big")
    assert failed.status == 502 and "out of memory" in failed.error["message"]
    assert len(many.fakes("start", "too-big")) == 1


def test_size_configured_too_small_is_warned_about(many: Swapd) -> None:
    assert many.chat("small-size").status == 200
    reason = wait_for(lambda: many.model("small-size")["reason"])
    assert "configured size is too small" in reason and "1500 MiB" in reason


def test_smaller_context_than_configured_shows_as_degraded(many: Swapd) -> None:
    assert many.chat("short-context").status == 200
    row = many.model("short-context")
    assert row["reason"].startswith("degraded") and "4096" in row["reason"] and row["n_ctx"] == 4096


def test_persistent_model_that_fills_the_gpu_gets_others_an_explained_refusal(many: Swapd) -> None:
    assert many.chat("persistent").status == 200
    refused = many.chat("never")
    assert refused.status == 503 and "'persistent'" in refused.error["message"] and refused.seconds < 1
    assert many.state("persistent") == "ready"


def test_model_that_refuses_to_go_gets_the_other_one_a_409(many: Swapd) -> None:
    assert many.chat("refuses").status == 200
    refused = many.chat("refused")
    assert refused.status == 409 and "'refuses'" in refused.error["message"]
    assert many.state("refuses") == "ready"


def test_swapd_itself_has_its_small_objects_in_one_piece_of_memory(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}) as swapd:
        spans = [line.split()[0].split("-") for line in Path(f"/proc/{swapd.pid}/maps").read_text().splitlines()
                 if line.split()[1] == "rw-p" and len(line.split()) == 5]  # fmt: skip
        assert max(int(high, 16) - int(low, 16) for low, high in spans) >= calm.HEAP_BYTES

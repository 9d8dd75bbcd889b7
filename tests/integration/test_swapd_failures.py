"""Engines that fail to start, die, hang or refuse to end, under the real swapd."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.swapd_process import Gpu, Swapd, in_background, together, wait_for

ALIEN = "error while loading model: unknown model architecture: 'quux'"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """One swapd with the default settings; every test has models of its own."""
    models: dict[str, dict[str, object]] = {
        "alien": {"knobs": {"LOAD_EXIT": 1, "STDERR": ALIEN}},
        "mended": {"binary": "changing"},
        "dies": {"binary": "changing"},
        "stubborn": {"stop_grace": "500ms", "knobs": {"IGNORE_TERM": 1}},
        "polite": {"stop_grace": "10s", "knobs": {"IGNORE_TERM": 0.6}},
        "mute": {"load_timeout": "500ms", "knobs": {"LOAD_S": 20, "LOAD_MUTE": 1}},
        "loading": {"knobs": {"LOAD_S": 60}},
        "streams": {"knobs": {"TOKENS": 20, "TOK_S": 25}},
        "forced": {"concurrency": 1, "binary": "changing"},
        "slow": {"knobs": {"LOAD_S": 3}},
        "prefill": {"knobs": {"PREFILL_S": 60}},
        "stream": {"knobs": {"TOKENS": 2000, "TOK_S": 20}},
        "never": {}, "unloaded": {}, "crashed": {"knobs": {"DIE_AFTER_TOK": 1}}, "broken": {"knobs": {"LOAD_EXIT": 7}},
        "noisy": {"knobs": {"LOG_BYTES": 100 << 20}},
        "scored": {},
    }  # fmt: skip
    with Swapd(tmp_path_factory.mktemp("shared"), models, gpus=(Gpu(65536),)) as one:
        yield one


def test_failed_start_tells_the_client_at_once_with_the_last_words(shared: Swapd) -> None:
    failed = shared.chat("alien")
    assert failed.status == 502 and failed.error["code"] == "start_failed" and failed.seconds < 2
    assert ALIEN in failed.error["message"] and "exit code 1" in failed.error["message"]
    streamed = shared.stream("alien")
    assert streamed.status == 502 and ALIEN in streamed.rest()[0]
    loaded = shared.load("alien")
    assert loaded.status == 502 and ALIEN in loaded.error["message"]
    row = shared.model("alien")
    assert row["state"] == "failed" and "quux" in row["last_error"] and row["loads"] == 0


def test_one_failed_start_does_not_poison_the_model(shared: Swapd) -> None:
    shared.knobs("mended", LOAD_EXIT=1)
    assert shared.chat("mended").status == 502
    shared.knobs("mended")
    assert shared.chat("mended").status == 200
    row = shared.model("mended")
    assert row["state"] == "ready" and row["last_error"] is None


def test_crash_loop_backs_off_and_evicts_nobody(tmp_path: Path) -> None:
    models = {"a": {"binary": "changing"}, "b": {}}
    pair = {"pair": {"members": ["a", "b"], "swap": True}}
    with Swapd(tmp_path, models, pair, scheduling={"backoff": ["30s", "5m"]}) as swapd:
        swapd.knobs("a", LOAD_EXIT=1)
        for _ in range(3):
            assert swapd.chat("a").status == 502
        assert swapd.chat("b").status == 200
        for _ in range(17):
            refused = swapd.chat("a")
            assert refused.status == 503 and refused.error["code"] == "backing_off"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert len(swapd.fakes("start", "a")) == 3
        assert swapd.loaded() == {"b"} and len(swapd.fakes("start", "b")) == 1
        swapd.knobs("a")
        assert swapd.load("a").status == 200  # an operator's load ends the pause


def test_missing_binary_and_program_that_does_not_listen_are_named(tmp_path: Path) -> None:
    models = {"true": {"gguf": "", "cmd": ["true", "${PORT}"], "gpus": []}}
    extra = '[binaries.soon-gone]\npath = "./gone"\n[models.gone]\nbinary = "soon-gone"\n'
    swapd = Swapd(tmp_path, models, extra=extra)
    swapd.write()
    (tmp_path / "gone").write_text("#!/bin/sh\n")
    (tmp_path / "gone").chmod(0o755)
    with swapd:
        (tmp_path / "gone").unlink()
        failed = swapd.chat("gone")
        assert failed.status == 502 and "/gone" in failed.error["message"]
        failed = swapd.chat("true")
        assert failed.status == 502 and "exited 0 before ready" in failed.error["message"] and failed.seconds < 2


def test_child_that_dies_in_mid_stream_is_an_error_event_and_no_clean_end(shared: Swapd) -> None:
    shared.knobs("dies", DIE_AFTER_TOK=3)
    text, whole = shared.stream("dies").rest()
    assert not whole and "[DONE]" not in text
    assert text.count('"content": "tok') == 3
    assert '"error"' in text and "illegal memory access" in text
    cut = shared.chat("dies")
    assert cut.status == 502 and "illegal memory access" in cut.error["message"]
    row = shared.wait_state("dies", "failed")
    assert "SIGABRT" in row["last_error"]
    shared.knobs("dies")
    assert shared.chat("dies").status == 200


def test_engine_that_hangs_is_ended_by_an_unload_after_the_drain(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"binary": "changing"}}, server={"drain": "500ms"}) as swapd:
        swapd.knobs("a", HANG=1)
        hanging = swapd.chat_later("a")
        swapd.wait_fake("req", "a")
        unloaded = swapd.unload("a")
        assert unloaded.status == 200 and 0.4 < unloaded.seconds < 3
        ended = hanging.result(10)
        assert ended.status == 503 and ended.error["code"] == "unloaded"
        swapd.knobs("a")
        assert swapd.chat("a").status == 200


def test_engine_that_ignores_sigterm_is_killed_after_its_grace(shared: Swapd) -> None:
    assert shared.load("stubborn").status == 200
    unloaded = shared.unload("stubborn")
    assert unloaded.status == 200 and 0.4 < unloaded.seconds < 2
    assert shared.fakes("term", "stubborn") and not shared.fakes("exit", "stubborn")
    shared.wait_state("stubborn", "stopped")
    assert "SIGKILL" in shared.get("/api/models/stubborn/logs").text
    assert shared.load("stubborn").status == 200


def test_engine_that_needs_its_grace_is_not_killed_before(shared: Swapd) -> None:
    assert shared.load("polite").status == 200
    assert shared.unload("polite").status == 200
    assert shared.fakes("term", "polite") and shared.fakes("exit", "polite")[-1]["why"] == "SIGTERM"
    assert "SIGKILL" not in shared.get("/api/models/polite/logs").text


def test_load_without_a_sign_of_life_is_504(shared: Swapd) -> None:
    late = shared.chat("mute")
    assert late.status == 504 and late.error["code"] == "start_timeout" and 0.4 < late.seconds < 4


def test_server_that_logs_swapds_own_probes_and_is_never_ready_is_504_and_says_what_it_answers(tmp_path: Path) -> None:
    cmd = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "${PORT}"]
    with Swapd(tmp_path, {"web": {"gguf": "", "cmd": cmd, "load_timeout": "2s"}}) as swapd:
        reply = swapd.chat("web")
        assert reply.status == 504 and "/health answers 404" in reply.error["message"]


_SLOW = """
import http.server, sys, time
begun = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_ready = time.monotonic() - begun > 4
        self.send_response(200 if is_ready else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.timeout = 0.05
while True:
    server.handle_request()
    if time.monotonic() - begun < 4:
        print("loading", round(time.monotonic() - begun, 1), flush=True)
"""


def test_load_that_tells_of_itself_goes_on_whatever_the_health_path_answers_meanwhile(tmp_path: Path) -> None:
    cmd = [sys.executable, "-c", _SLOW, "${PORT}"]
    with Swapd(tmp_path, {"slow": {"gguf": "", "cmd": cmd, "load_timeout": "2s"}}) as swapd:
        assert swapd.load("slow").status == 200


def test_server_that_is_ready_after_load_timeout_while_stop_cmd_runs_is_stopped_whole(tmp_path: Path) -> None:
    stop = tmp_path / "stop.sh"
    stop.write_text("#!/bin/sh\nwhile [ ! -e $1/answered ]; do sleep 0.05; done\nsleep 0.3\necho done > $1/stopped\n")
    stop.chmod(0o755)
    serve = (
        "import http.server, pathlib, sys, time\n"
        "class Handler(http.server.SimpleHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        super().do_GET()\n"
        "        pathlib.Path(sys.argv[2], 'answered').touch()\n"
        "time.sleep(3)\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
    )
    cmd = [sys.executable, "-c", serve, "${PORT}", str(tmp_path)]
    late = {"gguf": "", "cmd": cmd, "health": "/", "stop_cmd": [str(stop), str(tmp_path)], "load_timeout": "500ms"}
    with Swapd(tmp_path, {"late": late}) as swapd:
        assert swapd.load("late").status == 504
        assert (tmp_path / "stopped").exists()
        swapd.wait_state("late", "failed")


def test_load_timeout_runs_stop_cmd_which_is_relative_to_the_file(tmp_path: Path) -> None:
    stop = tmp_path / "stop.sh"
    stop.write_text('#!/bin/sh\necho "$1" > stopped\n')
    stop.chmod(0o755)
    mute = {
        "gguf": "",
        "cmd": ["sleep", "600", "${PORT}"],
        "stop_cmd": ["./stop.sh", "by-name"],
        "load_timeout": "500ms",
    }
    with Swapd(tmp_path, {"box": mute}) as swapd:
        assert swapd.chat("box").status == 504
        assert (tmp_path / "stopped").read_text() == "by-name\n"
        swapd.wait_state("box", "failed")


def test_state_directory_that_cannot_be_written_costs_no_service(tmp_path: Path) -> None:
    for name in ("swapd.sqlite", "activity.sqlite", "endpoint"):
        (tmp_path / "state" / name).mkdir(parents=True)
    with Swapd(tmp_path, {"a": {}}) as swapd:
        assert swapd.chat("a").status == 200
        assert f"may need --url {swapd.url}" in swapd.log_file.read_text()


def test_long_load_is_a_wait_and_no_error(tmp_path: Path) -> None:
    knobs = {"LOAD_S": 4, "SPEAK_ROUTER": 1}
    server = {"header_hold": "200ms", "heartbeat": "200ms"}
    with Swapd(tmp_path, {"a": {"load_timeout": "2500ms", "knobs": knobs}}, server=server) as swapd:
        plain = swapd.chat_later("a")
        text, whole = swapd.stream("a").rest()
        assert whole and text.count(": ping") >= 4 and text.endswith("data: [DONE]\n\n")
        assert text.index(": ping") < text.index("tok0")
        assert plain.result(20).status == 200


def test_long_prefill_gets_keep_alives_and_is_not_cut(tmp_path: Path) -> None:
    server = {"header_hold": "100ms", "heartbeat": "100ms"}
    with Swapd(tmp_path, {"a": {"knobs": {"PREFILL_S": 1.2}}}, server=server) as swapd:
        text, whole = swapd.stream("a").rest()
        assert whole and text.count(": ping") >= 5 and "[DONE]" in text
        assert swapd.chat("a").status == 200


def test_answers_that_come_while_a_load_fails_after_the_200_are_error_events(tmp_path: Path) -> None:
    server = {"header_hold": "100ms", "heartbeat": "100ms"}
    knobs = {"LOAD_S": 0.6, "LOAD_EXIT": 1, "STDERR": ALIEN}
    with Swapd(tmp_path, {"a": {"knobs": knobs}}, server=server) as swapd:
        stream = swapd.stream("a")
        assert stream.status == 200
        text, _ = stream.rest()
        assert '"error"' in text and "quux" in text and "[DONE]" not in text


def test_unload_of_a_loading_model_is_at_once_and_its_waiters_are_told(shared: Swapd) -> None:
    waiting = [shared.chat_later("loading"), in_background(shared.load, "loading")]
    shared.wait_loading("loading")
    wait_for(lambda: shared.model("loading")["queued"] == 2)
    unloaded = shared.unload("loading")
    assert unloaded.status == 200 and unloaded.seconds < 1
    for one in waiting:
        refused = one.result(5)
        assert refused.status == 503 and refused.error["code"] == "unloaded"
    assert shared.wait_state("loading", "stopped", "failed")["state"] == "stopped"


def test_unload_of_a_model_that_waits_for_room_leaves_what_drained_for_it(tmp_path: Path) -> None:
    pair = {"pair": {"members": ["a", "b"], "swap": True}}
    with Swapd(tmp_path, {"a": {"knobs": {"TOKENS": 60, "TOK_S": 30}}, "b": {}}, pair) as swapd:
        stream = swapd.stream("a")
        stream.events(1)
        waiting = swapd.chat_later("b")
        wait_for(lambda: swapd.model("b")["queued"] == 1)
        assert swapd.unload("b").seconds < 1
        assert waiting.result(5).error["code"] == "unloaded"
        text, whole = stream.rest()
        assert whole and "[DONE]" in text
        assert swapd.loaded() == {"a"}


def test_unload_lets_running_streams_end_within_the_drain(shared: Swapd) -> None:
    stream = shared.stream("streams")
    stream.events(1)
    unloading = in_background(shared.unload, "streams")
    text, whole = stream.rest()
    assert whole and "[DONE]" in text
    assert unloading.result(10).status == 200
    assert shared.fakes("term", "streams")[0]["t"] >= shared.fakes("done", "streams")[0]["t"]
    shared.wait_state("streams", "stopped")


def test_unload_cuts_streams_with_an_error_event_when_the_drain_is_over(tmp_path: Path) -> None:
    models = {"a": {"knobs": {"TOKENS": 1000, "TOK_S": 25}}}
    with Swapd(tmp_path, models, server={"drain": "400ms"}) as swapd:
        stream = swapd.stream("a")
        stream.events(1)
        unloaded = swapd.unload("a")
        assert unloaded.status == 200 and 0.3 < unloaded.seconds < 2
        text, whole = stream.rest()
        assert not whole and "unloaded" in text and '"error"' in text and "[DONE]" not in text
        swapd.wait_fake("disconnect", "a")


def test_forced_unload_ends_streams_and_queued_requests_load_it_again(shared: Swapd) -> None:
    shared.knobs("forced", TOKENS=1000, TOK_S=25)
    stream = shared.stream("forced")
    stream.events(1)
    queued = shared.chat_later("forced")
    wait_for(lambda: shared.model("forced")["queued"] == 1)
    shared.knobs("forced")
    unloaded = shared.unload("forced", "?force=1")
    assert unloaded.status == 200 and unloaded.seconds < 1
    text, whole = stream.rest()
    assert not whole and '"error"' in text
    assert queued.result(10).status == 200
    assert len(shared.fakes("start", "forced")) == 2


def test_unload_without_waiting_and_of_all(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}, "b": {}, "c": {}}) as swapd:
        assert swapd.load("a").status == swapd.load("b").status == 200
        assert swapd.unload("a", "?wait=0").status == 202
        swapd.wait_state("a", "stopped")
        assert swapd.load("a").status == 200
        everything = swapd.post("/api/unload")
        assert everything.status == 200 and set(everything.json["unloaded"]) == {"a", "b"}
        assert swapd.loaded() == set()
        wait_for(lambda: swapd.free_vram() == 8192)
        assert swapd.unload("a").status == 200  # nothing to do
        assert swapd.post("/api/models/a/load?wait=0").status == 202
        swapd.wait_state("a", "ready")


def test_leaving_clients_cost_nothing_while_queued_and_stop_the_engine_at_once(shared: Swapd) -> None:
    queued = shared.open_request("slow")
    wait_for(lambda: shared.model("slow")["queued"] == 1)
    queued.close()
    wait_for(lambda: shared.model("slow")["queued"] == 0, 1.0)
    shared.wait_state("slow", "ready")  # the load went on: nobody else needed the room
    assert not shared.fakes("req", "slow")

    for stream in (False, True):
        prefilling = shared.open_request("prefill", stream=stream)
        shared.wait_fake("req", "prefill", 1 + stream)
        prefilling.close()
        shared.wait_fake("disconnect", "prefill", 1 + stream, timeout_s=1.0)

    neighbour, leaver = shared.stream("stream", max_tokens=40), shared.stream("stream")
    leaver.events(2)
    leaver.leave()
    shared.wait_fake("disconnect", "stream", timeout_s=1.0)
    text, whole = neighbour.rest()
    assert whole and "[DONE]" in text
    assert len(shared.fakes("disconnect", "stream")) == 1
    wait_for(lambda: all(row["active"] == 0 for row in shared.status()["models"]))


def test_load_whose_client_left_is_aborted_when_another_model_needs_the_room(tmp_path: Path) -> None:
    models = {"a": {"vram": "6000 MiB", "knobs": {"LOAD_S": 30}}, "b": {"vram": "6000 MiB"}}
    with Swapd(tmp_path, models) as swapd:
        leaver = swapd.open_request("a")
        swapd.wait_loading("a")
        leaver.close()
        served = swapd.chat("b")
        assert served.status == 200 and served.seconds < 5


def test_load_that_somebody_waits_for_is_not_aborted_for_another(tmp_path: Path) -> None:
    models = {"a": {"vram": "6000 MiB", "knobs": {"LOAD_S": 1}}, "b": {"vram": "6000 MiB"}}
    with Swapd(tmp_path, models) as swapd:
        first = swapd.chat_later("a")
        swapd.wait_fake("start", "a")
        assert swapd.chat("b").status == 200
        assert first.result(5).status == 200
        assert [row["model"] for row in swapd.fakes("start")] == ["a", "b"]


def test_status_tells_why_a_model_is_not_loaded(shared: Swapd) -> None:
    shared.load("unloaded")
    shared.unload("unloaded")
    shared.chat("crashed")
    shared.chat("broken")
    wait_for(lambda: shared.state("crashed") == "failed" and shared.state("broken") == "failed")
    rows = {row["id"]: row for row in shared.status()["models"]}
    assert (rows["never"]["state"], rows["never"]["reason"], rows["never"]["last_error"]) == ("stopped", None, None)
    assert rows["unloaded"]["state"] == "stopped" and "operator" in rows["unloaded"]["reason"]
    assert rows["crashed"]["loads"] == 1 and "SIGABRT" in rows["crashed"]["last_error"]
    assert rows["broken"]["loads"] == 0 and "exit code 7" in rows["broken"]["last_error"]


def test_endless_output_of_a_child_keeps_memory_flat(shared: Swapd) -> None:
    before = _rss_mib(shared.pid)
    assert shared.chat("noisy").status == 200
    assert _rss_mib(shared.pid) - before < 30
    assert len(shared.get("/api/models/noisy/logs").body) <= 1 << 20


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def test_spawned_child_is_killed_before_swapd_and_gets_the_file_limit_of_the_caller(shared: Swapd) -> None:
    assert shared.load("scored").status == 200
    child = shared.model("scored")["pid"]
    score = {pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (shared.pid, child)}
    assert score[child] > score[shared.pid]
    limits = {pid: _files_limit(pid) for pid in (shared.pid, child)}
    assert limits[shared.pid][0] == limits[shared.pid][1]  # raised to the hard one
    assert limits[child] == _files_limit_of_caller()


def _files_limit(pid: int) -> tuple[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    words = next(line for line in lines if line.startswith("Max open files")).split()
    return words[3], words[4]


def _files_limit_of_caller() -> tuple[str, str]:
    import os

    return _files_limit(os.getpid())


def test_llama_and_swapd_variables_do_not_reach_the_child(tmp_path: Path) -> None:
    environ = {
        "LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_ARG_CTX_SIZE": "7", "LLAMA_API_KEY": "secret", "SWAPD_KEY": "k1",
        "CUDA_VISIBLE_DEVICES": "3", "LD_LIBRARY_PATH": "/nowhere", "MY_TOKEN": "t", "KEPT": "yes",
    }  # fmt: skip
    server = {"api_keys": ["${env:MY_TOKEN}"]}
    with Swapd(tmp_path, {"a": {}}, environ=environ, server=server) as swapd:
        key = {"Authorization": "Bearer t"}
        assert swapd.ask("POST", "/api/models/a/load", headers=key).status == 200
        child = swapd.fakes("start")[0]["env"]
        assert child["KEPT"] == "yes"
        assert not {"LLAMA_ARG_HOST", "LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "SWAPD_KEY", "CUDA_VISIBLE_DEVICES",
                    "LD_LIBRARY_PATH", "MY_TOKEN"} & child.keys()  # fmt: skip
        argv = swapd.fakes("start")[0]["argv"]
        assert argv[argv.index("--host") + 1].endswith(".sock")


def test_many_requests_at_once_with_a_failing_model_between_leave_the_others_alone(tmp_path: Path) -> None:
    models = {"good": {"knobs": {"TOKENS": 2}}, "bad": {"knobs": {"LOAD_EXIT": 1}}}
    with Swapd(tmp_path, models, scheduling={"backoff": ["200ms", "400ms"]}) as swapd:
        replies = together(10, lambda n: [swapd.chat("good" if n % 2 else "bad").status for _ in range(8)])
        assert {status for one in replies[1::2] for status in one} == {200}
        assert {status for one in replies[::2] for status in one} <= {502, 503}
        time.sleep(0.5)
        assert swapd.chat("bad").status in (502, 503) and swapd.chat("good").status == 200
        assert len(swapd.fakes("start", "good")) == 1

"""kill -9 of the real swapd, and what its next start does and leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.launch import procfs
from tests.fakes import fake_llama_server
from tests.integration.swapd_process import Swapd, process, wait_for


@pytest.mark.parametrize("when", ["ready", "loading", "streaming"])
def test_no_child_is_left_a_second_after_kill_9_and_the_next_start_works(tmp_path: Path, when: str) -> None:
    knobs = {"ready": {}, "loading": {"LOAD_S": 30}, "streaming": {"TOKENS": 1000, "TOK_S": 20}}[when]
    with Swapd(tmp_path, {"a": {"binary": "changing"}, "b": {}}) as swapd:
        assert swapd.load("b").status == 200
        swapd.knobs("a", **knobs)
        if when == "ready":
            assert swapd.load("a").status == 200
        elif when == "loading":
            left = swapd.open_request("a")
            swapd.wait_loading("a")
        else:
            stream = swapd.stream("a")
            stream.events(1)
        children = [row["pid"] for row in swapd.fakes("start")]
        assert len(children) == 2 and all(map(procfs.start_ticks, children))

        swapd.kill()
        wait_for(lambda: not any(map(procfs.start_ticks, children)), 1.0, "children outlive swapd")
        swapd.assert_nothing_left()
        if when == "loading":
            left.close()
        elif when == "streaming":
            assert not stream.rest()[1]

        swapd.knobs("a")
        wait_for(lambda: swapd.free_vram() == 8192)
        swapd.launch()
        swapd.wait_listening()
        assert swapd.chat("a").status == swapd.chat("b").status == 200


def test_start_after_a_crash_spares_another_instance_and_the_users_own_server(tmp_path: Path) -> None:
    own_home = tmp_path / "own"
    own_home.mkdir()
    own_binary, own_socket = fake_llama_server.install(own_home), own_home / "own.sock"
    with (
        Swapd(tmp_path / "other", {"a": {}}) as other,
        process(own_binary, "--host", str(own_socket)) as own,
        Swapd(tmp_path / "it", {"a": {}}) as swapd,
    ):
        assert other.load("a").status == swapd.load("a").status == 200
        others_child = other.fakes("start")[0]["pid"]
        wait_for(own_socket.exists)
        swapd.kill()
        wait_for(lambda: swapd.free_vram() == 8192)
        swapd.launch()
        swapd.wait_listening()
        assert swapd.chat("a").status == 200
        assert own.poll() is None
        assert procfs.start_ticks(others_child) and other.chat("a").status == 200
        assert other.model("a")["loads"] == 1


def test_two_swapds_may_share_a_state_directory_and_spare_each_other(tmp_path: Path) -> None:
    shared = {"state_dir": str(tmp_path / "state")}
    with Swapd(tmp_path / "one", {"a": {}}, server=shared) as one:
        assert one.load("a").status == 200
        with Swapd(tmp_path / "two", {"a": {}}, server=shared) as two:
            assert one.url != two.url
            assert one.chat("a").status == two.chat("a").status == 200
        assert one.chat("a").status == 200 and one.model("a")["loads"] == 1

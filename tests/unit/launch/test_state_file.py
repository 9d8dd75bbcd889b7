from __future__ import annotations

import json
import os
from pathlib import Path

from swapd.launch import procfs
from swapd.launch.state_file import StateFile, sweep


def test_file_lists_the_children_and_goes_with_the_last(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    state.add(os.getpid(), "a")
    state.add(os.getppid(), "b")
    (path,) = (tmp_path / "children").iterdir()
    content = json.loads(path.read_text())
    assert [(row["pid"], row["model"]) for row in content["children"]] == [(os.getpid(), "a"), (os.getppid(), "b")]
    assert content["swapd"] == {"pid": os.getpid(), "start_ticks": procfs.start_ticks(os.getpid())}
    state.remove(os.getpid())
    state.remove(os.getppid())
    assert list((tmp_path / "children").iterdir()) == []


def test_two_swapds_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = StateFile(tmp_path), StateFile(tmp_path)
    first.add(1, "a")
    second.add(1, "b")
    assert first.nonce != second.nonce
    assert len(list((tmp_path / "children").iterdir())) == 2


def test_a_disk_that_refuses_does_not_stop_serving(tmp_path: Path) -> None:
    (tmp_path / "children").write_text("in the way")
    StateFile(tmp_path).add(1, "a")


def test_nothing_to_sweep_is_fine(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []

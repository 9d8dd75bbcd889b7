from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from swapd.launch import procfs
from swapd.launch.runtime_dir import MAX_SOCKET_PATH_BYTES, RuntimeDir, RuntimeDirError, remove_stale, why_unusable


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.path.realpath(tmp_path_factory.mktemp("r")))


def test_directory_is_private_and_paths_are_short_and_new(base: Path) -> None:
    made = RuntimeDir(RuntimeDir.create(["/tmp"]).path)
    paths = {made.socket_path() for _ in range(1000)}
    assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700
    assert len(paths) == 1000 and max(map(len, paths)) <= MAX_SOCKET_PATH_BYTES
    made.remove()
    assert not os.path.exists(made.path)


def test_two_in_one_process_get_two_directories() -> None:
    first, second = RuntimeDir.create(["/tmp"]), RuntimeDir.create(["/tmp"])
    assert first.path != second.path
    first.remove()
    second.remove()


@pytest.mark.parametrize(
    ("folder", "problem"),
    [("/nonexistent-folder", "no such directory"), ("relative", "not an absolute"), ("/" + "x" * 80, "too long"),
     ("/a,b", "comma")],
)  # fmt: skip
def test_unusable_bases_are_named(folder: str, problem: str) -> None:
    assert problem in why_unusable(folder)


def test_a_bad_runtime_dir_falls_back_to_the_next_base() -> None:
    made = RuntimeDir.create(["/nonexistent-folder", "/tmp"])
    assert made.path.startswith("/tmp/swapd-")
    made.remove()
    with pytest.raises(RuntimeDirError, match="nonexistent-folder: no such directory"):
        RuntimeDir.create(["/nonexistent-folder"])


def dead(pid: int = 1, ticks: int = 1) -> str:
    """A directory's name of a swapd that does not live: PID 1 has another start time."""
    return f"swapd-{os.getuid()}-{procfs.pid_namespace()}-{pid}-{ticks + procfs.start_ticks(pid)}"


def test_stale_directories_of_dead_swapds_go_others_stay(base: Path) -> None:
    alive = f"swapd-{os.getuid()}-{procfs.pid_namespace()}-{os.getpid()}-{procfs.start_ticks(os.getpid())}"
    other_namespace = f"swapd-{os.getuid()}-1-1-7"
    for name in (dead(), alive, other_namespace, "swapd-mine"):
        (base / name).mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(base / dead() / "1.sock"))
    remove_stale(str(base))
    assert sorted(entry.name for entry in base.iterdir()) == sorted([alive, other_namespace, "swapd-mine"])


def test_a_link_or_an_open_directory_is_never_touched(base: Path) -> None:
    target = base / "target"
    target.mkdir(mode=0o700)
    (base / dead()).symlink_to(target)
    (base / dead(ticks=2)).mkdir()
    (base / dead(ticks=2)).chmod(0o755)
    remove_stale(str(base))
    assert len(list(base.iterdir())) == 3

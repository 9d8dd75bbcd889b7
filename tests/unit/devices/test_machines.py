"""Host memory with a container's limit, AMD cards, and machines described by a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from swapd.devices import amdgpu
from swapd.devices.host import Host, KernelFile, sample_ram
from swapd.devices.monitor import Monitor
from swapd.units import GIB, MIB

MEMINFO = "MemTotal:       32000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n"


def a_host(root: Path, *, limit: str | None = None, used: int = 0, inactive: int = 0) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text("0::/box\n")
    group = root / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    if limit is not None:
        (group / "memory.max").write_text(limit)
        (group / "memory.current").write_text(str(used))
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    return root


def test_available_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    ram = sample_ram(a_host(tmp_path))
    assert (ram.total_bytes, ram.free_bytes) == (32_000_000 * 1024, 20_000_000 * 1024)


def test_a_containers_own_limit_counts_less_what_can_be_reclaimed(tmp_path: Path) -> None:
    ram = sample_ram(a_host(tmp_path, limit=str(8 * GIB), used=6 * GIB, inactive=1 * GIB))
    assert (ram.total_bytes, ram.free_bytes) == (8 * GIB, 3 * GIB)


def test_a_limit_of_max_is_none(tmp_path: Path) -> None:
    assert sample_ram(a_host(tmp_path, limit="max")).free_bytes == 20_000_000 * 1024


def test_each_reading_is_a_new_one(tmp_path: Path) -> None:
    host = Host(a_host(tmp_path, limit=str(8 * GIB), used=6 * GIB))
    assert host.ram().free_bytes == 2 * GIB
    (tmp_path / "sys/fs/cgroup/box/memory.current").write_text(str(7 * GIB))
    assert host.ram().free_bytes == 1 * GIB
    (tmp_path / "sys/fs/cgroup/box/memory.max").write_text("max")
    (tmp_path / "proc/meminfo").write_text(MEMINFO.replace("20000000", "10000000"))
    assert (host.ram().total_bytes, host.ram().free_bytes) == (32_000_000 * 1024, 10_000_000 * 1024)


def test_a_limit_at_the_root_that_a_container_sees_counts(tmp_path: Path) -> None:
    host = Host(a_host(tmp_path))
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    for name, text in (("memory.max", str(GIB)), ("memory.current", "0"), ("memory.stat", "inactive_file 0\n")):
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    assert host.ram().total_bytes == GIB


def test_second_reading_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(a_host(tmp_path, limit=str(8 * GIB), used=6 * GIB))
    host.ram()

    def opened(path: Path, *_rest: object) -> int:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(os, "open", opened)
    assert host.ram().free_bytes == 2 * GIB


def test_a_process_that_is_moved_has_its_new_cgroups_limit(tmp_path: Path) -> None:
    host = Host(a_host(tmp_path))
    assert host.ram().total_bytes == 32_000_000 * 1024
    tight = tmp_path / "sys/fs/cgroup/tight"
    tight.mkdir()
    for name, text in (("memory.max", str(GIB)), ("memory.current", "0"), ("memory.stat", "inactive_file 0\n")):
        (tight / name).write_text(text)
    (tmp_path / "proc/self/cgroup").write_text("0::/tight\n")
    assert host.ram().total_bytes == GIB


def test_the_first_cgroup_version_has_its_own_names(tmp_path: Path) -> None:
    host = Host(a_host(tmp_path))
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/box\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/memory/box"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    assert (host.ram().total_bytes, host.ram().free_bytes) == (4 * GIB, 2 * GIB)


@pytest.mark.parametrize("text", ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: y kB\n"])
def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    (a_host(tmp_path) / "proc/meminfo").write_text(text)
    assert sample_ram(tmp_path).free_bytes is None


def test_what_a_process_holds_leaves_out_mapped_pages() -> None:
    found = Host().held([os.getpid(), 2**22 + 1])
    assert list(found) == [os.getpid()] and 1 * MIB < found[os.getpid()] < 4 * GIB


def test_what_a_process_holds_is_anonymous_and_pinned_and_nothing_once_it_has_gone(tmp_path: Path) -> None:
    host, status = Host(a_host(tmp_path)), tmp_path / "proc/7/status"
    status.parent.mkdir()
    status.write_text("Name:\tengine\nVmRSS:\t 999 kB\nRssAnon:\t  100 kB\nRssFile:\t 800 kB\nRssShmem:\t   20 kB\n")
    assert host.held([7]) == {7: 120 * 1024}
    status.write_text("Name:\tengine\nState:\tZ (zombie)\n")
    assert host.held([7]) == {}


def test_files_are_opened_once_and_closed_when_a_process_is_no_longer_asked_about() -> None:
    host, pid = Host(), os.getpid()
    host.ram(), host.held([pid])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        host.ram(), host.held([pid])
    assert len(os.listdir("/proc/self/fd")) == before
    host.held([])
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_amd_cards_are_read_from_the_drivers_files(tmp_path: Path) -> None:
    for number in (1, 0):
        device = tmp_path / f"pci/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "mem_info_vram_total").write_text(str(16 * GIB))
        (device / "mem_info_vram_used").write_text(str(2 * GIB))
        (tmp_path / f"card{number}").mkdir()
        (tmp_path / f"card{number}/device").symlink_to(device)
    gpus = amdgpu.read(tmp_path)
    assert [(g.id, g.index, g.free_bytes) for g in gpus] == [
        ("0000:00:00.0", 0, 14 * GIB),
        ("0000:01:00.0", 1, 14 * GIB),
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 8])
async def test_a_simulated_machine_is_read_again_at_every_sample(tmp_path: Path, count: int) -> None:
    file = tmp_path / "sim.json"
    gpus = [{"id": f"GPU-{i}", "index": i, "name": "sim", "total_mib": 16384, "free_mib": 15000} for i in range(count)]
    file.write_text(json.dumps({"gpus": gpus, "ram_available_mib": 30000, "ram_total_mib": 32000}))
    monitor = Monitor(f"file:{file}")
    sample, held = await monitor.sample({"a": os.getpid()})
    assert [g.free_bytes for g in sample.gpus] == [15000 * MIB] * count and held == {}
    assert (sample.ram.total_bytes, sample.ram.free_bytes) == (32000 * MIB, 30000 * MIB)
    file.write_text(json.dumps({"gpus": gpus, "ram_available_mib": 1000, "ram_total_mib": 32000}))
    assert (await monitor.sample({}))[0].ram.free_bytes == 1000 * MIB


@pytest.mark.parametrize("text", ["", "[", "[]", '{"gpus": [{"id": "x"}]}', '{"gpus": 3}'])
async def test_a_broken_file_means_unknown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sim.json"
    file.write_text(text)
    sample, _ = await Monitor(f"file:{file}").sample({})
    assert not sample.gpus_known and str(file) in sample.problem


async def test_a_missing_file_means_unknown(tmp_path: Path) -> None:
    sample, _ = await Monitor(f"file:{tmp_path}/none.json").sample({})
    assert not sample.gpus_known


async def test_no_source_means_no_gpus_and_real_ram() -> None:
    sample, held = await Monitor("none").sample({"a": os.getpid()})
    assert sample.gpus_known and sample.gpus == () and sample.ram.free_bytes and held["a"]["ram"] > 0


def test_a_kernel_file_that_was_taken_away_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.max"
    path.write_text("1")
    file = KernelFile(path)
    assert file.read() == b"1"
    path.unlink()
    path.write_text("2")
    gone = [True]

    def pread(fd: int, count: int, offset: int) -> bytes:
        if gone and gone.pop():
            raise OSError(19, "no such device")
        return real(fd, count, offset)

    real = os.pread
    monkeypatch.setattr(os, "pread", pread)
    assert file.read() == b"2"


def test_a_limit_that_comes_later_counts(tmp_path: Path) -> None:
    host = Host(a_host(tmp_path, limit=str(8 * GIB), used=6 * GIB))
    limit = tmp_path / "sys/fs/cgroup/box/memory.max"
    limit.unlink()
    without = host.ram().total_bytes
    limit.write_text(str(8 * GIB))
    assert host.ram().total_bytes == 8 * GIB < without

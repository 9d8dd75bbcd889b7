"""When a configuration is read again, and what a mistake does; no process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swapd import reloading, wiring
from swapd.config.diff import Changes
from swapd.config.load import load, load_text
from swapd.config.resolve import Resolved, resolve
from swapd.errors import ConfigError, UnknownModel
from swapd.proxy.settings import ProxySettings
from swapd.reloading import Reloader

HEAD = '[devices]\nsource = "none"\n'


def models(*ids: str) -> str:
    return HEAD + "".join(f'[models.{id_}]\ncmd = ["x", "${{PORT}}"]\n' for id_ in ids)


def resolved(text: str) -> Resolved:
    return resolve(load_text(text, None, flags={}, name="t"), files=False)


class InForce:
    """What was put in force."""

    def __init__(self) -> None:
        self.found: list[Changes] = []
        self.error: Exception | None = None

    def __call__(self, new: Resolved, found: Changes) -> None:
        if self.error is not None:
            raise self.error
        self.found.append(found)


@asynccontextmanager
async def watching(current: Resolved, read: Callable[[], Resolved]) -> AsyncIterator[tuple[Reloader, InForce]]:
    in_force = InForce()
    reloader = Reloader(current, ProxySettings(), read=read, put_in_force=in_force)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reloader.watch())
        await asyncio.sleep(0.2)  # the watcher's thread has begun
        yield reloader, in_force
        task.cancel()


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def test_an_ask_reloads_and_an_error_of_ours_ends_nothing() -> None:
    new = resolved(models("b"))
    async with watching(resolved(models("a")), lambda: new) as (reloader, in_force):
        in_force.error = RuntimeError("a bug")
        with capture_logs() as logged:
            reloader.ask()
            await until(lambda: logged)
        assert logged[0]["event"] == "reload failed"
        in_force.error = None
        reloader.ask()
        await until(lambda: in_force.found)
        assert in_force.found == [Changes(added=("b",), removed=("a",))]


async def test_mistakes_leave_the_old_one_in_force_until_they_are_mended() -> None:
    answers: list[Resolved | ConfigError] = [ConfigError("a mistake"), resolved(models("a"))]

    def read() -> Resolved:
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    settings, in_force = ProxySettings(), InForce()
    reloader = Reloader(resolved(models("a")), settings, read=read, put_in_force=in_force)
    with pytest.raises(ConfigError):
        await reloader.reload()
    assert settings.config_error == "a mistake" and not in_force.found
    told = await reloader.reload()
    assert settings.config_error is None and told["added"] == told["changed"] == told["removed"] == []


def test_model_that_a_reload_removed_is_no_longer_there_for_who_asked_meanwhile() -> None:
    supervisor = wiring.imagine(resolved(models("a", "b")))
    supervisor.replace(resolved(models("b")).catalog, frozenset())
    with pytest.raises(UnknownModel, match="'a' is no longer configured"):
        supervisor.request("a", rid="1")
    assert supervisor.state_of("a") == "stopped" and not supervisor._tickets


def test_what_a_new_configuration_changes() -> None:
    old = resolved(models("a", "b"))
    new = resolved(
        models("b", "c").replace("[models.b]", '[models.b]\nenv = { X = "1" }') + "[server]\ncapture = true\n"
    )
    assert reloading.changes(old, new) == Changes(("c",), ("b",), ("a",), ("server.capture",))


def _by_rename(folder: Path, config: Path, text: str) -> None:
    new = folder / "x.toml"
    new.write_text(text)
    new.replace(config)


def _in_place(folder: Path, config: Path, text: str) -> None:
    config.write_text(text)


def _as_configmap(folder: Path, config: Path, text: str) -> None:
    """Kubernetes: the file is a link into ``..data``, a link to a folder that is swapped."""
    version = folder / f"..{time.monotonic_ns()}"
    version.mkdir()
    (version / "swapd.toml").write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(version.name)
    link.replace(folder / "..data")
    if not config.is_symlink():
        config.unlink()
        config.symlink_to("..data/swapd.toml")


@pytest.mark.parametrize("write", [_by_rename, _in_place, _as_configmap])
async def test_change_of_the_file_is_told_by_the_kernel_however_it_is_written(
    tmp_path: Path, write: Callable[[Path, Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "LOOK_ANYWAY_S", 60.0)
    config = tmp_path / "swapd.toml"
    config.write_text(models("a"))

    def read() -> Resolved:
        return resolve(load(config, flags={}), files=False)

    async with watching(read(), read) as (_, in_force):
        write(tmp_path, config, models("a", "c"))
        await until(lambda: len(in_force.found) == 1)
        write(tmp_path, config, models("d"))
        await until(lambda: len(in_force.found) == 2)
        assert in_force.found[0].added == ("c",) and in_force.found[1].removed == ("a", "c")


async def test_change_between_the_start_and_the_first_look_is_not_lost(tmp_path: Path) -> None:
    config = tmp_path / "swapd.toml"
    config.write_text(models("a"))

    def read() -> Resolved:
        return resolve(load(config, flags={}), files=False)

    current = read()
    config.write_text(models("b"))
    async with watching(current, read) as (_, in_force):
        await until(lambda: in_force.found)
        assert in_force.found == [Changes(added=("b",), removed=("a",))]


async def test_who_asks_is_told_what_the_watcher_was_first_to_see(tmp_path: Path) -> None:
    config = tmp_path / "swapd.toml"
    config.write_text(models("a"))

    def read() -> Resolved:
        return resolve(load(config, flags={}), files=False)

    async with watching(read(), read) as (reloader, in_force):
        config.write_text(models("a", "b"))
        await until(lambda: in_force.found)
        assert (await reloader.reload())["added"] == ["b"]
        assert (await reloader.reload())["added"] == []


async def test_what_goes_on_beside_the_file_is_no_news(tmp_path: Path) -> None:
    config, told = tmp_path / "swapd.toml", asyncio.Event()
    config.write_text(models("a"))
    calls: list[None] = []

    def tell() -> None:
        calls.append(None)
        told.set()

    with reloading._told_by_the_kernel(config, tell):
        for number in range(20):
            (tmp_path / f"{number}.log").write_text("a line\n")
        config.read_text()
        _by_rename(tmp_path, config, models("b"))
        async with asyncio.timeout(10):
            await told.wait()
    assert len(calls) == 1


async def test_file_is_read_now_and_then_where_the_kernel_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_instances(observer: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.api.BaseObserver.start", no_more_instances)
    monkeypatch.setattr(reloading, "LOOK_ANYWAY_S", 0.05)
    config = tmp_path / "swapd.toml"
    config.write_text(models("a"))

    def read() -> Resolved:
        return resolve(load(config, flags={}), files=False)

    with capture_logs() as logged:
        async with watching(read(), read) as (_, in_force):
            _in_place(tmp_path, config, models("a", "c"))
            await until(lambda: in_force.found)
            assert in_force.found[0].added == ("c",)
    assert "instance limit" in logged[0]["error"] and "is read every" in logged[0]["event"]

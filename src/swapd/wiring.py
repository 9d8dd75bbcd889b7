"""Composition root: builds everything and passes it down."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import uvloop

from swapd.activity_store import ActivityStore
from swapd.config.listen import parse_listen
from swapd.config.load import Loaded, find_config, load, load_text
from swapd.config.resolve import Resolved, default_state_dir, resolve
from swapd.core.spec import LaunchSpec, ModelFacts, RouteSpec
from swapd.devices.host import physical_cores
from swapd.devices.monitor import Monitor
from swapd.errors import ConfigError, StartFailed
from swapd.launch import pid1
from swapd.launch.limits import raise_nofile
from swapd.llama import demo
from swapd.llama.flags import flags_for, flags_of, llama_server_args
from swapd.llama.launcher import LlamaLauncher, Surroundings
from swapd.planner.footprints import Footprints
from swapd.store import Store
from swapd.supervisor.pool import Supervisor
from swapd.units import MIB

if TYPE_CHECKING:
    from swapd.config.diff import Changes
    from swapd.planner.check import Report
    from swapd.planner.plan import Result as PlanResult
    from swapd.proxy.settings import ProxySettings

log = structlog.get_logger(__name__)

T = TypeVar("T")


class MonotonicClock:
    """Implements ``supervisor.ports.Clock``."""

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()


def configure(
    config: str | None = None,
    *,
    listen: str | None = None,
    devices: str | None = None,
    demo_models: bool = False,
    files: bool = True,
) -> Resolved:
    """The configuration that a command line means: a file, the demo, or what is found on this machine.

    Raises:
        ConfigError: with every mistake at once, or what the demo needs.
    """
    flags: dict[str, Any] = {}
    if listen is not None:
        flags["server"] = {"listen": listen}
    if devices is not None:
        flags["devices"] = {"source": f"file:{Path(devices).absolute()}"}
    return resolve(_loaded(config, flags, demo_models=demo_models), files=files)


def _loaded(config: str | None, flags: Mapping[str, Any], *, demo_models: bool) -> Loaded:
    from swapd.config.generated import demo_toml, find_models, found_toml, model_folders

    if demo_models:
        missing, model = demo.what_is_missing(), demo.demo_model_path()
        if missing or model is None:
            raise ConfigError(missing)
        return load_text(demo_toml(model), None, flags=flags, name="(demo)")
    path = find_config(config)
    if path is not None:
        return load(path, flags=flags, lenient=True)
    return load_text(found_toml(find_models(model_folders())), None, flags=flags, name="(found models)")


def serve(resolved: Resolved, on_listening: Callable[[str], None], again: Callable[[], Resolved]) -> None:
    """Serve until a signal; returns when every child is gone. ``again``: reads the configuration anew, for a reload.

    Raises:
        SwapdError: if the address is taken or the state directory cannot be used.
    """
    nofile_soft = raise_nofile()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(resolved, on_listening, nofile_soft, again))


async def _serve(
    resolved: Resolved, on_listening: Callable[[str], None], nofile_soft: int, again: Callable[[], Resolved]
) -> None:
    from swapd.proxy.activity import Activities
    from swapd.proxy.app import build_app
    from swapd.proxy.directory import Directory
    from swapd.proxy.listen import address_of, bind, inherited
    from swapd.proxy.peers import Peers
    from swapd.proxy.serve import serve as serve_app
    from swapd.reloading import Reloader

    server, given = resolved.server, inherited()
    listen = address_of(given[0]) if given else parse_listen(resolved.server.listen)
    is_loopback = all(address_of(one).is_loopback for one in given) if given else listen.is_loopback
    if given and not (is_loopback or listen.path or server.api_keys):
        log.warning("EVERYBODY ON THE NETWORK CAN USE THIS SERVER: the socket it was given has no api_keys")
    settings = _settings_of(resolved, is_loopback)
    launches, routes = dict(resolved.launches), dict(resolved.routes)
    store = _open_store(resolved.state_dir)
    activity = ActivityStore(resolved.state_dir / "activity.sqlite")
    info = Footprints(launches, store, run=secrets.token_hex(4), policy=resolved.catalog.policy)
    surroundings = Surroundings(resolved.state_dir, dict(os.environ), nofile_soft)
    launcher = LlamaLauncher(launches, surroundings, resolve_gpus=info.gpus_to_show, default_ctx=info.default_ctx)
    supervisor = Supervisor(
        resolved.catalog,
        launcher=launcher,
        monitor=Monitor(resolved.device_source),
        store=info,
        info=info,
        clock=MonotonicClock(),
    )
    activities = Activities(supervisor, activity)
    reaper = pid1.Reaper() if pid1.is_init() else None
    try:
        sockets = given or bind(listen)  # before anything is loaded: the address may be taken
        async with supervisor.running():
            directory = Directory(resolved.names, routes, supervisor, Peers(resolved.names.peers))
            app = build_app(supervisor, routes, settings, directory, activities)
            async with asyncio.TaskGroup() as group:
                learning = group.create_task(_learn(supervisor, launcher, routes, launches, info))

                def put_in_force(new: Resolved, found: Changes) -> None:
                    nonlocal learning
                    _replace_all(launches, new.launches)
                    kept = {m: routes[m].facts for m in routes if m not in (*found.changed, *found.removed)}
                    _replace_all(routes, {m: replace(r, facts=kept.get(m, r.facts)) for m, r in new.routes.items()})
                    info.use(new.catalog.policy)
                    directory.use(new.names)
                    settings.take(_settings_of(new, is_loopback))
                    supervisor.replace(new.catalog, frozenset(found.changed))
                    learning.cancel()  # what it was about may be gone
                    learning = group.create_task(_learn(supervisor, launcher, routes, launches, info))

                reloader = Reloader(resolved, settings, read=again, put_in_force=put_in_force)
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.ask)
                reloading = group.create_task(reloader.watch())
                asking = group.create_task(directory.peers.watch())
                await serve_app(app, listen, supervisor, on_listening, sockets, is_inherited=bool(given))
                learning.cancel()
                reloading.cancel()
                asking.cancel()
    finally:
        if reaper is not None:
            reaper.close()
        launcher.close()
        store.close()
        activities.close()
        activity.close()


def _settings_of(resolved: Resolved, is_loopback: bool) -> ProxySettings:
    from swapd.proxy.settings import ProxySettings

    server = resolved.server
    return ProxySettings(
        api_keys=tuple(server.api_keys),
        admin_keys=tuple(server.admin_keys),
        cors_origins=tuple(server.cors_origins),
        hosts=tuple(server.hosts),
        header_hold_s=server.header_hold,
        heartbeat_s=server.heartbeat,
        max_body_bytes=server.max_body,
        bound_to_loopback=is_loopback,
        config_path=str(resolved.path or ""),
        loading_status=server.loading_status,
        spool_dir=str(resolved.state_dir / "tmp"),
        capture=server.capture,
    )


def _replace_all(mapping: dict[str, T], new: Mapping[str, T]) -> None:
    """In place: others hold this very mapping."""
    mapping.clear()
    mapping.update(new)


async def _tell_facts(routes: dict[str, RouteSpec], launches: Mapping[str, LaunchSpec], info: Footprints) -> None:
    """What is told of models that are not loaded: read from the headers once swapd listens, not before."""
    for id_, route in list(routes.items()):
        facts = await asyncio.to_thread(_facts, launches[id_])
        told = replace(route, ctx_tokens=await asyncio.to_thread(info.context, id_), facts=facts)
        if routes.get(id_) is route:  # not replaced meanwhile
            routes[id_] = told


def _facts(spec: LaunchSpec) -> ModelFacts:
    from swapd.gguf.facts import read_facts

    binary = spec.binary
    args = (*binary.args, *spec.args) if binary else llama_server_args(spec.cmd) or ()
    values = {flag.name: flag.value or "" for flag in flags_of(args)}
    path = spec.gguf or values.get("-m", "") or values.get("--model", "")
    facts = read_facts(path, flags_for(spec)) if path else ModelFacts()
    adapters = tuple(f.value or "" for f in flags_of(args) if f.name in ("--lora", "--lora-scaled"))
    command = spec.cmd or (binary.path or "(embedded engine)" if binary else "", "-m", spec.gguf, *args)
    return replace(facts, command=command, adapters=adapters)


async def _learn(
    supervisor: Supervisor,
    launcher: LlamaLauncher,
    routes: dict[str, RouteSpec],
    launches: Mapping[str, LaunchSpec],
    info: Footprints,
) -> None:
    """What can wait until swapd listens: headers are read, then engines are asked about models nobody knows."""
    try:
        await _tell_facts(routes, launches, info)
        await asyncio.to_thread(info.warm_up(supervisor.sample))
        await _ask_engines(supervisor, launcher, info)
    except Exception:  # what is learned here is a convenience: nothing of it may end the server
        log.exception("headers and engines could not be asked")


async def _ask_engines(supervisor: Supervisor, launcher: LlamaLauncher, info: Footprints) -> None:
    """Second opinions for models the formulas do not know, one after another while nothing is loaded; once ever."""
    for model in supervisor.models():
        await asyncio.sleep(0)
        if not info.is_unsure(model, supervisor.sample) or supervisor.is_anything_loaded():
            continue
        try:
            by_gpu = await launcher.project(model, info.footprint(model, supervisor.sample).args)
        except StartFailed as error:
            log.warning("the engine could not be asked", model=model, error=str(error))
            continue
        info.take_projection(model, by_gpu)
        supervisor.size_anew(model)
        log.info("the engine's own projection", model=model, mib=[size // MIB for size in by_gpu])


def _open_store(state_dir: Path) -> Store:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Store(state_dir / "swapd.sqlite")
    except OSError as error:
        raise ConfigError(f"state_dir {state_dir}: {error.strerror}", key="server.state_dir") from None


def _known_store(state_dir: Path) -> Store:
    """What was measured here before, for commands that only look; nothing if swapd never ran here."""
    path = state_dir / "swapd.sqlite"
    try:
        return Store(path, read_only=True) if path.exists() else Store(None)
    except (sqlite3.Error, OSError):
        return Store(None)


def imagine(resolved: Resolved) -> Supervisor:
    """A supervisor that starts nothing, for ``explain`` without a running swapd: this machine with nothing loaded."""
    monitor, store = Monitor(resolved.device_source), _known_store(resolved.state_dir)
    info = Footprints(resolved.launches, store, run="explain", policy=resolved.catalog.policy)
    launcher = LlamaLauncher(
        resolved.launches,
        Surroundings(resolved.state_dir, {}),
        resolve_gpus=info.gpus_to_show,
        default_ctx=info.default_ctx,
    )
    clock = MonotonicClock()
    supervisor = Supervisor(resolved.catalog, launcher=launcher, monitor=monitor, store=info, info=info, clock=clock)
    supervisor.take_in(monitor.sample_now())
    return supervisor


def plan(
    files: Sequence[str],
    args: Sequence[tuple[str, ...]],
    *,
    search: bool,
    ctx: int | None = None,
    gpus: Sequence[str] = (),
    ram: int | None = None,
    headroom: int | None = None,
    ladder: str | None = None,
    cores: int = 0,
    devices: str | None = None,
) -> PlanResult:
    """What models take on a machine that is typed (``gpus``), simulated (``devices``) or this one.

    Raises:
        ConfigError, GgufError: a file, a flag or a machine that cannot be read.
    """
    from swapd.planner import plan as planning
    from swapd.planner.machine import DEFAULT_HEADROOM_BYTES, ENDLESS_BYTES, machine_of, typed_machine

    keep = DEFAULT_HEADROOM_BYTES if headroom is None else headroom
    if gpus:
        machine = typed_machine(gpus, keep, ENDLESS_BYTES if ram is None else ram, cores)
    else:
        monitor = Monitor(f"file:{Path(devices).absolute()}" if devices else "auto")
        sample = monitor.sample_now()
        if not sample.gpus_known:
            raise ConfigError(f"the GPUs cannot be read: {sample.problem}", hint="give them with --gpu")
        cores = cores or (0 if devices else physical_cores())
        store = _known_store(default_state_dir(os.environ))
        overheads = {g.id: size for g in sample.gpus if (size := store.overhead(None, g.id)) is not None}
        machine = machine_of(sample, overheads, keep, DEFAULT_HEADROOM_BYTES, cores)
        if ram is not None:
            machine = replace(machine, ram_bytes=ram)
    asks = planning.asks(files, args, ctx or 0, planning.parse_ladder(ladder) if ladder else None)
    if search:
        return planning.search(asks, machine)
    if len(asks) > 1:
        raise ConfigError("--args predicts one file", hint="add --search for a set")
    return planning.predict_only(asks[0], machine)


def check(resolved: Resolved, *, files: bool = True, is_machine_given: bool = False) -> Report:
    """Probe binaries, read headers, and compare GPUs and sizes with the machine; ``is_machine_given``: by a flag.

    Raises:
        ConfigError: with every mistake at once.
    """
    from swapd.planner.check import Report, check_files, check_gpus, size_models

    sample = Monitor(resolved.device_source).sample_now()
    if is_machine_given and not sample.gpus_known:
        raise ConfigError(f"--devices: {sample.problem}")
    check_gpus(resolved, sample, files=files)
    report = check_files(resolved) if files else Report(list(resolved.warnings))
    resolved.problems.raise_if_any()
    size_models(resolved, sample, report, _known_store(resolved.state_dir))
    return report

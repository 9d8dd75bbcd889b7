"""From the validated file to what the other rooms take: frozen core types, absolute paths, and what to warn of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from swapd.config.choices import ladder_of
from swapd.config.lines import KeyPath
from swapd.config.listen import parse_listen
from swapd.config.load import Loaded, Problems
from swapd.config.naming_rules import must_be_model, names_of
from swapd.config.schema import File, Model, Server
from swapd.core.flags import MANAGED_FLAGS, flag_name
from swapd.core.naming import Names
from swapd.core.spec import BinarySpec, Catalog, Group, LaunchSpec, ModelSpec, Policy, RouteSpec
from swapd.errors import ConfigError
from swapd.units import GIB, format_size

SAFE_HEADROOM: Final = GIB
"""Law M1: with 637 MiB free decoding looked fine over 10 tokens and collapsed over 250."""


@dataclass(frozen=True)
class Resolved:
    """Everything ``wiring`` needs; ``warnings`` are for people, each with its place. ``text``: what was read."""

    path: Path | None
    text: str
    server: Server
    state_dir: Path
    device_source: str
    catalog: Catalog
    launches: Mapping[str, LaunchSpec]
    routes: Mapping[str, RouteSpec]
    names: Names
    binaries: Mapping[str, BinarySpec]
    warnings: tuple[str, ...]
    problems: Problems


def resolve(loaded: Loaded, *, files: bool = True, environ: Mapping[str, str] = os.environ) -> Resolved:
    """Check what the schema cannot see, and make core types; ``files``: also whether GGUFs and binaries exist.

    Raises:
        ConfigError: with every mistake at once.
    """
    return _Resolver(loaded, environ, files=files).resolve()


class _Resolver:
    def __init__(self, loaded: Loaded, environ: Mapping[str, str], *, files: bool) -> None:
        self.file: File = loaded.file
        self.path, self.text, self.env_read = loaded.path, loaded.text, loaded.env_read
        self.base = loaded.path.parent.absolute() if loaded.path else Path.cwd()
        self.environ, self.files = environ, files
        self.problems: Problems = loaded.problems
        self.warnings: list[str] = []

    def resolve(self) -> Resolved:
        names = names_of(self.file, self.problems)
        self._check_groups()
        self._check_backoff()
        binaries = {name: self._binary(name) for name in self.file.binaries}
        launches = {id_: self._launch(id_, model, binaries) for id_, model in self.file.models.items()}
        self._warn_not_effective()
        self._warn_headroom()
        self._check_listen()
        device_source = self._device_source()
        self.problems.raise_if_any()
        return Resolved(
            path=self.path,
            text=self.text,
            server=self.file.server,
            state_dir=self._state_dir(),
            device_source=device_source,
            catalog=self._catalog(),
            launches=launches,
            routes={id_: _route(id_, model) for id_, model in self.file.models.items()},
            names=names,
            binaries=binaries,
            warnings=tuple(self.warnings),
            problems=self.problems,
        )

    # ---- checks

    def _check_groups(self) -> None:
        owner: dict[str, str] = {}
        for name, group in self.file.groups.items():
            for member in group.members:
                path = ("groups", name, "members")
                must_be_model(self.file, self.problems, member, path)
                if member in owner:
                    self.problems.add(path, f"{member!r} is in two groups", f"also in {owner[member]!r}")
                owner.setdefault(member, name)

    def _check_backoff(self) -> None:
        low, high = self.file.scheduling.backoff
        if low > high:
            self.problems.add(("scheduling", "backoff"), "the first pause is longer than the last")

    def _check_listen(self) -> None:
        server, path = self.file.server, ("server", "listen")
        try:
            address = parse_listen(server.listen)
        except ConfigError as error:
            self.problems.add(path, error.message)
            return
        if not (address.path or address.is_loopback or server.api_keys):
            self._warn(
                path, "EVERYBODY ON THE NETWORK CAN USE THIS SERVER: it listens beyond loopback without api_keys"
            )

    # ---- models

    def _binary(self, name: str) -> BinarySpec:
        binary = self.file.binaries[name]
        path = self._program(binary.path)
        libraries = tuple(str(self._absolute(p)) for p in binary.library_path)
        self._check_env(binary.env, ("binaries", name, "env"))
        self._check_args(binary.args, ("binaries", name, "args"))
        self._must_be_there(path, ("binaries", name, "path"), "no such program")
        for folder in libraries:
            self._must_be_there(folder, ("binaries", name, "library_path"), "no such folder")
        return BinarySpec(name, path, libraries, dict(binary.env), tuple(binary.args))

    def _command(self, words: Sequence[str]) -> tuple[str, ...]:
        return (self._program(words[0]), *words[1:]) if words else ()

    def _program(self, text: str) -> str:
        if "/" not in text and not text.startswith("~"):
            return shutil.which(text, path=self.environ.get("PATH")) or text
        return str(self._absolute(text))

    def _absolute(self, text: str) -> Path:
        return Path(os.path.normpath(self.base / Path(text).expanduser()))

    def _check_env(self, env: Mapping[str, str], path: KeyPath) -> None:
        for name in env:
            if not name or "=" in name or "\0" in name:
                self.problems.add(path, f"{name!r} is no name of an environment variable")

    def _launch(self, id_: str, model: Model, binaries: Mapping[str, BinarySpec]) -> LaunchSpec:
        at = ("models", id_)
        self._check_kind(id_, model)
        self._check_env(model.env, (*at, "env"))
        if "CUDA_VISIBLE_DEVICES" in model.env and self._says(id_, "gpus"):
            self.problems.add((*at, "env"), "CUDA_VISIBLE_DEVICES is set both here and by gpus", "keep gpus")
        if model.gguf:
            self._must_be_there(str(self._absolute(model.gguf)), (*at, "gguf"), "no such file")
        args = list(model.args)
        if isinstance(model.n_cpu_moe, int) and model.n_cpu_moe:
            args += ["--n-cpu-moe", str(model.n_cpu_moe)]
        return LaunchSpec(
            id=id_,
            gguf=str(self._absolute(model.gguf)) if model.gguf else "",
            binary=self._binary_of(id_, model, binaries),
            args=tuple(args),
            cmd=self._command(model.cmd),
            stop_cmd=self._command(model.stop_cmd),
            health=model.health,
            ctx_tokens=model.ctx if isinstance(model.ctx, int) else 0,
            gpus=None if model.gpus == "all" else tuple(model.gpus),
            env=dict(model.env),
            scrub_env=self.env_read,
            api_key=model.api_key,
            upstream_model=model.upstream_model,
            load_timeout_s=model.load_timeout,
            stop_grace_s=model.stop_grace,
            kill_timeout_s=self.file.scheduling.kill_timeout,
            vram=model.vram,
            ram=model.ram,
            auto_ctx=model.ctx == "auto",
            auto_n_cpu_moe=model.n_cpu_moe == "auto",
            ladder=ladder_of(id_, model, [*self._binary_args(model), *model.args], self.problems),
        )

    def _binary_args(self, model: Model) -> list[str]:
        binary = self.file.binaries.get(model.binary)
        return list(binary.args) if binary else []

    def _must_be_there(self, path: str, at: KeyPath, what: str) -> None:
        if not self.files or os.path.exists(path):
            return
        folder, name = os.path.split(path)
        near = get_close_matches(name, os.listdir(folder), n=1) if os.path.isdir(folder) else []
        hint = f"did you mean {near[0]!r}?" if near else "" if os.path.isdir(folder) else f"there is no folder {folder}"
        if os.path.islink(path):
            hint = f"it links to {os.readlink(path)}, which is not there: mount the whole repository folder (N8)"
        self.problems.add(at, f"{path}: {what}", hint)

    def _says(self, id_: str, key: str) -> bool:
        lines = self.problems.lines
        return ("models", id_, key) in lines or ("defaults", key) in lines

    def _check_kind(self, id_: str, model: Model) -> None:
        at = ("models", id_)
        if bool(model.gguf) == bool(model.cmd):
            what = "both gguf and cmd are given" if model.gguf else "neither gguf nor cmd is given"
            self.problems.add(at, what, "a model is one of the two")
        if model.cmd and not any("${PORT}" in word or "${SOCKET}" in word for word in model.cmd):
            self.problems.add((*at, "cmd"), "has neither ${PORT} nor ${SOCKET}", "swapd must know where it listens")
        if model.cmd:
            for key in ("binary", "args", "ctx", "n_cpu_moe"):
                if ("models", id_, key) in self.problems.lines:
                    self.problems.add((*at, key), "is only for gguf models")
        if model.gguf:
            self._check_args(model.args, (*at, "args"))

    def _check_args(self, args: Sequence[str], path: KeyPath) -> None:
        for word in args:
            flag = word.split("=", 1)[0]
            if flag_name(word) in MANAGED_FLAGS:
                self.problems.add(path, f"{flag} is set by swapd itself", "remove it")

    def _binary_of(self, id_: str, model: Model, binaries: Mapping[str, BinarySpec]) -> BinarySpec | None:
        if model.cmd:
            return None
        if not model.binary:
            return BinarySpec("llama-server", shutil.which("llama-server", path=self.environ.get("PATH")) or "")
        if model.binary not in binaries:
            near = get_close_matches(model.binary, binaries, n=1, cutoff=0.0)
            hint = f"did you mean {near[0]!r}?" if near else "there is no [binaries] table"
            self.problems.add(("models", id_, "binary"), f"{model.binary!r} is no entry of [binaries]", hint)
        return binaries.get(model.binary)

    # ---- results

    def _catalog(self) -> Catalog:
        s, h = self.file.scheduling, self.file.headroom
        policy = Policy(
            max_wait_s=s.max_wait,
            min_residency_s=s.min_residency,
            queue_limit=s.queue_limit,
            queue_timeout_s=s.queue_timeout,
            release_timeout_s=s.release_timeout,
            backoff_s=(s.backoff[0], s.backoff[1]),
            ungrouped=s.ungrouped,
            drain_s=self.file.server.drain,
            sample_interval_s=self.file.devices.sample_interval,
            vram_headroom_bytes=h.vram,
            ram_headroom_bytes=h.ram,
            headroom_bytes=dict(h.gpus),
            page_cache=h.page_cache,
        )
        models = {id_: self._spec(id_, model) for id_, model in self.file.models.items()}
        groups = {
            name: Group(name, tuple(g.members), g.swap, g.exclusive, g.persistent, g.preload)
            for name, g in self.file.groups.items()
        }
        return Catalog(models, groups, policy)

    def _spec(self, id_: str, model: Model) -> ModelSpec:
        return ModelSpec(
            id=id_,
            priority=model.priority,
            concurrency=model.concurrency,
            idle_timeout_s=model.idle_timeout,
            linger=self.file.scheduling.linger if model.linger is None else model.linger,
            on_conflict=model.on_conflict,
            persistent=model.persistent,
            preload=model.preload,
            expect_gpu=model.expect_gpu,
        )

    def _state_dir(self) -> Path:
        if self.file.server.state_dir:
            return self._absolute(self.file.server.state_dir)
        return default_state_dir(self.environ)

    def _device_source(self) -> str:
        source = self.file.devices.source
        if source in ("auto", "none"):
            return source
        if not source.startswith("file:"):
            self.problems.add(("devices", "source"), f"{source!r} is not known", 'write "auto", "none" or "file:PATH"')
            return "none"
        return "file:" + str(self._absolute(source.removeprefix("file:")))

    # ---- warnings

    def _warn(self, path: KeyPath, text: str) -> None:
        line = self.problems.lines.get(path, 0)
        where = f"{self.problems.file}:{line}" if line else self.problems.file
        self.warnings.append(f"{where}: {'.'.join(path)}: {text}")

    def _warn_not_effective(self) -> None:
        if ("context",) in self.problems.lines:
            self._warn(("context",), "not yet effective")
        if self.file.server.capture and not self.file.server.admin_keys:
            self._warn(("server", "capture"), "nothing is kept without admin_keys: they alone may read it")
        for id_, model in self.file.models.items():
            self._warn_keys(model, ("models", id_), ("keep_context",))

    def _warn_keys(self, section: BaseModel, at: KeyPath, keys: tuple[str, ...]) -> None:
        for key in keys:
            if getattr(section, key) != type(section).model_fields[key].default:
                self._warn((*at, key), "not yet effective")

    def _warn_headroom(self) -> None:
        sizes: dict[KeyPath, Any] = {("headroom", "vram"): self.file.headroom.vram}
        sizes |= {("headroom", "gpus", gpu): size for gpu, size in self.file.headroom.gpus.items()}
        for path, size in sizes.items():
            if size < SAFE_HEADROOM:
                self._warn(
                    path,
                    f"{format_size(size)} is less than 1 GiB: at 323 to 637 MiB free decoding was measured to collapse "
                    "over long answers (5.5 to 0.7 tokens/s); keep 1 GiB unless nothing else uses that GPU (M1)",
                )


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/swapd``."""
    home = environ.get("HOME", "/")
    return Path(environ.get("XDG_STATE_HOME") or Path(home) / ".local" / "state") / "swapd"


def _route(id_: str, model: Model) -> RouteSpec:
    return RouteSpec(
        id=id_,
        first_byte_timeout_s=model.first_byte_timeout,
        on_hangup=model.on_hangup,
        upstream_model=model.upstream_model,
        api_key=model.api_key,
        description=model.description,
        unlisted=model.unlisted,
        ctx_tokens=model.ctx if isinstance(model.ctx, int) else 0,
        aliases=tuple(model.aliases),
        idle_timeout_s=model.idle_timeout,
    )

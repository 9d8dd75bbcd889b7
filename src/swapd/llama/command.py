"""From a model's ``LaunchSpec`` to the command line and environment of its process (pure)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from swapd.core.endpoint import Upstream
from swapd.core.flags import USUAL_CTX_TOKENS
from swapd.core.spec import LaunchSpec
from swapd.llama.flags import CTX_FLAGS, FIT_FLAGS, GPU_LAYER_FLAGS, has_flag
from swapd.llama.probe import HIDE_GPUS, BinaryReport, embedded_command
from swapd.llama.protocol import ROUTER_VARIABLE

NOT_INHERITED = (
    "LLAMA_*", "SWAPD_*", "*_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "NOTIFY_SOCKET",
    "LISTEN_*", "WATCHDOG_*",
)  # fmt: skip
_PLACE = re.compile(r"\$\{(PORT|SOCKET|MODEL_ID|PID)\}")


@dataclass(frozen=True, slots=True)
class Command:
    """What is executed. ``speaks_router``: the child's stdin and stdout carry llama-server's router protocol."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    speaks_router: bool = False


def build(
    spec: LaunchSpec,
    report: BinaryReport | None,
    upstream: Upstream,
    *,
    inherited: Mapping[str, str],
    gpus: Sequence[str] | None,
    default_ctx_tokens: int = USUAL_CTX_TOKENS,
) -> Command:
    """The command of one start. ``report`` is of the model's binary, ``None`` for a ``cmd``.

    ``gpus``: UUIDs in order; empty hides every GPU; ``None`` leaves all visible.
    """
    places = {"PORT": str(upstream.port), "SOCKET": upstream.path, "MODEL_ID": spec.id}
    words = spec.cmd if report is None else server_argv(spec, report, upstream, default_ctx_tokens)
    speaks_router = report is not None and report.router
    env = child_env(spec, inherited, gpus)
    if speaks_router:
        env[ROUTER_VARIABLE] = "1"
    return Command(
        tuple(expand(word, places) for word in words),
        {name: expand(value, places) for name, value in env.items()},
        speaks_router,
    )


def server_argv(spec: LaunchSpec, report: BinaryReport, upstream: Upstream, default_ctx_tokens: int) -> list[str]:
    """A llama-server's command line: the operator's arguments first, then what swapd alone decides."""
    given = [*(spec.binary.args if spec.binary else ()), *spec.args]
    argv = [*([report.path] if report.path else embedded_command()), *given, "-m", spec.gguf]
    if upstream.path:
        argv += ["--host", upstream.path]  # no --port: some builds take port 0 for "any port" before they look
    else:
        argv += ["--host", upstream.host, "--port", str(upstream.port)]
    argv += ["--alias", spec.id]
    if report.fit and not has_flag(given, FIT_FLAGS):
        argv += ["--fit", "off"]
    if not has_flag(given, GPU_LAYER_FLAGS):
        argv += ["-ngl", "999"]
    if spec.ctx_tokens:
        argv += ["-c", str(spec.ctx_tokens)]
    elif not has_flag(given, CTX_FLAGS):
        argv += ["-c", str(default_ctx_tokens or USUAL_CTX_TOKENS)]
    return argv


def child_env(spec: LaunchSpec, inherited: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Inherited less what would leak, then the GPUs, then the binary's and the model's own."""
    env = {
        name: value
        for name, value in inherited.items()
        if name not in spec.scrub_env and not any(fnmatchcase(name, pattern) for pattern in NOT_INHERITED)
    }
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if gpus is not None:
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else HIDE_GPUS
    if spec.binary is not None:
        if spec.binary.library_path:
            env["LD_LIBRARY_PATH"] = os.pathsep.join(spec.binary.library_path)
        env |= spec.binary.env
    return {**env, **spec.env}


def stop_argv(spec: LaunchSpec, pid: int, upstream: Upstream) -> tuple[str, ...]:
    """The operator's own stop command; empty if there is none."""
    places = {"PORT": str(upstream.port), "SOCKET": upstream.path, "MODEL_ID": spec.id, "PID": str(pid)}
    return tuple(expand(word, places) for word in spec.stop_cmd)


def wants_socket(spec: LaunchSpec, report: BinaryReport | None) -> bool:
    """Whether the process shall listen on a unix socket."""
    if report is not None:
        return report.unix_socket
    return any("${SOCKET}" in word for word in (*spec.cmd, *spec.env.values()))


def expand(text: str, places: Mapping[str, str]) -> str:
    """``${PORT}`` and its like; a name that has no value here stays as written."""
    return _PLACE.sub(lambda match: places.get(match[1], match[0]), text)

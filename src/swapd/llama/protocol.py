"""What a llama-server says: its router protocol, and its last words translated into a cause (all pure)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

ROUTER_VARIABLE = "LLAMA_SERVER_ROUTER_PORT"
EXIT_LINE = b"cmd_router_to_child:exit\n"

_PREFIX = b"cmd_child_to_router:"
_LONGEST_LINE_BYTES = 256 << 10
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

OUT_OF_MEMORY = "out_of_memory"
TIMEOUT = "timeout"
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class StateMessage:
    """One state line. ``progress`` is 0..1 over all stages, ``None`` if not told; ``n_ctx`` 0 = not told."""

    state: str
    progress: float | None = None
    stage: str = ""
    n_ctx: int = 0


class RouterLines:
    """Finds the protocol's lines in a stream of output that arrives in any pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[StateMessage]:
        """The messages completed by these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE_BYTES:
            self._rest = b""
        found = (_message(line[at + len(_PREFIX) :]) for line in lines if (at := line.find(_PREFIX)) >= 0)
        return [message for message in found if message]


def _message(text: bytes) -> StateMessage | None:
    if not text.startswith(b"state:"):
        # Builds before the states: "cmd_child_to_router:ready"
        return StateMessage("ready") if text.strip().startswith(b"ready") else None
    try:
        content = json.loads(text[len(b"state:") :])
        return _state(str(content["state"]), content.get("payload") or {})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _state(state: str, payload: dict[str, Any]) -> StateMessage:
    meta = payload.get("meta") or {}
    if "value" not in payload:
        return StateMessage(state, n_ctx=int(meta.get("n_ctx") or 0))
    stages, stage = list(payload.get("stages") or []), str(payload.get("current") or "")
    done = stages.index(stage) if stage in stages else 0
    progress = (done + float(payload["value"])) / max(len(stages), 1)
    return StateMessage(state, min(max(progress, 0.0), 1.0), stage)


# First match wins: the specific before the general. Texts as llama.cpp b11434 and its older builds write them.
_CAUSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        ("missing_library", r"error while loading shared libraries|symbol lookup error|version `[^']+' not found"),
        ("bad_flag", r"error: invalid argument|error while handling argument|error: unknown (?:argument|value)"
                     r"|unrecognized arguments?:|the argument has been removed|invalid parameter for argument"),
        ("port_in_use", r"couldn't bind (?:HTTP )?server socket|address already in use|errno 98"),
        (OUT_OF_MEMORY, r"out of memory|failed to allocate|cudaMalloc failed|cuMemCreate|unable to allocate"
                        r"|resource allocation failed|ErrorOutOfDeviceMemory|std::bad_alloc|cannot allocate memory"),
        ("unsupported_architecture", r"unknown model architecture|unsupported model architecture|unknown pre-tokenizer"
                                     r"|model architecture .* not supported"),
        ("missing_file", r"failed to open GGUF file|No such file or directory|failed to open .*gguf"
                         r"|file does not exist"),
        ("bad_file", r"invalid magic|tensor .* is not within the file bounds|data is not within the file"
                     r"|failed to read|corrupted or incomplete|missing tensor|wrong number of tensors"),
    )
)  # fmt: skip

CAUSE_TEXTS = {
    OUT_OF_MEMORY: "out of memory",
    "bad_flag": "it does not know a flag of its command line",
    "missing_file": "a file is missing",
    "bad_file": "the model file is damaged or no GGUF",
    "unsupported_architecture": "this build does not know the model's architecture",
    "missing_library": "a shared library is missing",
    "illegal_instruction": "illegal instruction: built for another CPU",
    "port_in_use": "its address is in use",
    "not_executable": "the program is not executable",
    "exited_before_ready": "exited 0 before ready",
    TIMEOUT: "no load progress within load_timeout",
    STOPPED: "stopped",
    "killed": "killed from outside (the kernel's out-of-memory killer?)",
    "unknown": "",
}


def classify(code: int | None, signal_number: int | None, output: str) -> str:
    """The cause of a death, from its exit and its last output."""
    if signal_number == 4 or code == 128 + 4:
        return "illegal_instruction"
    if code != 0:
        for cause, pattern in _CAUSES:
            if pattern.search(output):
                return cause
    if code == 0:
        return "exited_before_ready"
    return "killed" if signal_number == 9 else "unknown"


def last_lines(output: str, count: int = 12, longest: int = 400) -> str:
    """The last lines for a person: without colours, empty lines and router messages."""
    lines = [_ANSI.sub("", line).rstrip() for line in output.splitlines()]
    kept = [line[:longest] for line in lines if line and _PREFIX.decode() not in line]
    return "\n".join(kept[-count:])


def explain(cause: str, output: str) -> str:
    """A cause in words, with the line of the output that shows it."""
    pattern = next((pattern for name, pattern in _CAUSES if name == cause), None)
    lines = last_lines(output, count=1000).splitlines() if pattern else []
    shown = next((line.strip() for line in lines if pattern and pattern.search(line)), "")
    return ": ".join(part for part in (CAUSE_TEXTS.get(cause, cause), shown) if part)

"""Every error a user can meet, by whose fault it is.

A class exists only if some caller treats it differently. HTTP statuses and CLI
exit codes live in one table each (``proxy/statuses.py``, ``cli/exits.py``); a
test asserts that both cover every leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class SwapdError(Exception):
    """Base of all errors that swapd reports; ``code`` is a stable snake_case word."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(SwapdError):
    """One or more mistakes in the configuration; each line names file, line, key and remedy."""

    code = "config"

    def __init__(self, message: str, *, file: str = "", line: int = 0, key: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.file, self.line, self.key, self.hint = file, line, key, hint


class GgufError(SwapdError):
    """A file that is no readable GGUF; ``offset`` is the byte at which reading failed."""

    code = "gguf"

    def __init__(self, message: str, *, path: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.path, self.offset = path, offset


class RequestError(SwapdError):
    """The caller's fault."""

    code = "bad_request"


class BadRequest(RequestError):
    """The request cannot be understood."""

    code = "bad_request"


class Unauthorized(RequestError):
    """No valid key."""

    code = "invalid_api_key"


class Forbidden(RequestError):
    """A web page of another site, or no admin key."""

    code = "forbidden"


class UnknownModel(RequestError):
    """No model has that name; the message lists the valid ids."""

    code = "model_not_found"


class UnknownProfile(RequestError):
    """No profile has that name; the message lists those that have."""

    code = "profile_not_found"


class Cancelled(RequestError):
    """Ended by an operator."""

    code = "cancelled"


class TooLarge(RequestError):
    """The body is larger than ``max_body``."""

    code = "request_too_large"


class CapacityError(SwapdError):
    """swapd cannot serve the request now; ``retry_after_s`` is whole seconds, or None if waiting cannot help."""

    code = "capacity"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(CapacityError):
    """``queue_limit`` requests wait already."""

    code = "queue_full"


class Refused(CapacityError):
    """Another model's ``on_conflict = "refuse"`` stands in the way."""

    code = "refused"


class BackingOff(CapacityError):
    """The model failed to start several times in a row."""

    code = "backing_off"


class WaitedTooLong(CapacityError):
    """``queue_timeout`` passed."""

    code = "queue_timeout"


class Unloaded(CapacityError):
    """An operator unloaded the model."""

    code = "unloaded"


class ShuttingDown(CapacityError):
    """swapd is stopping."""

    code = "shutting_down"


class DevicesUnknown(CapacityError):
    """The GPUs cannot be read (NVML failed), or there is none of that name."""

    code = "devices_unknown"


class NotLoaded(CapacityError):
    """A look-up that does not load a model was sent for a stopped one."""

    code = "not_loaded"


class MemoryHeldByOthers(CapacityError):
    """Other programs, or a process that cannot be killed, hold the memory."""

    code = "memory_held_by_others"


class InsufficientMemory(CapacityError):
    """The model can never fit; ``needed`` and ``available`` are bytes per device id."""

    code = "insufficient_memory"

    def __init__(
        self, message: str, *, needed: Mapping[str, int] | None = None, available: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.needed, self.available = dict(needed or {}), dict(available or {})


class InstanceError(SwapdError):
    """The model's process is at fault; ``stderr_tail`` holds its last lines."""

    code = "instance"

    def __init__(self, message: str, *, cause: str = "", exit_status: str = "", stderr_tail: str = "") -> None:
        super().__init__(message)
        self.cause, self.exit_status, self.stderr_tail = cause, exit_status, stderr_tail


class StartFailed(InstanceError):
    """The process ended or failed before it was ready."""

    code = "start_failed"


class StartTimeout(InstanceError):
    """No load progress for ``load_timeout``."""

    code = "start_timeout"


class InstanceDied(InstanceError):
    """The process ended while it served."""

    code = "instance_died"


class PeerUnreachable(SwapdError):
    """A peer cannot be reached, or broke off; the message names it and why."""

    code = "peer_unreachable"

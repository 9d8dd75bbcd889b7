"""Where a running instance listens and how one ended: plain data that engines make and the supervisor reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a running instance (or a peer) listens: a unix socket ``path``, or ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a process ended: ``status`` ("exit code 1", "signal SIGKILL"), classified ``cause``, last stderr lines.

    ``still_there``: it did not, not even by SIGKILL.
    """

    status: str
    cause: str = ""
    message: str = ""
    stderr_tail: str = ""
    still_there: bool = False

"""The states of a model's process, and every way from one to the next, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class InstanceState(Enum):
    """Where a model's process is in its life; the values are the words that users see."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    RELEASING = "releasing"
    LOST = "lost"


class Step(Enum):
    """Why a state changes."""

    START = "start ordered"
    READY = "ready"
    DRAIN = "drain begun"
    KEEP = "no longer needed"
    STOP = "stop ordered"
    EXIT = "process exited"
    FREED = "memory seen free"
    LOSE = "kill timed out"


class IllegalTransition(Exception):
    """A bug in swapd: no row of ``TRANSITIONS`` allows this step. Never caught."""


_S, _X = InstanceState, Step

TRANSITIONS: Final[Mapping[tuple[InstanceState, Step], InstanceState]] = MappingProxyType(
    {
        (_S.STOPPED, _X.START): _S.STARTING,
        (_S.STARTING, _X.READY): _S.READY,
        (_S.STARTING, _X.STOP): _S.STOPPING,
        (_S.STARTING, _X.EXIT): _S.RELEASING,
        (_S.READY, _X.DRAIN): _S.DRAINING,
        (_S.READY, _X.EXIT): _S.RELEASING,
        (_S.DRAINING, _X.KEEP): _S.READY,
        (_S.DRAINING, _X.STOP): _S.STOPPING,
        (_S.DRAINING, _X.EXIT): _S.RELEASING,
        (_S.STOPPING, _X.EXIT): _S.RELEASING,
        (_S.STOPPING, _X.LOSE): _S.LOST,
        (_S.RELEASING, _X.FREED): _S.STOPPED,
        (_S.LOST, _X.EXIT): _S.STOPPED,
    }
)

WITH_PROCESS: Final = frozenset({_S.STARTING, _S.READY, _S.DRAINING, _S.STOPPING, _S.LOST})
"""States in which a process exists."""


HOLDING: Final = frozenset({_S.STARTING, _S.READY, _S.DRAINING, _S.LOST})
"""States in which an instance may still take what its footprint says."""


def advance(state: InstanceState, step: Step) -> InstanceState:
    """The next state.

    Raises:
        IllegalTransition: if the table has no such row.
    """
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalTransition(f"{state.name} does not take {step.name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> STOPPED"]
    lines += [f"    {source.name} --> {target.name}: {step.value}" for (source, step), target in TRANSITIONS.items()]
    return "\n".join(lines) + "\n"

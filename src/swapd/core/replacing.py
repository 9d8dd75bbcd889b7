"""A configuration that is replaced: unchanged models go on, changed ones are replaced when idle, removed ones drain."""

from __future__ import annotations

from swapd.core import events as ev
from swapd.core.lifecycle import InstanceState as S
from swapd.core.moves import Moves
from swapd.errors import UnknownModel


def take_in(do: Moves, event: ev.ConfigReplaced) -> None:
    """Put another configuration in force; waiters of removed models end here, running requests are never cut."""
    for model, record in list(do.records.items()):
        if model not in event.catalog.models:
            text = f"{model!r} is no longer configured"
            do.refuse_all(record, UnknownModel(text))
            if record.state is S.STARTING:
                do.stop(record, text)
            elif record.state is S.READY:
                do.drain(record, text)
    do.use(event.catalog)
    for model in event.changed & do.records.keys():
        record = do.records[model]
        record.forgive()
        if record.state in (S.STARTING, S.READY, S.DRAINING):
            do.stale.add(model)


def replace_changed(do: Moves) -> None:
    """Processes of an older configuration go as soon as they are idle, and come back without evicting anybody."""
    for model in do.stale:
        record = do.records[model]
        if record.state is S.READY and not record.leases and not record.queue:
            do.drain(record, "its configuration changed")
    while do.to_restart and do.stops_at is None:
        record = do.records[do.to_restart.pop()]
        do.enqueue(record, f"restart:{record.id}:{record.generation}", 0, "preload")

from __future__ import annotations

import pytest

from swapd.proxy.notify import Notifier, summary

SOCKET = {"NOTIFY_SOCKET": "/run/x"}


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "3000000"}, 0.0),
        ({**SOCKET, "WATCHDOG_USEC": "3000000"}, 3.0),
        ({**SOCKET, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0),
        ({**SOCKET, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 0.0),
        ({**SOCKET, "WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_watchdog_runs_only_for_the_process_that_it_is_meant_for(environ: dict[str, str], seconds: float) -> None:
    assert Notifier(environ, pid=7).watchdog_s == seconds


def test_nobody_is_told_where_there_is_no_manager() -> None:
    notifier = Notifier({})
    assert not notifier.is_heard
    notifier.ready("http://127.0.0.1:1")


def test_a_manager_that_has_gone_does_not_matter() -> None:
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready("http://127.0.0.1:1")
    Notifier({"NOTIFY_SOCKET": "@" + "x" * 300}).stopping()


def test_summary_names_models_by_state_and_leaves_out_those_at_rest() -> None:
    rows = [("a", "ready"), ("b", "stopped"), ("c", "starting"), ("d", "ready")]
    models = [{"id": name, "state": state} for name, state in rows]
    assert summary({"models": models}) == "ready: a, d; starting: c"
    assert summary({"models": models[1:2]}) == "no model loaded"
    many = [{"id": str(n), "state": "ready"} for n in range(9)]
    assert summary({"models": many}) == "ready: 0, 1, 2, 3, 4, 5, 6, 7, …"

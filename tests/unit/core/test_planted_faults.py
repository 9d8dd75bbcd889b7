"""Faults planted in the scheduler, one at a time: the judge of the random worlds or a transcript catches each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from swapd.core.ledger import MemoryLedger
from swapd.core.lifecycle import InstanceState as S
from swapd.core.moves import Moves
from swapd.core.records import Record
from swapd.core.scheduler import Scheduler
from swapd.core.spec import Policy
from swapd.core.survey import Survey
from swapd.core.world import WorldBuilder
from tests.unit.core import test_scheduling
from tests.unit.core.judged_world import Judge, WorldSpec, worlds


class Caught(Exception):
    pass


def judged() -> None:
    """Random worlds until one is violated."""

    @settings(
        max_examples=600,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(worlds())
    def run(world: WorldSpec) -> None:
        try:
            violations = Judge(world).run()
        except Exception as error:
            raise Caught(repr(error)) from error
        if violations:
            raise Caught(violations[0])

    run()


def forgets_what_a_loading_model_will_take(patch: pytest.MonkeyPatch) -> None:
    need = WorldBuilder.need
    nothing = test_scheduling.Play(["x"]).scheduler.state.records["x"].footprint.__class__()
    patch.setattr(WorldBuilder, "need", lambda self, r: nothing if r.state is S.STARTING else need(self, r))


def takes_the_best_way_whatever_is_free(patch: pytest.MonkeyPatch) -> None:
    start = Moves.start

    def greedy(self: Moves, record: Record, reason: str) -> None:
        record.footprint = replace(next(iter(record.footprint.larger), record.footprint), larger=())
        start(self, record, reason)

    patch.setattr(Moves, "start", greedy)


def stops_without_waiting_for_leases(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Moves) -> None:
        for record in list(self.live.values()):
            if record.state is S.DRAINING:
                self.stop(record, "drained")

    patch.setattr(Moves, "finish_drains", finish)


def forgets_that_a_client_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_request_withdrawn", lambda self, event: None)


def ignores_the_headroom(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Policy, "headroom", lambda self, *names: 0)


def never_measures_other_programs(patch: pytest.MonkeyPatch) -> None:
    attribute = MemoryLedger._attribute

    def blind(self: MemoryLedger, device: str, *args: Any) -> None:
        before = self.foreign[device]
        attribute(self, device, *args)
        self.foreign[device] = before

    patch.setattr(MemoryLedger, "_attribute", blind)


def lets_max_wait_pass(patch: pytest.MonkeyPatch) -> None:
    heads = Survey.heads

    def never_overdue(self: Survey, line: Any, now: float, before: float) -> Iterator[Any]:
        return heads(self, line, now, float("-inf"))

    patch.setattr(Survey, "heads", never_overdue)


def evicts_the_moment_a_model_is_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Record, "held_until", lambda self, policy: 0.0)


def forgets_the_waiters_of_a_failed_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moves, "fail", lambda self, record, error: record.failed(error, self.now, self.policy.backoff_s))


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (forgets_what_a_loading_model_will_take, judged),
    (takes_the_best_way_whatever_is_free, judged),
    (stops_without_waiting_for_leases, judged),
    (forgets_that_a_client_left, judged),
    (ignores_the_headroom, judged),
    (never_measures_other_programs, judged),
    (lets_max_wait_pass, test_scheduling.test_a_stream_of_requests_does_not_starve_the_other_model),
    (evicts_the_moment_a_model_is_idle, test_scheduling.test_a_held_model_keeps_its_place_for_the_next_turn),
    (
        forgets_the_waiters_of_a_failed_start,
        test_scheduling.test_a_failed_start_refuses_its_waiters_at_once_with_the_last_words,
    ),
]


@pytest.mark.parametrize(("plant", "check"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((Caught, AssertionError, KeyError)):
        check()

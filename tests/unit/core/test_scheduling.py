"""Who is served when, who makes room, and who is refused: transcripts of the pure core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swapd.core import commands as cmd
from swapd.core import events as ev
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.placement import Wait
from swapd.core.spec import PAGE_CACHE, RAM, Catalog, Footprint, Group, ModelSpec, Policy
from swapd.errors import (
    BackingOff,
    DevicesUnknown,
    InsufficientMemory,
    MemoryHeldByOthers,
    QueueFull,
    Refused,
    ShuttingDown,
    StartFailed,
    StartTimeout,
    Unloaded,
    WaitedTooLong,
)
from swapd.units import GIB, MIB
from tests.unit.core.transcript import GPU, Play

BOTH_BIG = {"a": 14.0, "b": 14.0}


def spec(name: str, **more: object) -> ModelSpec:
    return ModelSpec(name, **({"linger": 0.0} | more))  # type: ignore[arg-type]


# ---- loading


def test_one_start_serves_everybody_who_waits_for_the_model() -> None:
    play = Play(["a"])
    for i in range(20):
        play.ask(f"r{i}", "a")
    assert play.starts() == ["a"] and play.grants == []
    play.ready("a")
    assert play.grants == [f"r{i}" for i in range(20)]


def test_two_models_that_fit_are_loaded_at_the_same_time() -> None:
    play = Play(["a", "b"], sizes_gib={"a": 10, "b": 10})
    play.ask("r1", "a")
    play.ask("r2", "b")
    assert play.starts() == ["a", "b"]


def test_a_second_load_waits_if_both_footprints_do_not_fit() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ask("r2", "b")
    assert play.starts() == ["a"]


def test_the_device_is_read_before_every_start() -> None:
    play = Play(["a"])
    play.answers = False
    play.ask("r1", "a")
    assert play.starts() == []
    play.read()
    assert play.starts() == ["a"]


def test_a_reading_taken_before_the_decision_starts_nothing() -> None:
    play = Play(["a"])
    play.answers = False
    play.now += 1
    play.ask("r1", "a")
    late, play.now = play.now, play.now - 0.5
    play.read()
    assert play.starts() == []
    play.now = late
    play.read()
    assert play.starts() == ["a"]


def test_a_failed_start_refuses_its_waiters_at_once_with_the_last_words() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.send(ev.StartFailed(play.now, "a", 1, "bad flag", "bad_flag", "exit code 1", "error: invalid argument"))
    error = play.refusals["r1"]
    assert isinstance(error, StartFailed) and error.stderr_tail == "error: invalid argument"


def test_a_failed_start_is_a_record_and_the_next_request_tries_again() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.fail("a")
    play.ask("r2", "a")
    assert play.starts() == ["a", "a"]
    play.ready("a")
    assert play.grants == ["r2"]


def test_a_load_without_progress_is_a_timeout_of_its_own_kind() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.send(ev.StartFailed(play.now, "a", 1, "no progress for 10m", "timeout", timed_out=True))
    assert isinstance(play.refusals["r1"], StartTimeout)


def test_a_load_that_leaves_vram_unchanged_fails_where_a_gpu_is_expected() -> None:
    play = Play({"a": spec("a", expect_gpu=True)})
    play.ask("r1", "a")
    play.send(ev.InstanceReady(play.now, "a", 1))
    assert "without taking VRAM" in str(play.refusals["r1"]) and play.state("a") == "stopping"


def test_an_out_of_memory_exit_evicts_what_may_go_and_retries_once() -> None:
    play = Play(["a", "b"], sizes_gib={"a": 4, "b": 4})
    play.load("b")
    play.ask("r1", "a")
    play.fail("a", "out_of_memory")
    assert play.stops() == ["b"] and "r1" not in play.refusals
    play.gone("b")
    assert play.starts() == ["b", "a", "a"]
    play.fail("a", "out_of_memory")
    assert isinstance(play.refusals["r1"], StartFailed)


# ---- making room


def test_a_swap_waits_for_drain_exit_and_vram() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ready("a")
    play.ask("r2", "b")
    assert play.stops() == []
    play.answer("r1")
    assert play.stops() == ["a"] and play.starts() == ["a"]
    play.gone("a", memory_back=False)
    assert play.state("a") == "releasing" and play.starts() == ["a"]
    play.held.clear()
    play.wait(0.1)
    assert play.starts() == ["a", "b"]


def test_memory_that_does_not_come_back_is_foreign_and_the_model_placed_anew() -> None:
    play = Play(["a", "b", "c"], sizes_gib={"a": 10, "b": 14, "c": 8})
    play.load("a", "c")
    play.ask("r1", "b")
    assert play.stops() == ["a"]
    play.gone("a", memory_back=False)
    play.wait(9)
    assert play.starts() == ["a", "c"]
    play.wait(2)  # release_timeout: 10 GiB are missing, c goes too, and even that is not enough
    assert isinstance(play.refusals["r1"], MemoryHeldByOthers)


def test_the_shim_of_the_next_model_is_warmed_when_the_old_ones_stop_begins() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.load("a")
    play.orders.clear()
    play.ask("r2", "b")
    kinds = [type(o) for o in play.orders]
    assert kinds.index(cmd.PrepareInstance) < kinds.index(cmd.StopInstance)


def test_the_victim_is_the_cheapest_to_bring_back_not_the_least_recently_used() -> None:
    play = Play(["big", "small", "new"], sizes_gib={"big": 10, "small": 10, "new": 10}, load_s=0)
    play.ask("r1", "big")
    play.now += 9.0
    play.ready("big")
    play.answer("r1")
    play.ask("r2", "small")
    play.now += 1.0
    play.ready("small")
    play.answer("r2")
    play.ask("r3", "new")
    assert play.stops() == ["small"]


def test_only_what_is_needed_is_evicted() -> None:
    play = Play(["a", "b", "c"], sizes_gib={"a": 6, "b": 6, "c": 12})
    play.load("a", "b")
    play.ask("r1", "c")
    assert len(play.stops()) == 1


def test_a_commitment_keeps_its_memory_from_everybody_else() -> None:
    play = Play(["a", "b", "c"], sizes_gib={"a": 14, "b": 20, "c": 8})
    play.load("a")
    play.ask("r1", "b")
    play.ask("r2", "c")
    play.gone("a")
    assert play.starts() == ["a", "b"]


def test_a_request_that_fits_beside_all_commitments_is_never_held_back() -> None:
    play = Play(["a", "b", "c"], sizes_gib={"a": 14, "b": 18, "c": 4})
    play.load("a")
    play.ask("r1", "b")
    play.ask("r2", "c")
    assert play.starts() == ["a", "c"]


def test_two_different_swaps_asked_at_once_both_end() -> None:
    play = Play(["a", "b", "c"], sizes_gib={"a": 14, "b": 14, "c": 14})
    play.load("a")
    play.ask("r1", "b")
    play.ask("r2", "c")
    play.gone("a")
    play.ready("b")
    play.answer("r1")
    play.gone("b")
    play.ready("c")
    assert play.grants[-2:] == ["r1", "r2"]


def test_a_model_that_just_loaded_serves_its_own_batch_before_it_can_go() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.now += 0.1
    play.ask("r2", "b")
    play.ready("a")
    assert play.grants == ["r1"] and play.stops() == []
    play.answer("r1")
    assert play.stops() == ["a"]


def test_a_loading_model_is_not_evicted_while_somebody_waits_for_it() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ask("r2", "b")
    play.wait(120)
    assert play.stops() == [] and play.state("a") == "starting"


def test_a_load_nobody_waits_for_any_more_goes_on_unless_somebody_else_needs_the_room() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.leave("r1")
    play.wait(5)
    assert play.stops() == [] and play.state("a") == "starting"
    play.ask("r2", "b")
    assert play.stops() == ["a"]


def test_a_withdrawn_waiter_lets_its_draining_victim_go_on() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ready("a")
    play.ask("r2", "b")
    play.wait(61)
    assert play.state("a") == "draining"
    play.leave("r2")
    assert play.state("a") == "ready"
    play.ask("r3", "a")
    assert play.grants == ["r1", "r3"]


# ---- waiting its turn


def test_requests_for_the_same_model_are_served_together_instead_of_swapping_each_time() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    for i, model in enumerate("ababab"):
        play.ask(f"r{i}", model)
    play.ready("a")
    play.answer("r0", "r2", "r4")
    play.gone("a")
    play.ready("b")
    assert play.starts() == ["a", "b"] and play.grants == ["r0", "r2", "r4", "r1", "r3", "r5"]


def test_a_stream_of_requests_does_not_starve_the_other_model() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("a0", "a")
    play.ready("a")
    play.ask("b", "b")
    for i in range(1, 100):  # never idle: the next comes before the last one is answered
        play.ask(f"a{i}", "a")
        play.answer(f"a{i - 1}")
        play.wait(1)
        if play.state("a") != "ready":
            break
    assert i == pytest.approx(60, abs=2)
    play.ask("late", "a")
    play.answer(f"a{i}")
    play.gone("a")
    play.ready("b")
    assert "b" in play.grants and "late" not in play.grants


def test_a_held_model_keeps_its_place_for_the_next_turn() -> None:
    play = Play({"a": spec("a", linger=4.0), "b": spec("b")}, sizes_gib=BOTH_BIG)
    play.load("a")
    play.ask("r1", "b")
    play.wait(3.9)
    assert play.stops() == []
    play.wait(0.2)
    assert play.stops() == ["a"]


def test_min_residency_holds_a_fresh_model_but_not_longer_than_max_wait() -> None:
    policy = Policy(min_residency_s=300.0, max_wait_s=10.0)
    play = Play(["a", "b"], sizes_gib=BOTH_BIG, policy=policy)
    play.load("a")
    play.ask("r1", "b")
    play.wait(9.9)
    assert play.stops() == []
    play.wait(0.2)
    assert play.stops() == ["a"]


def test_a_higher_priority_waits_for_no_lower_ones_linger_or_stream() -> None:
    play = Play({"a": spec("a", linger=30.0), "b": spec("b", priority=1)}, sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ready("a")
    play.ask("r2", "b")
    assert play.state("a") == "draining" and play.stops() == []
    play.ask("r3", "a")
    play.answer("r1")
    assert play.stops() == ["a"] and play.grants == ["r1"]


def test_higher_priority_goes_first_but_an_overdue_waiter_before_it() -> None:
    models = {"a": spec("a"), "low": spec("low"), "high": spec("high", priority=5)}
    sizes = {"a": 14.0, "low": 14.0, "high": 14.0}
    play = Play(models, sizes_gib=sizes)
    play.ask("r0", "a")
    play.ask("r1", "low")
    play.wait(61)
    play.ask("r2", "high")
    play.ready("a")
    play.answer("r0")
    play.gone("a")
    assert play.starts() == ["a", "low"]


def test_beyond_its_concurrency_a_model_queues() -> None:
    play = Play({"a": spec("a", concurrency=1)})
    play.ask("r1", "a")
    play.ask("r2", "a")
    play.ready("a")
    assert play.grants == ["r1"]
    play.answer("r1")
    assert play.grants == ["r1", "r2"]


def test_waiters_older_than_the_one_it_makes_room_for_are_still_served() -> None:
    play = Play({"a": spec("a", concurrency=1), "b": spec("b", priority=1)}, sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ask("r2", "a")
    play.ready("a")
    play.ask("r3", "b")
    play.ask("r4", "a")
    play.answer("r1")
    assert play.grants == ["r1", "r2"] and play.stops() == []
    play.answer("r2")
    assert play.stops() == ["a"]


# ---- refusals


def test_a_model_that_can_never_fit_is_refused_at_once_with_sizes() -> None:
    play = Play(["a"], sizes_gib={"a": 23.5})
    play.ask("r1", "a")
    error = play.refusals["r1"]
    assert isinstance(error, InsufficientMemory) and error.retry_after_s is None
    assert error.needed == {GPU: int(23.5 * GIB)} and error.available == {GPU: 23 * GIB}


def test_memory_held_by_other_programs_is_refused_with_a_time_to_try_again() -> None:
    play = Play(["a"], sizes_gib={"a": 14})
    play.foreign = 12 * GIB
    play.now += 1
    play.read()
    play.ask("r1", "a")
    error = play.refusals["r1"]
    assert isinstance(error, MemoryHeldByOthers) and error.retry_after_s


def test_other_programs_are_only_blamed_after_a_reading_younger_than_the_request() -> None:
    play = Play(["a"], sizes_gib={"a": 14})
    play.foreign = 12 * GIB
    play.now += 1
    play.read()
    play.foreign = 0
    play.now += 1
    play.ask("r1", "a")
    assert play.refusals == {} and play.starts() == ["a"]


def test_nothing_is_evicted_for_a_request_that_would_be_refused_anyway() -> None:
    play = Play(["a", "b"], sizes_gib={"a": 8, "b": 20})
    play.load("a")
    play.foreign = 6 * GIB
    play.now += 1
    play.read()
    play.ask("r1", "b")
    assert isinstance(play.refusals["r1"], MemoryHeldByOthers) and play.stops() == []


def test_unknown_gpus_refuse_new_loads_while_running_models_serve() -> None:
    play = Play(["a", "b"], sizes_gib={"a": 8, "b": 8})
    play.load("a")
    play.known = False
    play.now += 1
    play.read()
    play.ask("r1", "a")
    play.ask("r2", "b")
    assert play.grants[-1] == "r1" and isinstance(play.refusals["r2"], DevicesUnknown)
    play.known = True
    play.now += 1
    play.read()
    play.ask("r3", "b")
    assert play.starts() == ["a", "b"]


def test_a_model_that_refuses_to_go_gets_the_other_one_a_409() -> None:
    play = Play({"a": spec("a", on_conflict="refuse"), "b": spec("b")}, sizes_gib=BOTH_BIG)
    play.load("a")
    play.ask("r1", "b")
    assert isinstance(play.refusals["r1"], Refused)


def test_a_model_that_refuses_to_go_is_the_last_to_be_chosen() -> None:
    models = {"a": spec("a", on_conflict="refuse"), "b": spec("b"), "c": spec("c")}
    play = Play(models, sizes_gib={"a": 10, "b": 10, "c": 10})
    play.load("a", "b")
    play.ask("r1", "c")
    assert play.stops() == ["b"]


def test_a_persistent_model_is_never_evicted_and_the_refusal_names_it() -> None:
    play = Play({"p": spec("p", persistent=True), "b": spec("b")}, sizes_gib={"p": 14, "b": 14})
    play.load("p")
    play.ask("r1", "b")
    assert isinstance(play.refusals["r1"], InsufficientMemory) and "'p'" in str(play.refusals["r1"])


def test_a_persistent_sibling_in_a_swap_group_bars_the_other() -> None:
    groups = {"g": Group("g", ("p", "b"))}
    play = Play({"p": spec("p", persistent=True), "b": spec("b")}, sizes_gib={"p": 1, "b": 1}, groups=groups)
    play.load("p")
    play.ask("r1", "b")
    assert isinstance(play.refusals["r1"], InsufficientMemory)


def test_a_model_loads_beside_a_protected_one_that_the_table_would_unload() -> None:
    groups = {"g": Group("g", ("b",), exclusive=True)}
    play = Play({"p": spec("p", persistent=True), "b": spec("b")}, sizes_gib={"p": 4, "b": 4}, groups=groups)
    play.load("p")
    play.load("b")
    assert play.states() == {"p": "ready", "b": "ready"}


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    play = Play(["a"], policy=Policy(queue_limit=2))
    for i in range(3):
        play.ask(f"r{i}", "a")
    assert isinstance(play.refusals["r2"], QueueFull) and play.refusals["r2"].retry_after_s


def test_a_wait_ends_at_queue_timeout_loading_included() -> None:
    play = Play(["a"], policy=Policy(queue_timeout_s=30))
    play.ask("r1", "a")
    play.wait(31)
    assert isinstance(play.refusals["r1"], WaitedTooLong)


def test_after_three_early_exits_it_backs_off_and_evicts_nobody() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    for i in range(3):
        play.ask(f"r{i}", "a")
        play.fail("a")
    play.load("b")
    play.ask("r4", "a")
    assert isinstance(play.refusals["r4"], BackingOff) and play.state("b") == "ready"
    play.wait(5.1)
    play.ask("r5", "a")
    assert play.stops() == ["b"]


def test_the_pause_doubles_up_to_the_last_and_an_operators_load_ends_it() -> None:
    play = Play(["a"], policy=Policy(backoff_s=(5.0, 12.0)))
    pauses = []
    for i in range(6):
        play.ask(f"r{i}", "a")
        play.fail("a")
        record = play.scheduler.state.records["a"]
        if record.retry_at is not None:
            pauses.append(record.retry_at - play.now)
            play.wait(record.retry_at - play.now)
    assert pauses == [5, 10, 12, 12]
    play.fail("a") if play.state("a") == "starting" else None
    play.send(ev.LoadRequested(play.now, "l", "a"))
    assert play.state("a") == "starting"


def test_a_crash_in_mid_request_counts_towards_the_backoff_and_a_served_one_clears_it() -> None:
    play = Play(["a"])
    for i in range(3):
        play.ask(f"r{i}", "a")
        play.ready("a")
        play.gone("a")
        play.answer(f"r{i}", served=False)
    play.ask("r3", "a")
    assert isinstance(play.refusals["r3"], BackingOff)
    play.wait(5.1)
    play.load("a")
    assert play.scheduler.state.records["a"].failures == 0


def test_a_process_that_cannot_be_killed_keeps_its_memory_counted_and_others_go_on() -> None:
    play = Play(["a", "b", "p"], sizes_gib={"a": 14, "b": 14, "p": 2})
    play.load("a", "p")
    play.ask("r1", "b")
    play.send(ev.InstanceLost(play.now, "a", 1, "outlived SIGKILL"))
    assert isinstance(play.refusals["r1"], MemoryHeldByOthers) and play.state("a") == "lost"
    play.ask("r2", "p")
    assert play.grants[-1] == "r2"
    play.gone("a")
    play.ask("r3", "b")
    assert play.starts()[-1] == "b"


# ---- groups, pins, unknown sizes


def duo() -> Play:
    groups = {"duo": Group("duo", ("big", "fast"), swap=False, exclusive=True)}
    return Play(["big", "fast", "third"], sizes_gib={"big": 2, "fast": 4, "third": 4}, groups=groups)


def test_a_duo_stays_together_and_a_third_model_unloads_both() -> None:
    play = duo()
    play.load("big", "fast")
    assert play.states() == {"big": "ready", "fast": "ready"}
    play.ask("r1", "third")
    assert sorted(play.stops()) == ["big", "fast"]


def test_a_request_for_a_duo_member_brings_back_that_member_only() -> None:
    play = duo()
    play.load("big", "fast")
    play.ask("r1", "third")
    play.gone("big")
    play.gone("fast")
    play.ready("third")
    play.answer("r1")
    play.ask("r2", "fast")
    play.gone("third")
    play.ready("fast")
    assert play.states() == {"fast": "ready"}


def test_a_model_of_unknown_size_has_its_gpu_to_itself_the_first_time() -> None:
    from swapd.core.spec import Footprint

    play = Play(["a", "x"], sizes_gib={"a": 4, "x": 5})
    play.load("a")
    play.send(ev.FootprintLearned(play.now, "x", Footprint({GPU: 0}, alone_on=frozenset({GPU})), 1.0))
    play.ask("r1", "x")
    assert play.stops() == ["a"]
    play.gone("a")
    play.ask("r2", "a")
    assert play.starts() == ["a", "x"]
    play.ready("x")
    assert play.starts() == ["a", "x", "a"]  # measured now: 5 GiB, and a fits beside


def test_preload_never_evicts() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.load("a")
    play.send(ev.LoadRequested(play.now, "p", "b", preload=True))
    assert play.stops() == [] and isinstance(play.refusals["p"], Unloaded)


# ---- idle, unload, shutdown, headroom


def test_idle_counts_from_the_last_byte() -> None:
    play = Play({"a": spec("a", idle_timeout_s=2)})
    play.ask("r1", "a")
    play.ready("a")
    play.wait(6)
    assert play.state("a") == "ready"
    play.answer("r1")
    play.wait(1.9)
    assert play.state("a") == "ready"
    play.wait(0.2)
    assert play.state("a") == "stopping"


def reading_of(play: Play, *, free_gib: float = 4, ram_gib: float = 60, held: int = 0) -> ev.DeviceSampled:
    """A reading of the machine that holds two models of 10 GiB."""
    gpu = DeviceSample(GPU, play.total, int(free_gib * GIB), 0, "test")
    sample = MachineSample((gpu,), DeviceSample(RAM, 64 * GIB, int(ram_gib * GIB)))
    return ev.DeviceSampled(play.now, sample, {"a": {GPU: held}} if held else {})


def idle_pair() -> Play:
    play = Play({"a": spec("a", idle_timeout_s=60), "b": spec("b")})
    play.load("a", "b")
    play.wait(3)
    return play


def test_a_reading_that_says_nothing_new_of_an_idle_machine_may_wait_for_the_next_event() -> None:
    play = idle_pair()
    assert play.scheduler.next_reading_after(reading_of(play)) == play.now + 2
    assert play.scheduler.next_reading_after(reading_of(play, ram_gib=20)) == play.now + 2, "RAM is never still"
    play.now = 100 + 59
    assert play.scheduler.next_reading_after(reading_of(play)) == 100 + 60, "idle_timeout is due before"
    play.now = 100 + 60
    assert play.scheduler.next_reading_after(reading_of(play)) is None


@pytest.mark.parametrize(
    "news",
    [{"free_gib": 3.5}, {"free_gib": 4.5}, {"free_gib": 0.5}, {"ram_gib": 0.5}, {"held": 11 * GIB}],
    ids=["others took VRAM", "others gave VRAM back", "headroom", "RAM's headroom", "a process grew"],
)
def test_a_reading_with_news_is_handled_at_once(news: dict[str, float]) -> None:
    play = idle_pair()
    assert play.scheduler.next_reading_after(reading_of(play, **news)) is None  # type: ignore[arg-type]


def test_a_reading_is_handled_at_once_while_requests_run_and_after_the_last_one() -> None:
    play = idle_pair()
    play.ask("r1", "a")
    assert play.scheduler.next_reading_after(reading_of(play)) is None
    play.answer("r1")
    assert play.scheduler.next_reading_after(reading_of(play)) is None
    play.read()
    assert play.scheduler.next_reading_after(reading_of(play)) is not None
    play.send(ev.UnloadRequested(play.now, "b", force=False))
    assert play.scheduler.next_reading_after(reading_of(play)) is None, "something is under way"


def test_every_reading_that_is_handled_sets_the_timer_which_may_have_brought_it() -> None:
    play = idle_pair()
    for _ in range(2):
        assert [order.at for order in play.send(reading_of(play)) if isinstance(order, cmd.WakeAt)] == [play.now + 2]


def test_unknown_gpus_are_never_nothing_new() -> None:
    play = idle_pair()
    unknown = ev.DeviceSampled(play.now, MachineSample(gpus_known=False, problem="broken"))
    assert play.scheduler.next_reading_after(unknown) is None
    play.known = False
    play.read()
    assert play.scheduler.next_reading_after(reading_of(play)) is None


def test_a_request_during_an_idle_unload_is_served_by_the_next_start() -> None:
    play = Play({"a": spec("a", idle_timeout_s=1)})
    play.load("a")
    play.wait(1.1)
    play.ask("r1", "a")
    assert play.state("a") == "stopping"
    play.gone("a")
    play.ready("a")
    assert play.grants[-1] == "r1"


def test_unload_of_a_loading_model_is_at_once_and_its_waiters_are_told() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.send(ev.UnloadRequested(play.now, "a"))
    assert play.stops() == ["a"] and isinstance(play.refusals["r1"], Unloaded)


def test_unload_of_a_waiting_model_leaves_alone_what_drained_for_it() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.ask("r1", "a")
    play.ready("a")
    play.ask("r2", "b")
    play.wait(61)
    play.send(ev.UnloadRequested(play.now, "b"))
    assert play.state("a") == "ready" and isinstance(play.refusals["r2"], Unloaded)


def test_unload_gives_running_requests_the_drain_and_then_cuts_them() -> None:
    play = Play(["a"], policy=Policy(drain_s=20))
    play.ask("r1", "a")
    play.ready("a")
    play.send(ev.UnloadRequested(play.now, "a"))
    play.wait(19.9)
    assert play.stops() == []
    play.wait(0.2)
    stop = next(o for o in play.orders if isinstance(o, cmd.StopInstance))
    assert isinstance(stop.cut, Unloaded)


def test_a_forced_unload_cuts_at_once() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.ready("a")
    play.send(ev.UnloadRequested(play.now, "a", force=True))
    assert play.stops() == ["a"]


def test_requests_that_come_while_it_unloads_load_it_again() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.ready("a")
    play.send(ev.UnloadRequested(play.now, "a"))
    play.ask("r2", "a")
    play.answer("r1")
    play.gone("a")
    play.ready("a")
    assert play.grants == ["r1", "r2"]


def test_shutdown_refuses_waiters_drains_and_stops_everything() -> None:
    play = Play(["a", "b"], sizes_gib={"a": 4, "b": 4})
    play.ask("r1", "a")
    play.ready("a")
    play.ask("r2", "b")
    play.send(ev.ShutdownRequested(play.now))
    assert isinstance(play.refusals["r2"], ShuttingDown) and play.stops() == ["b"]
    play.ask("r3", "a")
    assert isinstance(play.refusals["r3"], ShuttingDown)
    play.answer("r1")
    assert play.stops() == ["b", "a"]


def test_other_programs_that_grow_take_idle_models_after_two_readings_and_busy_ones_never() -> None:
    play = Play(["idle", "busy"], sizes_gib={"idle": 8, "busy": 8})
    play.load("idle")
    play.ask("r1", "busy")
    play.ready("busy")
    play.foreign = 8 * GIB - 200 * MIB
    play.now += 2
    play.read()
    assert play.stops() == []
    play.wait(1.1)
    assert play.stops() == ["idle"]
    play.gone("idle")
    play.foreign += 8 * GIB
    play.wait(10)
    assert play.stops() == ["idle"] and play.state("busy") == "ready"


def test_the_devices_are_read_at_the_interval_whatever_else_is_due_later() -> None:
    play = Play({"a": spec("a", idle_timeout_s=900)}, policy=Policy(sample_interval_s=2))
    play.load("a")
    for i in range(5):
        before = sum(isinstance(o, cmd.SampleDevices) for o in play.orders)
        play.wait(2.1)
        play.ask(f"r{i}", "a")
        play.answer(f"r{i}")
        assert sum(isinstance(o, cmd.SampleDevices) for o in play.orders) == before + 1


def test_explain_says_what_a_request_would_do_and_changes_nothing() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.load("a")
    before = len(play.orders)
    verdict = play.scheduler.explain("b", play.now)
    assert getattr(verdict, "victims", None) == ("a",)
    assert len(play.orders) == before and play.states() == {"a": "ready"}


# ---- models that can be larger or smaller


def elastic(play: Play, model: str, *sizes_gib: float) -> None:
    """Teach the scheduler ways of a model, the largest first."""
    ways = [Footprint({GPU: int(size * GIB)}, args=("--pool", f"{size:g}")) for size in sizes_gib]
    play.send(ev.FootprintLearned(play.now, model, replace(ways[-1], larger=tuple(ways[:-1])), 1.0))


def started_with(play: Play) -> list[tuple[str, ...]]:
    return [o.args for o in play.orders if isinstance(o, cmd.StartInstance)]


def test_the_largest_way_that_leaves_the_headroom_is_started() -> None:
    play = Play(["a"], total_gib=16)
    elastic(play, "a", 16, 15, 8)
    play.ask("r1", "a")
    assert started_with(play) == [("--pool", "15")], "16 GiB less 1 GiB of headroom"
    assert "--pool 15" in (play.scheduler.state.records["a"].reason or "")


def test_what_others_hold_makes_it_smaller_and_nobody_is_evicted_for_more() -> None:
    play = Play(["a", "b"], sizes_gib={"b": 6}, total_gib=16)
    elastic(play, "a", 15, 8, 4)
    play.load("b")
    play.ask("r1", "a")
    assert play.stops() == [] and started_with(play)[-1] == ("--pool", "8")


def test_if_even_the_least_way_does_not_fit_others_go_and_then_the_largest_is_taken() -> None:
    play = Play(["a", "b"], sizes_gib={"b": 13}, total_gib=16)
    elastic(play, "a", 15, 8, 4)
    play.load("b")
    play.ask("r1", "a")
    assert play.stops() == ["b"]
    play.gone("b")
    assert started_with(play)[-1] == ("--pool", "15")


def test_a_model_whose_least_way_is_too_large_is_refused_at_once() -> None:
    play = Play(["a"], total_gib=4)
    elastic(play, "a", 15, 8, 4)
    play.ask("r1", "a")
    assert isinstance(play.refusals["r1"], InsufficientMemory)


def test_what_was_chosen_is_what_is_reserved_and_stored() -> None:
    play = Play(["a", "b"], total_gib=24)
    elastic(play, "a", 15, 8)
    play.ask("r1", "a")
    play.sizes["a"] = 15 * GIB
    play.ready("a")
    play.answer("r1")
    play.wait(5)
    stored = [o for o in play.orders if isinstance(o, cmd.StoreFootprint)]
    assert stored and {o.args for o in stored} == {("--pool", "15")}
    assert play.scheduler.explain("b", play.now) is not None
    play.ask("r2", "b")
    assert play.stops() == ["a"], "10 GiB do not fit beside the 15 that were chosen"


# ---- the page cache (law L1)


def reading(play: Play, model: str, cached_gib: float, ram_gib: float = 1.0, *, refuse: bool = False) -> None:
    """A model whose weights are read through the page cache."""
    need = {RAM: int(ram_gib * GIB)}
    if refuse:
        need[PAGE_CACHE] = int((ram_gib + cached_gib) * GIB)
    footprint = Footprint(need, cached_bytes=int(cached_gib * GIB))
    play.send(ev.FootprintLearned(play.now, model, footprint, 1.0))


def warning(play: Play, model: str) -> str:
    return play.scheduler.state.records[model].warning


def test_weights_beyond_the_page_cache_are_loaded_with_a_warning() -> None:
    play = Play(["a", "b"])
    reading(play, "a", 30)
    reading(play, "b", 40)
    play.ask("r1", "a")
    play.ready("a")
    assert warning(play, "a") == ""
    play.ask("r2", "b")
    assert "70.0 GiB of weights" in warning(play, "b") and "58.0 GiB are left" in warning(play, "b")
    assert play.starts() == ["a", "b"]


def test_the_warning_can_be_switched_off() -> None:
    play = Play(["a"], policy=Policy(page_cache="off"))
    reading(play, "a", 70)
    play.ask("r1", "a")
    assert play.starts() == ["a"] and warning(play, "a") == ""


def test_refuse_makes_room_in_the_page_cache_by_evicting() -> None:
    play = Play(["a", "b"], policy=Policy(page_cache="refuse"))
    reading(play, "a", 30, refuse=True)
    reading(play, "b", 40, refuse=True)
    play.load("a")
    play.ask("r1", "b")
    assert play.stops() == ["a"]
    play.gone("a")
    assert play.starts() == ["a", "b"]


def test_refuse_refuses_what_no_eviction_makes_fit_and_says_why() -> None:
    play = Play(["a"], policy=Policy(page_cache="refuse"))
    reading(play, "a", 70, refuse=True)
    play.ask("r1", "a")
    refusal = play.refusals["r1"]
    assert isinstance(refusal, InsufficientMemory) and "page cache (L1)" in refusal.message
    assert play.starts() == []


def test_the_ram_headroom_is_for_process_memory_not_for_the_page_cache() -> None:
    play = Play(["a"], policy=Policy(page_cache="refuse", ram_headroom_bytes=4 * GIB))
    reading(play, "a", 58, refuse=True)
    play.ask("r1", "a")
    assert play.starts() == ["a"], "59 GiB of the 60 that other programs leave"


# ---- what is told while somebody waits


def test_explain_of_a_model_for_which_room_is_made_already_does_not_name_itself() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.load("a")
    play.ask("r1", "b")
    assert play.explained("b") == Wait(("a",), "room is made for it already: 'a': makes room")


def test_explain_of_a_model_that_is_going_says_that_it_is_loaded_again() -> None:
    play = Play(["a"])
    play.load("a")
    play.ask("r1", "a")
    play.send(ev.UnloadRequested(play.now, "a"))
    assert play.explained("a") == Wait((), "it is draining (unloaded by an operator), and is loaded again after that")


def test_what_a_model_waited_for_is_not_told_once_nobody_waits() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.load("a")
    play.ask("r1", "a")
    play.ask("r2", "b")
    record = play.scheduler.state.records["b"]
    assert record.waits_for == "'a' serves requests"
    play.leave("r2")
    assert record.waits_for is None and record.reason is None


def test_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    play = Play(["a"])
    play.send(ev.FootprintLearned(play.now, "a", Footprint({"9": GIB}), 1.0))
    play.ask("r1", "a")
    error = play.refusals["r1"]
    assert isinstance(error, DevicesUnknown)
    assert error.message == "'a' needs GPU 9, which this machine does not have; its GPUs: GPU-0"


# ---- what an operator and a changed configuration want


def test_unload_of_a_model_whose_changed_configuration_waits_is_not_undone() -> None:
    play = Play(["a"])
    play.load("a")
    play.ask("r1", "a")
    play.send(ev.ConfigReplaced(play.now, Catalog({"a": spec("a")}, {}, Policy()), frozenset({"a"})))
    play.send(ev.UnloadRequested(play.now, "a", force=True))
    play.gone("a")
    assert play.state("a") == "stopped" and play.starts() == ["a"]


def test_preload_waits_for_a_load_under_way_that_must_be_alone() -> None:
    play = Play(["x", "b"], sizes_gib={"x": 4, "b": 1})
    play.send(ev.FootprintLearned(play.now, "x", Footprint({GPU: 0}, alone_on=frozenset({GPU})), 1.0))
    play.send(ev.LoadRequested(play.now, "px", "x", preload=True))
    play.send(ev.LoadRequested(play.now, "pb", "b", preload=True))
    assert play.starts() == ["x"] and not play.refusals
    play.ready("x")
    assert play.starts() == ["x", "b"]
    play.ready("b")
    assert play.grants == ["px", "pb"] and not play.refusals


def test_preload_that_waits_in_vain_ends_as_soon_as_nothing_is_under_way() -> None:
    play = Play(["x", "b"], sizes_gib={"x": 20, "b": 10})
    play.send(ev.FootprintLearned(play.now, "x", Footprint({GPU: 0}, alone_on=frozenset({GPU})), 1.0))
    play.ask("r1", "x")
    play.send(ev.LoadRequested(play.now, "p", "b", preload=True))
    assert not play.refusals
    play.ready("x")
    assert (
        isinstance(play.refusals["p"], Unloaded) and "never evicts: 'x' serves requests" in play.refusals["p"].message
    )


def test_model_that_outlives_sigkill_after_load_timeout_is_lost_and_not_started_beside_itself() -> None:
    play = Play(["a"])
    play.ask("r1", "a")
    play.send(ev.StartFailed(play.now, "a", 1, "outlived SIGKILL", "timeout", timed_out=True, still_there=True))
    assert isinstance(play.refusals["r1"], StartTimeout) and play.state("a") == "lost"
    play.ask("r2", "a")
    assert isinstance(play.refusals["r2"], MemoryHeldByOthers) and play.starts() == ["a"]
    play.gone("a")
    play.ask("r3", "a")
    assert play.starts() == ["a", "a"]


def test_request_behind_a_preload_that_is_given_up_is_placed_at_once() -> None:
    play = Play(["a", "b"], sizes_gib=BOTH_BIG)
    play.send(ev.LoadRequested(play.now, "pa", "a", preload=True))
    play.send(ev.LoadRequested(play.now, "pb", "b", preload=True))
    play.ask("r1", "b")
    assert play.starts() == ["a"] and not play.refusals
    play.ready("a")
    assert isinstance(play.refusals["pb"], Unloaded) and play.stops() == ["a"]


def test_explain_of_a_model_whose_process_ended_by_itself_names_no_reason() -> None:
    play = Play(["a"])
    play.load("a")
    play.answers = False
    play.gone("a", memory_back=False)
    assert play.explained("a") == Wait((), "it is releasing, and is loaded again after that")

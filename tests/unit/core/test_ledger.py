"""The headroom rule, and whose memory is whose."""

from __future__ import annotations

from swapd.core.ledger import DeviceSample, MachineSample, MemoryLedger
from swapd.core.spec import PAGE_CACHE, RAM, Footprint, Policy
from swapd.units import GIB, MIB

GPU = "GPU-0"


def sample(free_mib: int, total_mib: int = 24_576) -> MachineSample:
    gpu = DeviceSample(GPU, total_mib * MIB, free_mib * MIB, 0, "test", "00000000:01:00.0")
    return MachineSample((gpu,), DeviceSample(RAM, 64 * GIB, 60 * GIB))


def ledger_at(free_mib: int, **policy: object) -> MemoryLedger:
    ledger = MemoryLedger(Policy(**policy))  # type: ignore[arg-type]
    ledger.observe(0, sample(free_mib), {}, settled=True, busy=())
    return ledger


def test_what_others_hold_is_foreign_and_capacity_leaves_the_headroom() -> None:
    ledger = ledger_at(23_000)
    assert ledger.foreign[GPU] == 1_576 * MIB
    assert ledger.capacity[GPU] == (24_576 - 1_024) * MIB


def test_headroom_is_per_device_by_index_bus_id_or_uuid() -> None:
    for name in ("0", GPU, "00000000:01:00.0"):
        assert ledger_at(23_000, headroom_bytes={name: 300 * MIB}).headroom[GPU] == 300 * MIB


def test_the_difference_over_a_load_is_the_instances_and_not_foreign() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    assert ledger.holdings["a"].current[GPU] == 9_000 * MIB
    assert ledger.foreign[GPU] == 1_576 * MIB


def test_a_half_loaded_model_is_not_counted_twice() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}))
    ledger.observe(1, sample(18_000), {}, settled=False, busy=())
    assert ledger.foreign[GPU] == 1_576 * MIB


def test_growth_while_one_instance_was_busy_is_that_instances_up_to_its_footprint() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 9_100 * MIB}, {GPU: 118 * MIB}))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    ledger.observe(2, sample(13_800), {}, settled=True, busy=("a",))
    assert ledger.holdings["a"].current[GPU] == 9_100 * MIB
    assert ledger.foreign[GPU] == (1_576 + 100) * MIB


def test_growth_while_several_were_busy_is_foreign() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 9_500 * MIB}))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    ledger.observe(2, sample(13_900), {}, settled=True, busy=("a", "b"))
    assert ledger.foreign[GPU] == (1_576 + 100) * MIB


def test_the_drivers_own_figure_beats_the_difference() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}))
    ledger.observe(1, sample(13_000), {"a": {GPU: 9_000 * MIB}}, settled=True, busy=())
    assert ledger.holdings["a"].current[GPU] == 9_000 * MIB
    assert ledger.foreign[GPU] == (1_576 + 1_000) * MIB


def test_the_footprint_learned_keeps_the_predicted_growth_until_a_long_request_ran() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}, {GPU: 118 * MIB}))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    holding = ledger.holdings["a"]
    learned = holding.learned()
    assert learned is not None and learned.on(GPU) == (9_000 + 118) * MIB
    holding.worked = True
    learned = holding.learned()
    assert learned is not None and learned.on(GPU) == 9_000 * MIB


def test_nothing_is_learned_where_no_difference_was_seen() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}))
    ledger.observe(1, sample(23_000), {}, settled=True, busy=())
    assert ledger.holdings["a"].learned() is None


def test_a_configured_size_is_not_replaced_by_a_measured_one() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}, fixed=True))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    assert ledger.holdings["a"].learned() is None


def test_unknown_is_neither_zero_nor_infinite() -> None:
    ledger = ledger_at(23_000)
    broken = MachineSample((), DeviceSample(RAM, 64 * GIB, 60 * GIB), gpus_known=False, problem="NVML: Unknown Error")
    ledger.observe(1, broken, {}, settled=True, busy=())
    assert GPU not in ledger.capacity and RAM in ledger.capacity
    ledger.observe(2, sample(22_000), {}, settled=True, busy=())
    assert ledger.foreign[GPU] == 2_576 * MIB


def test_memory_that_did_not_come_back_counts_as_foreign() -> None:
    ledger = ledger_at(23_000)
    ledger.began("a", Footprint({GPU: 10 * GIB}))
    ledger.observe(1, sample(14_000), {}, settled=True, busy=())
    ledger.read(2, sample(15_000))
    ledger.write_off("a", ())
    assert ledger.foreign[GPU] == (1_576 + 8_000) * MIB


def test_what_a_process_holds_of_the_ram_also_explains_what_is_used_of_the_page_cache() -> None:
    ledger = MemoryLedger(Policy(page_cache="refuse"))

    def read(at: float, free_mib: int, held: dict[str, dict[str, int]]) -> None:
        ram = DeviceSample(RAM, 64_000 * MIB, free_mib * MIB)
        ledger.observe(at, MachineSample((), ram), held, settled=True, busy=())

    read(0, 60_000, {})
    ledger.began("a", Footprint({RAM: 8_000 * MIB, PAGE_CACHE: 20_000 * MIB}))
    ledger.began("b", Footprint({RAM: 1_000 * MIB}))
    read(1, 50_000, {"a": {RAM: 7_000 * MIB}, "b": {RAM: 3_000 * MIB}})
    ledger.write_off("a", ())
    assert ledger.foreign == {RAM: 11_000 * MIB, PAGE_CACHE: 11_000 * MIB}

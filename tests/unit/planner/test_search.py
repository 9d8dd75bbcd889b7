"""The findings of the three hosts come out of the search, from headers alone."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from swapd.planner.machine import Machine, typed_machine
from swapd.planner.options import Ask, Option
from swapd.planner.plan import args_of, parse_ladder, toml
from swapd.planner.search import plan_model, plan_set
from swapd.units import GIB, MIB
from tests.unit.gguf.measured import host_models

HOST_L = typed_machine(["total=4096MiB,overhead=120MiB"], 256 * MIB, 14 * GIB, 6)
HOST_M = typed_machine(["total=16376MiB,overhead=300MiB"], GIB, 94 * GIB, 24)
HOST_N = typed_machine(
    [
        "id=CUDA0,total=12288MiB,free=11160MiB,headroom=1300MiB,overhead=300MiB",
        "id=CUDA1,total=10240MiB,free=10000MiB,headroom=512MiB,overhead=300MiB",
    ],
    GIB,
    60 * GIB,
    8,
)


def ask(model: str, args: str = "", ctx: int = 0, **more: Any) -> Ask:
    return Ask(f"/m/{model}.gguf", model, host_models()[model], tuple(args.split()), ctx, **more)


def best(wanted: Ask, machine: Machine) -> Option:
    found = plan_model(wanted, machine).best
    assert found is not None
    return found


def keeps_headroom(option: Option) -> bool:
    taken = option.taken()
    return all(taken.get(g.gpu.id, 0) <= g.room_bytes for g in option.gpus)


def test_host_n_gets_a_split_that_gives_the_first_gpu_the_light_layers() -> None:
    found = best(ask("host-n-35b", "-ctk q8_0 -ctv q8_0 -ub 512", ctx=131_072), HOST_N)
    assert found.flags.n_cpu_moe in (9, 10), "host N ran with 10, and 1.3 GiB free on the shared GPU"
    assert found.flags.tensor_split in ((25.0, 16.0), (24.0, 17.0)), "24,16 of 40 layers, the head on the second"
    assert found.flags.threads == 8, "physical cores (N2)"
    assert found.flags.load_mode == "none", "experts on the CPU are read, not mapped (M6)"
    assert keeps_headroom(found)


def test_host_n_may_get_a_larger_ubatch_for_its_prompts_and_sees_the_other_choice() -> None:
    plan = plan_model(ask("host-n-35b", "-ctk q8_0 -ctv q8_0", ctx=131_072), HOST_N)
    first, second = plan.options[:2]
    assert (first.flags.ubatch_tokens, second.flags.ubatch_tokens) == (2048, 512)
    assert first.speed.prefill_tps > 1.5 * second.speed.prefill_tps
    assert first.speed.decode_tps < second.speed.decode_tps
    assert any("one more layer" in hint for hint in plan.hints)


def test_host_l_gives_the_gpu_to_the_small_model_and_hides_it_from_the_big_one() -> None:
    asks = [ask("host-l-35b"), ask("host-l-4b", "-ctk q4_0 -ctv q4_0")]
    big, small = (plan.best for plan in plan_set(asks, HOST_L))
    assert big is not None and small is not None
    assert small.whole and small.prediction.n_ctx == 24_576 and keeps_headroom(small)
    assert big.gpus == () and big.flags.threads == 6
    text = tomllib.loads(toml(plan_set(asks, HOST_L), HOST_L))
    assert text["models"]["host-l-35b"]["gpus"] == []
    assert text["models"]["host-l-4b"] | {"gguf": ""} == {"gguf": "", "args": "-ctk q4_0 -ctv q4_0", "ctx": 24_576}
    assert text["groups"]["together"] == {
        "members": ["host-l-35b", "host-l-4b"], "swap": False, "exclusive": True,
    }  # fmt: skip


@pytest.mark.parametrize(("ctx", "step"), [(131_072, "8GiB"), (196_608, "6GiB"), (262_144, "4GiB")])
def test_host_m_s_pool_steps_down_as_the_context_grows(ctx: int, step: str) -> None:
    ladder = parse_ladder("--expert-pool=8GiB,6GiB,4GiB")
    args = "--cpu-moe -fa on -ctk q8_0 -ctv q4_0 -np 1"
    found = best(ask("host-m-177b", args, ctx=ctx, ladder=ladder), HOST_M)
    assert found.step is not None and ladder.steps[found.step] == step
    assert keeps_headroom(found)
    assert args_of(found)[-2:] == ("--expert-pool", step)


def test_k_is_never_below_q8_0_unless_asked() -> None:
    plan = plan_model(ask("host-l-4b"), HOST_L)
    assert {o.flags.cache_type_k for o in plan.options} <= {"f16", "q8_0"}


def test_every_option_keeps_the_headroom_and_none_is_worse_in_everything() -> None:
    plan = plan_model(ask("host-n-35b"), HOST_N)
    assert len(plan.options) > 2
    for option in plan.options:
        assert keeps_headroom(option)
        others = [o for o in plan.options if o is not option]
        assert not any(all(a >= b for a, b in zip(o.merits(), option.merits(), strict=True)) for o in others)


def test_a_model_that_fits_one_gpu_takes_the_smallest_that_holds_it() -> None:
    machine = typed_machine(["24GiB", "8GiB"], GIB, 64 * GIB, 0)
    found = best(ask("host-l-4b", ctx=8192), machine)
    assert [g.gpu.id for g in found.gpus] == ["GPU-1"] and found.whole


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_layers_go_over_as_many_gpus_as_it_takes(count: int) -> None:
    machine = typed_machine(["8GiB"] * count, GIB, 64 * GIB, 0)
    found = best(ask("host-n-35b", ctx=8192), machine)
    assert keeps_headroom(found)
    assert found.whole == (count >= 4), "21 GB of weights: four GPUs with 7 GiB of room"
    assert len(found.gpus) == min(count, 4)


def test_no_gpu_means_ram_and_too_little_of_both_says_what_is_missing() -> None:
    found = best(ask("host-l-4b"), replace(HOST_L, gpus=()))
    assert found.gpus == () and not found.prediction.devices
    plan = plan_model(ask("host-l-35b"), replace(HOST_L, gpus=(), ram_bytes=GIB))
    assert plan.best is None
    assert "RAM" in plan.why and "1,024 MiB" in plan.why


def test_a_file_that_the_ram_cannot_cache_is_said_to_thrash() -> None:
    roomy = best(ask("host-l-35b", "--mmap -ub 512", ctx=8192), replace(HOST_L, ram_bytes=15 * GIB))
    tight = best(ask("host-l-35b", "--mmap -ub 512", ctx=8192), replace(HOST_L, ram_bytes=6 * GIB))
    assert not roomy.speed.thrashes and tight.speed.thrashes
    assert tight.speed.decode_tps < roomy.speed.decode_tps / 3, "23 to 2.8 tokens/s on host L (L1)"

"""``swapd plan``: files and a machine in, predictions or choices and their TOML out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from swapd.config.toml import Tables, document, literal
from swapd.core.flags import EngineFlags, usual_ctx
from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM, DeviceId
from swapd.errors import ConfigError
from swapd.gguf.header import read_header
from swapd.gguf.memory import Prediction
from swapd.llama.flags import CTX_FLAGS, has_flag, parse_flags
from swapd.planner.estimate import prediction
from swapd.planner.law_facts import ModelFacts, Setup
from swapd.planner.laws import findings
from swapd.planner.machine import Machine, PlanGpu
from swapd.planner.options import Ask, Ladder, ModelPlan, Option
from swapd.planner.search import plan_set
from swapd.units import format_size, parse_size

_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Result:
    """Either one ``prediction`` with its ``verdict``, or ``plans``. ``rooms``: free bytes by GPU before any load."""

    rooms: tuple[tuple[DeviceId, int], ...]
    name: str = ""
    prediction: Prediction | None = None
    verdict: str = ""
    plans: tuple[ModelPlan, ...] = ()
    toml: str = ""
    warnings: tuple[str, ...] = ()


def asks(
    files: Sequence[str], args: Sequence[tuple[str, ...]], ctx_tokens: int, ladder: Ladder | None = None
) -> list[Ask]:
    """Headers read and named after their files.

    Raises:
        GgufError: a file cannot be read or is no GGUF.
        ConfigError: two have one name.
    """
    found = []
    for path, words in zip(files, args, strict=True):
        header = read_header(path)
        found.append(Ask(path, model_name(path), header, words, ctx_tokens, ladder))
    names = [ask.name for ask in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"two files have one name: {', '.join(names)}", hint="name each GGUF once")
    return found


def model_name(path: str) -> str:
    """The id a file's model gets: its name without ``.gguf`` and the number of its part."""
    name = os.path.basename(path)
    return _PART.sub("", name.removesuffix(".gguf"))


def parse_ladder(text: str) -> Ladder:
    """``--flag=8GiB,6GiB,4GiB``.

    Raises:
        ConfigError: if a step is no size.
    """
    flag, _, steps = text.partition("=")
    words = tuple(step.strip() for step in steps.split(",") if step.strip())
    if not flag.startswith("-") or not words:
        raise ConfigError(f"--ladder {text}: not FLAG=STEPS", hint="e.g. --expert-pool=8GiB,6GiB,4GiB")
    try:
        sizes = tuple(parse_size(word) for word in words)
    except ValueError as error:
        raise ConfigError(f"--ladder {text}: {error}") from None
    if sorted(sizes, reverse=True) != list(sizes):
        raise ConfigError(f"--ladder {text}: does not step down", hint="write the largest step first")
    return Ladder(flag, words, sizes)


def predict_only(ask: Ask, machine: Machine) -> Result:
    """What these very flags take, and whether that fits."""
    flags = parse_flags(ask.args)
    if ask.ctx_tokens or not has_flag(ask.args, CTX_FLAGS):
        flags = replace(flags, ctx_tokens=ask.ctx_tokens or usual_ctx(ask.header.n_ctx_train))
    found = prediction(ask.header, flags, [g.gpu for g in machine.gpus])
    rooms = tuple((g.gpu.id, g.gpu.free_bytes) for g in machine.gpus)
    broken = _broken([(ask, flags, machine.gpus)], machine)
    return Result(rooms, ask.name, found, _verdict(found, machine, fit=flags.fit), warnings=broken)


def search(wanted: Sequence[Ask], machine: Machine) -> Result:
    """Choices for a model, or for a set that stays loaded together."""
    plans = tuple(plan_set(wanted, machine))
    rooms = tuple((g.gpu.id, g.gpu.free_bytes) for g in machine.gpus)
    chosen = [(p.ask, p.best.flags, p.best.gpus) for p in plans if p.best is not None]
    text = toml(plans, machine) if len(chosen) == len(plans) else ""
    return Result(rooms, plans=plans, toml=text, warnings=_broken(chosen, machine))


def _broken(chosen: Sequence[tuple[Ask, EngineFlags, Sequence[PlanGpu]]], machine: Machine) -> tuple[str, ...]:
    """The laws that these flags break on this machine, with all of the models loaded together."""
    models = tuple(
        ModelFacts(
            ask.name,
            flags,
            args=ask.args,
            header=ask.header,
            gpus=tuple(_sample(g) for g in gpus),
            overhead_bytes={g.gpu.id: g.gpu.overhead_bytes for g in gpus},
        )
        for ask, flags, gpus in chosen
    )
    ram = DeviceSample(RAM, machine.ram_bytes, machine.ram_bytes) if machine.knows_ram else DeviceSample(RAM, 0, None)
    setup = Setup(
        models=models,
        together=(tuple(m.id for m in models),),
        gpus=tuple(_sample(g) for g in machine.gpus),
        ram=ram,
        headroom_bytes={g.gpu.id: g.headroom_bytes for g in machine.gpus},
        cores=machine.cores,
    )
    return tuple(str(finding) for finding in findings(setup))


def _sample(one: PlanGpu) -> DeviceSample:
    return DeviceSample(one.gpu.id, one.gpu.total_bytes, one.gpu.free_bytes)


def _verdict(found: Prediction, machine: Machine, *, fit: bool) -> str:
    over = [
        f"{d.id} is {format_size(d.peak - g.room_bytes)} short"
        for d, g in zip(found.devices, machine.gpus, strict=True)
        if d.peak > g.room_bytes
    ]
    if found.host.need > machine.ram_bytes:
        over.append(f"RAM is {format_size(found.host.need - machine.ram_bytes)} short")
    if fit:
        return "with --fit on llama-server takes whatever is free; shown is what it would take if that were enough"
    words = f"does not fit with the headroom: {', '.join(over)}" if over else "fits with the headroom"
    certainty = "" if found.exact else " (an estimate that errs high: not everything here is known exactly)"
    return f"{words}{certainty}; --search chooses what the arguments leave open"


def args_of(option: Option) -> tuple[str, ...]:
    """Every flag of an option: the given ones, then what was chosen."""
    flags, ladder = option.flags, option.ask.ladder
    words = [*option.ask.args, *_chosen(option)]
    if not has_flag(option.ask.args, CTX_FLAGS):
        words += ["-c", str(flags.ctx_tokens)]
    if flags.n_cpu_moe != parse_flags(option.ask.args).n_cpu_moe:
        words += ["--n-cpu-moe", str(flags.n_cpu_moe)]
    if ladder is not None and option.step is not None:
        words += [ladder.flag, ladder.steps[option.step]]
    return tuple(words)


def _chosen(option: Option) -> list[str]:
    """Flags without a key of their own in the TOML, where they differ from what the arguments mean already."""
    flags, given = option.flags, parse_flags(option.ask.args)
    words: list[str] = []
    if flags.gpu_layers != given.gpu_layers:
        words += ["-ngl", str(flags.gpu_layers)]
    if flags.tensor_split != given.tensor_split:
        words += ["-ts", ",".join(f"{share:g}" for share in flags.tensor_split)]
    for flag, value, old in (
        ("-ctk", flags.cache_type_k, given.cache_type_k),
        ("-ctv", flags.cache_type_v, given.cache_type_v),
        ("-b", flags.batch_tokens, given.batch_tokens),
        ("-ub", flags.ubatch_tokens, given.ubatch_tokens),
        ("-t", flags.threads, given.threads),
        ("--load-mode", flags.load_mode, given.load_mode),
    ):
        if value != old:
            words += [flag, str(value)]
    return words


def toml(plans: Sequence[ModelPlan], machine: Machine) -> str:
    """The winning options as configuration; a set becomes a group that stays loaded together."""
    tables: Tables = []
    for plan in plans:
        if plan.best is not None:
            tables += _tables(plan.best, machine)
    if len(plans) > 1:
        members = [plan.ask.name for plan in plans]
        tables.append((("groups", "together"), {"members": members, "swap": False, "exclusive": True}))
    return document(tables)


def _tables(option: Option, machine: Machine) -> Tables:
    ask, flags = option.ask, option.flags
    keys: dict[str, Any] = {"gguf": literal(os.path.abspath(ask.path))}
    if words := [*ask.args, *_chosen(option)]:
        keys["args"] = literal(shlex.join(words))
    if not has_flag(ask.args, CTX_FLAGS):
        keys["ctx"] = flags.ctx_tokens
    if flags.n_cpu_moe != parse_flags(ask.args).n_cpu_moe:
        keys["n_cpu_moe"] = flags.n_cpu_moe
    if len(option.gpus) < len(machine.gpus):
        keys["gpus"] = [g.key for g in option.gpus]
    tables: Tables = [(("models", ask.name), keys)]
    if ask.ladder is not None and option.step is not None:
        ladder = {"flag": ask.ladder.flag, "steps": list(ask.ladder.steps)}
        tables.append((("models", ask.name, "ladder"), ladder))
    return tables

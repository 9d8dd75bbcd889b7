"""What ``swapd plan`` prints: a table and the winning TOML, or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swapd.gguf.memory import DeviceBytes, Prediction
from swapd.planner.options import ModelPlan, Option
from swapd.planner.plan import Result, args_of
from swapd.units import MIB


def tree(result: Result) -> dict[str, Any]:
    """JSON: one prediction as it is; of a search each model with its options, best first."""
    if result.prediction is not None:
        return prediction_tree(result.prediction)
    models = [
        {
            "model": plan.ask.name,
            "gguf": plan.ask.path,
            "fits": plan.best is not None,
            "why": plan.why or None,
            "hints": list(plan.hints),
            "options": [_option_tree(option) for option in plan.options],
        }
        for plan in result.plans
    ]
    return {"models": models, "toml": result.toml, "warnings": list(result.warnings)}


def prediction_tree(found: Prediction) -> dict[str, Any]:
    """Bytes as MiB, not rounded: to be compared with what was measured."""
    devices = [
        {
            "id": d.id,
            "need_mib": _mib(d.need),
            "peak_mib": _mib(d.peak),
            "weights_mib": _mib(d.weights),
            "kv_mib": _mib(d.kv),
            "state_mib": _mib(d.state),
            "compute_mib": _mib(d.compute),
            "overhead_mib": _mib(d.overhead),
        }
        for d in found.devices
    ]
    host = {
        "need_mib": _mib(found.host.need),
        "mapped_mib": _mib(found.host.mapped),
        "anon_mib": _mib(found.host.anonymous + found.host.working),
        "anon_idle_mib": _mib(found.host.anonymous),
        "pinned_mib": _mib(found.host.pinned),
        "may_come_mib": _mib(found.host.may_come),
    }
    return {"devices": devices, "host": host, "n_ctx": found.n_ctx, "exact": found.exact}


def _option_tree(option: Option) -> dict[str, Any]:
    return {
        "args": list(args_of(option)),
        "gpus": [g.gpu.id for g in option.gpus],
        "ctx": option.prediction.n_ctx,
        "n_cpu_moe": option.flags.n_cpu_moe,
        "step": option.ask.ladder.steps[option.step] if option.ask.ladder and option.step is not None else None,
        "estimated_decode_tps": round(option.speed.decode_tps, 1),
        "estimated_prefill_tps": round(option.speed.prefill_tps, 1),
        "prediction": prediction_tree(option.prediction),
    }


def show(result: Result) -> None:
    """Tables, then the TOML."""
    import click
    from rich.console import Console

    console = Console(highlight=False)
    if result.prediction is not None:
        console.print(_devices([(result.name, result.prediction, dict(result.rooms), 0)]))
        _show_host(console, result.prediction)
        _warn(result)
        click.echo(result.verdict)
        return
    for plan in result.plans:
        _show_model(console, plan)
    rows = [(p.ask.name, p.best.prediction, dict(result.rooms), p.best.step_bytes) for p in result.plans if p.best]
    if rows:
        console.print(_devices(rows))
    _warn(result)
    if result.toml:
        click.echo(result.toml)


def _warn(result: Result) -> None:
    import click

    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)


def _show_model(console: Any, plan: ModelPlan) -> None:
    from rich.markup import escape
    from rich.table import Table

    console.print(f"[bold]{escape(plan.ask.name)}[/]")
    if plan.best is None:
        console.print(f"  does not fit: {escape(plan.why)}", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "WHERE", "CONTEXT", "KV", "UBATCH", "tok/s*", "prompt*"):
        table.add_column(column, justify="right" if column in ("CONTEXT", "UBATCH", "tok/s*", "prompt*") else "left")
    for number, option in enumerate(plan.options):
        flags = option.flags
        table.add_row(
            "->" if not number else "",
            escape(where(option)),
            f"{option.prediction.n_ctx:,}",
            f"{flags.cache_type_k}/{flags.cache_type_v}",
            str(flags.ubatch_tokens),
            f"{option.speed.decode_tps:.0f}",
            f"{option.speed.prefill_tps:,.0f}",
        )
    console.print(table)
    for hint in plan.hints:
        console.print(f"  more would fit with: {escape(hint)}", soft_wrap=True)
    console.print("  * estimated from bytes read a token; measure before you trust it\n")


def where(option: Option) -> str:
    """In words: what lies on which GPUs."""
    flags = option.flags
    names = "+".join(g.gpu.id for g in option.gpus)
    parts = []
    if not option.gpus:
        parts.append("RAM only, GPUs hidden")
    elif flags.cpu_moe:
        parts.append(f"{names}, all experts in RAM")
    elif flags.n_cpu_moe:
        parts.append(f"{names}, experts of {flags.n_cpu_moe} layers in RAM")
    elif not option.whole:
        parts.append(f"{names}, {flags.gpu_layers} layers and head")
    else:
        parts.append(names)
    if flags.tensor_split:
        parts.append("-ts " + ",".join(f"{share:g}" for share in flags.tensor_split))
    if option.ask.ladder and option.step is not None:
        parts.append(f"{option.ask.ladder.flag} {option.ask.ladder.steps[option.step]}")
    if option.speed.thrashes:
        parts.append("read from disk again and again: the RAM does not hold the file (L1)")
    return ", ".join(parts)


def _devices(rows: list[tuple[str, Prediction, dict[str, int], int]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="MiB", title_justify="left")
    table.add_column("MODEL", overflow="fold", min_width=10)
    table.add_column("DEVICE", overflow="fold", min_width=6)
    for column in ("WEIGHTS", "KV", "COMPUTE", "OVERHEAD", "PEAK", "FREE"):
        table.add_column(column, justify="right", no_wrap=True)
    left: dict[str, int] = {}
    for name, found, rooms, step in rows:
        left = left or dict(rooms)
        for number, d in enumerate(found.devices):
            extra = step if not number else 0
            left[d.id] = left.get(d.id, 0) - d.peak - extra
            table.add_row(escape(name), escape(d.id), *_cells(d, extra), f"{left[d.id] // MIB:,}")
        host = found.host
        table.add_row(escape(name), "RAM", *_host_cells(host.need, host.mapped))
    return table


def _cells(d: DeviceBytes, extra: int) -> Iterator[str]:
    for size in (d.weights + extra, d.kv + d.state, d.compute, d.overhead, d.peak + extra):
        yield f"{round(size / MIB):,}"


def _host_cells(need: int, mapped: int) -> Iterator[str]:
    yield f"{round(mapped / MIB):,}"
    yield from ("", "", "", f"{round(need / MIB):,}", "")


def _show_host(console: Any, found: Prediction) -> None:
    host = found.host
    console.print(
        f"RAM: {(host.anonymous + host.working) // MIB:,} MiB anonymous, {host.pinned // MIB:,} pinned, "
        f"{host.mapped // MIB:,} mapped from the file; up to {host.may_come // MIB:,} may come (prompt cache)"
    )


def _mib(size: int) -> float:
    return round(size / MIB, 2)

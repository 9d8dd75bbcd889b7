"""``swapd status``: what people look at all day."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from swapd.cli.client import Client, connection_options
from swapd.units import format_duration

WATCH_S = 1.0
_COLOURS = {"ready": "green", "starting": "yellow", "draining": "yellow", "failed": "red", "lost": "red"}


@click.command("status")
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/status answers.")
@click.option("--watch", is_flag=True, help="Again every second, until interrupted.")
def command(client: Client, as_json: bool, watch: bool) -> None:
    """Show devices and models of a running swapd."""
    while True:
        status = client.get("/api/status")
        if as_json:
            click.echo(json.dumps(status, indent=2))
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            show(status)
        if not watch:
            return
        time.sleep(WATCH_S)


def show(status: dict[str, Any]) -> None:
    """Tables, readable at 80 columns."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    config = status["config"]["path"] or "built in"
    console.print(
        f"swapd {status['version']}  up {format_duration(status['uptime_s'])}  configuration: {escape(config)}"
    )
    if status["config"]["error"]:
        console.print(f"[red]configuration not reloaded: {escape(status['config']['error'])}[/]")
    if not status["known"]:
        console.print(f"[red]GPUs unknown: {escape(status['problem'] or '')}[/]")
    if status.get("profile") is not None:
        console.print(f"profile: {escape(status['profile'])}")
    console.print(_devices(status))
    console.print(_models(status))
    if status.get("answers"):
        console.print(_answers(status["answers"]))
    if status.get("peers"):
        console.print(_peers(status["peers"]))
    for model in status["models"]:
        if model["state"] in ("failed", "lost") or (model["reason"] or "").startswith(("degraded", "the configured")):
            text = model["last_error"] if model["state"] == "failed" else model["reason"]
            console.print(f"[red]{escape(model['id'])}[/]: {escape(text or '')}", soft_wrap=True)


def _devices(status: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("DEVICE", overflow="fold")
    for column in ("USED", "FREE", "HEADROOM"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    rows = [(f"{d['index']}: {d['name']}", d["total_mib"], d["free_mib"], d["headroom_mib"]) for d in status["devices"]]
    ram = status["ram"]
    for device, total, free, headroom in [*rows, ("RAM", ram["total_mib"], ram["available_mib"], ram["headroom_mib"])]:
        name = escape(device)
        if free is None:
            table.add_row(name, "?", "?", f"{headroom:,} MiB", "cannot be read")
            continue
        colour = "red" if free < headroom else "green"
        table.add_row(
            name, f"{total - free:,} MiB", f"[{colour}]{free:,} MiB[/]", f"{headroom:,} MiB", _bar(total, free)
        )
    return table


def _bar(total: int, free: int, width: int = 16) -> str:
    used = round(width * (total - free) / total) if total else 0
    return "#" * used + "." * (width - used)


def _vram(mib: int, errors: dict[str, float]) -> str:
    """MiB held; in brackets how much more or less than was predicted for the load."""
    error = round(sum(errors.values()))
    return f"{mib:,} ({error:+,})" if error else f"{mib:,}"


def _models(status: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("MODEL", overflow="fold", min_width=12)
    table.add_column("STATE", no_wrap=True)
    for column in ("ACTIVE", "QUEUED", "VRAM", "IDLE"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("WHY")
    for model in status["models"]:
        state = model["state"]
        progress = f" {model['progress']:.0%}" if model["progress"] is not None else ""
        vram = sum((model["measured_mib"] or model["reserved_mib"]).values())
        loaded = model["pid"] is not None
        table.add_row(
            escape(model["id"]),
            f"[{_COLOURS.get(state, 'default')}]{state}{progress}[/]",
            str(model["active"]),
            str(model["queued"]),
            _vram(vram, model.get("prediction_error_mib", {})) if loaded and vram else "-",
            format_duration(model["idle_s"]) if model["idle_s"] is not None else "-",
            escape(model["reason"] or ""),
        )
    return table


def _answers(answers: dict[str, dict[str, Any]]) -> Any:
    """How fast the last answers of each model were; "-" where its engine does not tell."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("LAST ANSWERS", overflow="fold", min_width=12)
    for column in ("DECODE", "PREFILL", "CACHED", "DRAFTS TAKEN", "FIRST BYTE"):
        table.add_column(column, justify="right", no_wrap=True)
    forms = (("decode_tps", "{:,.1f} t/s"), ("prefill_tps", "{:,.0f} t/s"), ("cached", "{:.0%}"),
             ("draft_accepted", "{:.0%}"), ("first_byte_s", "{:,.2f} s"))  # fmt: skip
    for model, told in answers.items():
        cells = ("-" if told[key] is None else form.format(told[key]) for key, form in forms)
        table.add_row(escape(model), *cells)
    return table


def _peers(peers: list[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("PEER", overflow="fold", min_width=12)
    table.add_column("ANSWERS", no_wrap=True)
    table.add_column("MODELS")
    words = {None: "not asked yet", True: "[green]yes[/]", False: "[red]no[/]"}
    for peer in peers:
        models = [f"{m['id']} ({m['state']})" if m["state"] else m["id"] for m in peer["models"]]
        told = ", ".join(models) + (f" {peer['error']}" if peer["error"] else "")
        table.add_row(escape(peer["id"]), words[peer["reachable"]], escape(told.strip()))
    return table

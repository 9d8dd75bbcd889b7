"""``swapd explain``."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from typing import Any
from urllib.parse import quote

import click

from swapd.cli.client import Client, connection_options


@click.command("explain")
@connection_options
@click.argument("name", metavar="NAME")
@click.option("--devices", metavar="FILE", help="Explain for a simulated machine with nothing loaded; asks no swapd.")
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/explain/NAME answers.")
def command(client: Client, name: str, devices: str | None, as_json: bool) -> None:
    """Show what a request for NAME would do now, and why: how the name is understood, then what happens to the model.

    NAME is what a request may name: an id, a variant, an alias, a selector, peer/model.
    """
    if devices is None:
        answer = client.get(f"/api/explain/{quote(name, safe='')}")
    else:
        answer = _imagined(client.config, name, devices)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _show(answer)


def _imagined(config: str | None, name: str, devices: str) -> dict[str, Any]:
    import structlog

    from swapd import wiring
    from swapd.proxy.directory import Directory
    from swapd.proxy.peers import Peers

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    resolved = wiring.configure(config, devices=devices, files=False)
    peers = Peers(resolved.names.peers)
    return Directory(resolved.names, resolved.routes, wiring.imagine(resolved), peers).explain(name)


def _show(answer: dict[str, Any]) -> None:
    _show_name(answer)
    words = {
        "serve": "is served at once",
        "start": "starts the model",
        "evict": f"starts the model after unloading {', '.join(answer['evicts'])}",
        "wait": f"waits for {', '.join(answer['evicts']) or 'room'}",
        "refuse": "is refused",
        "relay": "is sent to a peer",
    }
    click.echo(f"a request for {answer['model']} (now {answer['state']}) {words[answer['action']]}")
    click.echo(f"why: {answer['why']}")
    for device, needed in answer["needed_mib"].items():
        click.echo(f"{device}: needs {needed:,} MiB, {answer['available_mib'].get(device, 0):,} MiB available")
    if answer.get("args"):
        click.echo(f"added to its command line: {shlex.join(answer['args'])}")


def _show_name(answer: dict[str, Any]) -> None:
    """How the name was understood; nothing for a plain id."""
    *missed, hit = answer["looked_at"]
    if answer["name"] != answer["model"]:
        for look in missed:
            click.echo(f"{answer['name']}: not {look['step']}")
        click.echo(f"{answer['name']}: {hit['found']}")
    if answer["selected"]:
        click.echo(f"selected: {answer['selected']}")
    edit = answer["edit"] or {}
    if edit.get("strip"):
        click.echo(f"removed from the body: {', '.join(edit['strip'])}")
    if edit.get("set"):
        click.echo(f"set in the body: {json.dumps(edit['set'], ensure_ascii=False)}")

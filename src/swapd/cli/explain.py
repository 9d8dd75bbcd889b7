"""``swapd explain``."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any
from urllib.parse import quote

import click

from swapd.cli.client import Client, connection_options
from swapd.errors import UnknownModel


@click.command("explain")
@connection_options
@click.argument("model", metavar="ID")
@click.option("--devices", metavar="FILE", help="Explain for a simulated machine with nothing loaded; asks no swapd.")
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/explain/ID answers.")
def command(client: Client, model: str, devices: str | None, as_json: bool) -> None:
    """Show what a request for a model would do now, and why."""
    if devices is None:
        answer = client.get(f"/api/explain/{quote(model, safe='')}")
    else:
        answer = _imagined(client.config, model, devices)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _show(answer)


def _imagined(config: str | None, model: str, devices: str) -> dict[str, Any]:
    import structlog

    from swapd import wiring

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    resolved = wiring.configure(config, devices=devices, files=False)
    if model not in resolved.catalog.models:
        raise UnknownModel(f"{model!r} is no model; there are: {', '.join(resolved.catalog.models)}")
    return dict(wiring.imagine(resolved).explain(model))


def _show(answer: dict[str, Any]) -> None:
    words = {
        "serve": "is served at once",
        "start": "starts the model",
        "evict": f"starts the model after unloading {', '.join(answer['evicts'])}",
        "wait": f"waits for {', '.join(answer['evicts']) or 'room'}",
        "refuse": "is refused",
    }
    click.echo(f"a request for {answer['model']} (now {answer['state']}) {words[answer['action']]}")
    click.echo(f"why: {answer['why']}")
    for device, needed in answer["needed_mib"].items():
        click.echo(f"{device}: needs {needed:,} MiB, {answer['available_mib'].get(device, 0):,} MiB available")

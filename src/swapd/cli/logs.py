"""``swapd logs``."""

from __future__ import annotations

import sys

import click

from swapd.cli.client import Client, connection_options, model_path


@click.command("logs")
@connection_options
@click.argument("model", metavar="[ID]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
def command(client: Client, model: str | None, follow: bool) -> None:
    """Show a model's output (of all models, one after the other, if none is named)."""
    if model is None and follow:
        raise click.UsageError("-f needs a model")
    models = [model] if model is not None else [m["id"] for m in client.get("/api/status")["models"]]
    for name in models:
        if model is None:
            click.echo(f"==> {name} <==")
        for chunk in client.lines(model_path(name, "logs") + ("?follow=1" if follow else "")):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

"""``swapd reload``."""

from __future__ import annotations

import json

import click

from swapd.cli.client import Client, connection_options


@click.command("reload")
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print what POST /api/reload answers.")
def command(client: Client, as_json: bool) -> None:
    """Read the configuration again: unchanged models go on, changed ones are replaced when idle, removed ones drain.

    A file with mistakes changes nothing; they are printed.
    """
    answer = client.post("/api/reload")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    for warning in answer["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    for what in ("added", "changed", "removed"):
        if answer[what]:
            click.echo(f"{what}: {', '.join(answer[what])}")
    if answer["at_restart"]:
        click.echo(f"not before swapd is started again: {', '.join(answer['at_restart'])}")
    if not any(answer[what] for what in ("added", "changed", "removed", "at_restart")):
        click.echo("reloaded; no model was added, changed or removed")

"""``swapd load``."""

from __future__ import annotations

import click

from swapd.cli.client import Client, connection_options, model_path


@click.command("load")
@connection_options
@click.argument("model", metavar="ID")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
def command(client: Client, model: str, no_wait: bool) -> None:
    """Load a model and wait until it is ready; a failure is told with its cause. Ends a backoff."""
    client.post(model_path(model, "load") + ("?wait=0" if no_wait else ""))
    click.echo(f"{model}: {'loading' if no_wait else 'ready'}")

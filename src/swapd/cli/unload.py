"""``swapd unload``."""

from __future__ import annotations

import click

from swapd.cli.client import Client, connection_options, model_path


@click.command("unload")
@connection_options
@click.argument("model", metavar="[ID]", required=False)
@click.option("--all", "all_models", is_flag=True, help="Unload every model.")
@click.option("--force", is_flag=True, help="End running requests at once; the default gives them `drain`.")
def command(client: Client, model: str | None, all_models: bool, force: bool) -> None:
    """Unload a model, or all, and wait until the process is gone."""
    if all_models == (model is not None):
        raise click.UsageError("name a model, or use --all")
    query = "?force=1" if force else ""
    if model is not None:
        client.post(model_path(model, "unload") + query)
        click.echo(f"{model}: unloaded")
    else:
        unloaded = client.post("/api/unload" + query)["unloaded"]
        click.echo(f"unloaded: {', '.join(unloaded)}" if unloaded else "nothing was loaded")

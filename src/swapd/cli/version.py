"""``swapd version``."""

from __future__ import annotations

import click

from swapd import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"swapd {__version__}")

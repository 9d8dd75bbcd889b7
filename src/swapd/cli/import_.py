"""``swapd import``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from swapd.cli.exits import FAILED
from swapd.errors import ConfigError


@click.command("import")
@click.argument("file", metavar="LLAMA_SWAP_YAML")
def command(file: str) -> None:
    """Turn a configuration of llama-swap into TOML with the same behaviour, printed to stdout.

    What has no counterpart, or does not mean quite the same, is listed: as comments at the top, and on stderr.
    """
    from swapd.config.importing.llama_swap import import_llama_swap
    from swapd.config.load import read_text
    from swapd.llama.written import read_server

    result = import_llama_swap(read_text(Path(file)), file, read_server=read_server, environ=os.environ)
    click.echo(result.text, nl=False)
    for note in result.notes:
        click.echo(f"{file}: {note}", err=True)
    for name in sorted(result.env_read - os.environ.keys()):
        click.echo(f"warning: the environment variable {name} is not set here; the TOML needs it", err=True)
    _check(result.text, {**dict.fromkeys(result.env_read, "set"), **os.environ})


def _check(text: str, environ: dict[str, str]) -> None:
    """The TOML is read as ``swapd check --no-files`` reads it; what is wrong with it is told, with its line in it."""
    from swapd.config.load import load_text
    from swapd.config.resolve import resolve

    try:
        loaded = load_text(text, None, environ=environ, name="(imported)", lenient=True)
        warnings = resolve(loaded, files=False, environ=environ).warnings
    except ConfigError as error:
        click.echo(error.message, err=True)
        click.echo("swapd: the TOML has mistakes: correct them by hand", err=True)
        sys.exit(FAILED)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)

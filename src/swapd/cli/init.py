"""``swapd init``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from swapd.errors import ConfigError, SwapdError


@click.command("init")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--output", "-o", metavar="FILE", help="Write there instead of to stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--devices", metavar="FILE", help="A simulated machine (JSON) instead of this one's GPUs.")
def command(folder: str | None, output: str | None, force: bool, devices: str | None) -> None:
    """Write a configuration from the GGUFs below DIR and the GPUs found.

    Without DIR: below $SWAPD_MODELS, ./models, ~/models, the Hugging Face cache and the llama.cpp cache. Files that
    cannot be read, incomplete ones and what is no model are listed as comments.
    """
    from swapd.config.found import look
    from swapd.config.generated import init_toml, model_folders
    from swapd.devices.monitor import Monitor

    folders = [Path(folder).expanduser().absolute()] if folder else model_folders()
    if folder and not folders[0].is_dir():
        raise ConfigError(f"{folder}: no such folder", file=folder)
    target = _target(output, force=force)
    finds = look(folders)
    for reason in finds.left_out:
        click.echo(f"left out: {reason}", err=True)
    if not finds.models:
        raise SwapdError(f"no model found below {', '.join(map(str, folders))}")
    machine = Monitor(f"file:{Path(devices).absolute()}" if devices else "auto").sample_now()
    text = init_toml(finds, machine, folders)
    if target is None:
        click.echo(text, nl=False)
        return
    _write(target, text, force=force)
    click.echo(f"{output}: {len(finds.models)} models; swapd check {output} shows whether they fit", err=True)


def _target(output: str | None, *, force: bool) -> Path | None:
    """Where to write, told before the work is done if it cannot be."""
    if output is None:
        return None
    target = Path(os.path.realpath(Path(output).expanduser()))
    if target.exists() and not force:
        raise ConfigError(f"{output} exists: --force overwrites it", file=output)
    if not target.parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {target.parent}", file=output)
    return target


def _write(target: Path, text: str, *, force: bool) -> None:
    """All or nothing; a file that came meanwhile is not overwritten either."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if force:
            draft.replace(target)
        else:
            target.hardlink_to(draft)
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}", file=str(target)) from None
    finally:
        draft.unlink(missing_ok=True)

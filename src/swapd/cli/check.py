"""``swapd check``."""

from __future__ import annotations

import json
from typing import Any

import click

from swapd.units import mib


@click.command("check")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--devices", metavar="FILE", help="A simulated machine (JSON) instead of this one's GPUs.")
@click.option("--no-files", is_flag=True, help="Leave out whether paths exist and binaries run.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: str | None, devices: str | None, no_files: bool, as_json: bool) -> None:
    """Check a configuration: every mistake at once, each with file, line, key and the nearest valid key.

    Also whether binaries run, libraries resolve, GGUFs can be read, the state directory can be written, the GPUs are
    there and the models fit this machine.
    """
    from swapd import wiring

    resolved = wiring.configure(file, devices=devices, files=not no_files)
    report = wiring.check(resolved, files=not no_files, is_machine_given=devices is not None)
    if as_json:
        sizes = {id_: {d: mib(n) for d, n in f.need_bytes.items()} for id_, f in report.sizes.items()}
        tree = {"warnings": report.warnings, "binaries": report.binaries, "models": sizes}
        click.echo(json.dumps(tree, indent=2))
        return
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    _show(resolved, report)


def _show(resolved: Any, report: Any) -> None:
    for name, found in report.binaries.items():
        click.echo(f"binary {name}: {found}")
    for id_ in resolved.catalog.models:
        size = report.sizes.get(id_)
        parts = [f"{d} {mib(n)} MiB" for d, n in size.need_bytes.items() if n] if size else []
        click.echo(f"model {id_}: {', '.join(parts) if parts else 'size not known'}")
    plural = "" if len(report.warnings) == 1 else "s"
    click.echo(f"{resolved.problems.file}: no mistakes, {len(report.warnings)} warning{plural}")

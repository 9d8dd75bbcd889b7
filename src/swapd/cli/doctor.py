"""``swapd doctor``: one page for a bug report, secrets removed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from swapd.cli import doctor_facts as facts
from swapd.cli.doctor_swapd import Configuration, running
from swapd.config.redact import scrub, secrets_of


@click.command("doctor")
@click.option("--config", "config", metavar="FILE", help="The configuration (default: as for serve).")
@click.option("--url", metavar="URL", help="Where swapd listens (default: $SWAPD_URL, else found).")
@click.option("--api-key", metavar="KEY", help="Its key (default: $SWAPD_API_KEY, else the configuration's).")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def command(config: str | None, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Print one page to paste into a bug report: versions, machine, devices, builds, configuration, last errors.

    Keys and other secrets are removed; read it over before you post it.
    """
    if sys.stderr.isatty():
        click.echo("swapd: asking the builds and the running swapd …", err=True)
    configuration = Configuration(config)
    sections = {
        "versions": facts.versions(),
        "machine": facts.system(),
        "devices": facts.devices(configuration.device_source),
        "builds": configuration.binaries(),
        "environment": facts.environment(),
        "running": running(url, api_key, config),
        "configuration": configuration.lines(),
    }
    secrets = secrets_of(configuration.tree, os.environ) | ({api_key} if api_key else set())
    clean = {t: [(_clean(n, secrets), _clean(v, secrets)) for n, v in lines] for t, lines in sections.items()}
    toml = _clean(configuration.text, secrets)
    click.echo(json.dumps({**clean, "toml": toml}, indent=2, ensure_ascii=False) if as_json else _page(clean, toml))


def _page(sections: dict[str, facts.Lines], config: str) -> str:
    blocks = []
    for title, lines in sections.items():
        width = min(24, max((len(name) for name, _ in lines), default=0))
        blocks.append("\n".join([f"## {title}", *(f"{name:<{width}}  {value}" for name, value in lines)]))
    return "\n\n".join([*blocks, config.strip()]).rstrip()


def _clean(text: str, secrets: set[str]) -> str:
    """Without secrets, and without the home directory's name, which is nobody's business."""
    home = str(Path.home())
    return scrub(text.replace(home, "~") if len(home) > 1 else text, secrets)

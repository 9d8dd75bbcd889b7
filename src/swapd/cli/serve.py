"""``swapd serve``."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from swapd.proxy import calm


@click.command("serve")
@click.option("--config", "config", metavar="FILE", help="The TOML to serve (default: $SWAPD_CONFIG, ./swapd.toml, …).")
@click.option("--listen", metavar="ADDRESS", help="8080, :8080, host:port, [::1]:8080 or a socket's path.")
@click.option("--demo", is_flag=True, help="Serve four ids of a 135M model; needs nothing but two PyPI packages.")
@click.option("--devices", metavar="FILE", help="A simulated machine (JSON) instead of this one's GPUs.")
def command(config: str | None, listen: str | None, demo: bool, devices: str | None) -> None:
    """Serve the models of a configuration until SIGTERM or SIGINT.

    Without a configuration the GGUFs found in $SWAPD_MODELS, ./models, ~/models and the Hugging Face and llama.cpp
    caches are served, one id a file.
    """
    gc.disable()  # start-up makes no garbage worth looking for; `calm.settle` turns it on again
    calm.gather_heap()

    from swapd import wiring
    from swapd.launch import pid1

    if pid1.is_init():
        pid1.heed_sigterm()
    resolved = wiring.configure(config, listen=listen, devices=devices, demo_models=demo)
    _set_up_logging(resolved.server.log_format, resolved.server.log_level)
    for warning in resolved.warnings:
        click.echo(f"swapd: warning: {warning}", err=True)
    endpoint = resolved.state_dir / "endpoint"
    written: list[str] = []

    def listening(url: str) -> None:
        _listening(url, endpoint, list(resolved.catalog.models))
        written.append(url)

    def again() -> Any:
        path = str(resolved.path) if resolved.path else config
        return wiring.configure(path, listen=listen, devices=devices, demo_models=demo)

    try:
        wiring.serve(resolved, listening, again)
    finally:
        with contextlib.suppress(OSError):
            if written and endpoint.read_text().strip() == written[0]:
                endpoint.unlink()


def _listening(url: str, endpoint: Path, models: list[str]) -> None:
    """Write down where swapd is found, for the commands that talk to it; serve also if the disk refuses."""
    temporary = endpoint.with_name(f".endpoint.{os.getpid()}")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(f"{url}\n")
        temporary.replace(endpoint)
    except OSError as error:
        click.echo(f"swapd: warning: {endpoint}: {error.strerror}; other commands may need --url {url}", err=True)
        with contextlib.suppress(OSError):
            temporary.unlink()
    names = ", ".join(models[:8]) + (", …" if len(models) > 8 else "")
    click.echo(f"swapd: serving {len(models)} models at {url}" + (f": {names}" if models else ""), err=True)
    if not models:
        where = "$SWAPD_MODELS, ./models, ~/models, the Hugging Face cache and the llama.cpp cache"
        click.echo(f"swapd: no GGUF was found in {where}; name a configuration, or try: swapd serve --demo", err=True)


def _set_up_logging(log_format: str, level: str) -> None:
    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )

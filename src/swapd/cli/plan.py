"""``swapd plan``."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from swapd.errors import ConfigError
from swapd.units import parse_size


class Size(click.ParamType[int]):
    """Bytes, typed as ``1 GiB``."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("plan")
@click.argument("files", metavar="GGUF...", nargs=-1, required=True)
@click.option("--args", "args", multiple=True, metavar="FLAGS", help="Flags of llama-server: predict exactly these. "
              "Once for each GGUF, or once for all.")  # fmt: skip
@click.option("--search", is_flag=True, help="With --args: keep them, and choose what they leave open.")
@click.option("--ctx", type=click.IntRange(min=1), help="Tokens of context; else the largest that costs no speed.")
@click.option("--gpu", "gpus", multiple=True, metavar="GPU", help="16GiB, or id=…,total=…,free=…,overhead=…,headroom=…"
              ": a GPU instead of this machine's; once for each, in CUDA's order.")  # fmt: skip
@click.option("--ram", type=Size(), help="RAM that models may take, with --gpu (default: as much as is needed).")
@click.option("--cores", type=click.IntRange(min=0), default=0, help="Physical cores, with --gpu or --devices.")
@click.option("--headroom", type=Size(), help="VRAM that must stay free on each GPU (default 1 GiB).")
@click.option("--ladder", metavar="FLAG=STEPS", help="A flag that steps down, e.g. --expert-pool=8GiB,6GiB,4GiB.")
@click.option("--devices", metavar="FILE", help="A simulated machine (JSON) instead of this one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(files: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show what models will take before they are started, and choose flags that fit.

    Without --args the flags are searched: layers and experts on the GPUs, context, KV cache types, ubatch, threads.
    Several GGUFs: a set that stays loaded together, VRAM to the smallest first. Nothing is started; the
    headers alone are read.
    """
    from swapd import wiring
    from swapd.cli import plan_output
    from swapd.llama.flags import CTX_FLAGS, has_flag

    args = options.pop("args")
    if len(args) > 1 and len(args) != len(files):
        raise ConfigError(f"--args is given {len(args)} times for {len(files)} files", hint="once for each, or once")
    try:
        words = [tuple(shlex.split(text)) for text in args]
    except ValueError as error:
        raise ConfigError(f"--args: {error}") from None
    if options["ctx"] and any(has_flag(one, CTX_FLAGS) for one in words):
        raise ConfigError("the context is given by --ctx and in --args", hint="give it once")
    per_file = [words[min(i, len(words) - 1)] if words else () for i in range(len(files))]
    search = options.pop("search") or not args
    result = wiring.plan(files, per_file, search=search, **options)
    if as_json:
        click.echo(json.dumps(plan_output.tree(result), indent=2))
    else:
        plan_output.show(result)

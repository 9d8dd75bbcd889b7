"""``swapd``: parse, call, print. Each command is a module of its own, imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from keyword import iskeyword
from typing import Final

import click

from swapd.cli.exits import EXIT_CODES, exit_code
from swapd.errors import ConfigError, SwapdError

COMMANDS: Final = {
    "serve": "Serve the models of a configuration (or the demo, or the GGUFs found).",
    "status": "Show devices and models of a running swapd.",
    "load": "Load a model and wait until it is ready.",
    "unload": "Unload a model, or all.",
    "logs": "Show a model's output.",
    "reload": "Read the configuration of a running swapd again.",
    "explain": "Show what a request for a model would do now, and why.",
    "check": "Check a configuration: every mistake at once.",
    "init": "Write a configuration from the GGUFs and GPUs found.",
    "import": "Turn a configuration of llama-swap into TOML.",
    "plan": "Show what models will take before they are started, and choose flags that fit.",
    "doctor": "Print one page for a bug report, secrets removed.",
    "completion": "Print a shell's completion of swapd.",
    "version": "Print the version.",
}


class LazyGroup(click.Group):
    """Imports only the command that runs: ``status`` must not pay for ``serve``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are needed."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or ``None``."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"swapd.cli.{cmd_name}{'_' * iskeyword(cmd_name)}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def swapd() -> None:
    """One OpenAI-compatible endpoint that starts, swaps and unloads llama-server processes on a GPU box."""


def main() -> None:
    """The entry point; errors are printed to stderr and become exit codes."""
    try:
        code = swapd.main(prog_name="swapd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(exit_code(KeyboardInterrupt()))
    except SwapdError as error:
        _fail(error.message, error)
    except tuple(EXIT_CODES) as error:
        _fail(str(error), error)
    else:
        sys.exit(code or 0)


def _fail(text: str, error: BaseException) -> None:
    if text:
        has_place = isinstance(error, ConfigError) and error.line > 0
        click.echo(text if has_place or text.startswith("swapd:") else f"swapd: {text}", err=True)
    sys.exit(exit_code(error))

"""``swapd completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what makes a shell complete swapd's commands and options.

    \b
    bash: swapd completion bash > ~/.local/share/bash-completion/completions/swapd
    zsh:  swapd completion zsh > "${fpath[1]}/_swapd"
    fish: swapd completion fish > ~/.config/fish/completions/swapd.fish
    """
    from swapd.cli.main import swapd

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(swapd, {}, "swapd", "_SWAPD_COMPLETE").source())

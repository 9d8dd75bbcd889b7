"""Commands are imported when they are asked for, and all of the contract's first ones are there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from swapd.cli.main import COMMANDS, swapd


def test_help_lists_every_command_without_importing_one() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from swapd.cli.main import COMMANDS, swapd\n"
        "out = CliRunner().invoke(swapd, ['--help']).output\n"
        "assert all(name in out for name in COMMANDS), out\n"
        "assert not [m for m in sys.modules if m.startswith('swapd.cli.') and m.rpartition('.')[2] in COMMANDS]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


@pytest.mark.parametrize("name", ["serve", "status", "load", "unload", "logs", "explain", "check", "version"])
def test_each_command_says_what_it_does(name: str) -> None:
    result = CliRunner().invoke(swapd, [name, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output
    assert name in COMMANDS


@pytest.mark.parametrize("name", ["serve", "explain", "check"])
def test_a_simulated_machine_can_be_given(name: str) -> None:
    assert "--devices" in CliRunner().invoke(swapd, [name, "--help"]).output

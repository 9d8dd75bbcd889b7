"""Writes what is generated from the command line's own words: the man page and the shells' completions.

Run it after a change of a command: ``python packaging/generate.py``. A test fails while a file is out of date.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from swapd import __version__
from swapd.cli.exits import EXIT_CODES
from swapd.cli.main import COMMANDS, swapd

HERE: Final = Path(__file__).parent
WORDS: Final[dict[str, Any]] = tomllib.loads((HERE.parent / "docs" / "generate_reference.toml").read_text("utf-8"))
COMPLETIONS: Final = {"bash/swapd": BashComplete, "zsh/_swapd": ZshComplete, "fish/swapd.fish": FishComplete}
FILES: Final = {
    "./swapd.toml, $XDG_CONFIG_HOME/swapd/swapd.toml, /etc/swapd/swapd.toml": "The configuration: the first found.",
    "$XDG_STATE_HOME/swapd": "Measured sizes, the address of a running swapd, its list of processes.",
}
ENVIRONMENT: Final = {
    "SWAPD_CONFIG": "The configuration, as --config.",
    "SWAPD_SERVER__LISTEN and so on": "Any key of [server].",
    "SWAPD_URL, SWAPD_API_KEY": "Of the running swapd that commands talk to.",
    "SWAPD_MODELS": "A folder of GGUFs that are served without a configuration.",
    "NO_COLOR": "No colours.",
}


def files() -> dict[str, str]:
    """Every generated file by its path below this folder."""
    found = {"man/swapd.1": "".join(man_page())}
    for name, kind in COMPLETIONS.items():
        shell = kind(swapd, {}, "swapd", "_SWAPD_COMPLETE")
        found[f"completions/{name}"] = shell.source_template % shell.source_vars() + "\n"
    return found


def man_page() -> Iterator[str]:
    """One page for all commands; without a date, so that it changes only when its words do."""
    group = click.Context(swapd, info_name="swapd", **swapd.context_settings)
    yield f'.TH SWAPD 1 "" "swapd {__version__}" "User Commands"\n'
    yield f".SH NAME\nswapd \\- {roff(swapd.help or '')}\n"
    yield ".SH SYNOPSIS\n.B swapd\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n.SH COMMANDS\n"
    for name in COMMANDS:
        command = swapd.get_command(group, name)
        assert command is not None
        context = click.Context(command, parent=group, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        yield f".SS swapd {name} {roff(usage)}\n{paragraphs(command.help or '')}"
        records = (param.get_help_record(context) for param in command.get_params(context))
        yield from (term(flag, words) for flag, words in filter(None, records))
    yield ".SH ENVIRONMENT\n" + "".join(term(name, words) for name, words in ENVIRONMENT.items())
    yield ".SH FILES\n" + "".join(term(name, words) for name, words in FILES.items())
    yield ".SH EXIT STATUS\n" + term("0", "done")
    yield from (term(str(code), WORDS["exits"][str(code)]) for code in sorted(set(EXIT_CODES.values())))


def term(name: str, words: str) -> str:
    return f".TP\n.B {roff(name)}\n{roff(words)}\n"


def paragraphs(text: str) -> str:
    """Paragraphs of a help text; those behind ``\\b`` keep their lines."""
    parts = []
    for part in text.strip().split("\n\n"):
        lines = part.strip().splitlines()
        if lines and lines[0].strip() == "\b":
            kept = textwrap.dedent("\n".join(lines[1:])).splitlines()  # indented before Python 3.13
            parts.append(".nf\n" + "".join(f"{roff(line)}\n" for line in kept) + ".fi\n")
        else:
            parts.append(f"{roff(' '.join(line.strip() for line in lines))}\n")
    return ".PP\n".join(parts)


def roff(text: str) -> str:
    """Escaped for roff: backslashes, hyphens that are typed, and a dot or quote at a line's start."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def main() -> None:
    for name, text in files().items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()

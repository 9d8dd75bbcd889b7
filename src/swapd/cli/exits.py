"""Exit codes, in one table."""

from __future__ import annotations

from typing import Final

from swapd.errors import ConfigError, SwapdError

FAILED: Final = 1
BAD_USAGE: Final = 2
NOBODY_ANSWERS: Final = 3
INTERRUPTED: Final = 130


class Unreachable(Exception):
    """No swapd answers at the address."""


EXIT_CODES: Final[dict[type[BaseException], int]] = {
    ConfigError: BAD_USAGE,
    SwapdError: FAILED,
    Unreachable: NOBODY_ANSWERS,
    KeyboardInterrupt: INTERRUPTED,
}


def exit_code(error: BaseException) -> int:
    """The code for an error: that of its nearest class in the table."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), FAILED)

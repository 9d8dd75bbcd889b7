from __future__ import annotations

import pytest

from swapd import errors
from swapd.cli.exits import Unreachable, exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.GgufError("x"), 1),
        (errors.InsufficientMemory("x"), 1),
        (Unreachable("x"), 3),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_every_leaf_of_the_error_tree_has_an_exit_code() -> None:
    def leaves(kind: type[errors.SwapdError]) -> list[type[errors.SwapdError]]:
        below = kind.__subclasses__()
        return [leaf for one in below for leaf in leaves(one)] if below else [kind]

    for leaf in leaves(errors.SwapdError):
        assert exit_code(leaf("x")) == (2 if leaf is errors.ConfigError else 1), leaf

from __future__ import annotations

import pytest

from swapd.config.lines import key_lines, line_of

TEXT = '''\
top = 1
[server]   # a comment
listen = "[not.a.table]"
api_keys = [
    "a = 1",
    "b",
]
[models."org/m: 4B Q4"]
args = """
x = 1
[models.fake]
"""
env = { A = "1", B = "2" }
  [models."org/m: 4B Q4".variants]
  "think" = { x = 1 }
[models.b]
"gguf" = 'x'
a.b.c = 3
[[array]]
x = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1),
        (("server",), 2),
        (("server", "listen"), 3),
        (("server", "api_keys"), 4),
        (("models", "org/m: 4B Q4"), 8),
        (("models", "org/m: 4B Q4", "args"), 9),
        (("models", "org/m: 4B Q4", "env"), 13),
        (("models", "org/m: 4B Q4", "env", "B"), 13),
        (("models", "org/m: 4B Q4", "variants", "think"), 15),
        (("models", "b", "gguf"), 17),
        (("models", "b", "a", "b", "c"), 18),
        (("array", "x"), 20),
    ],
)
def test_keys_and_tables_have_their_lines(path: tuple[str, ...], line: int) -> None:
    assert key_lines(TEXT)[path] == line


def test_what_only_looks_like_a_key_is_none() -> None:
    found = key_lines(TEXT)
    assert ("models", "fake") not in found and ("not", "a", "table") not in found
    assert ("models", "org/m: 4B Q4", "x") not in found and ("server", "a") not in found


def test_unknown_place_is_that_of_the_table_around_it() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", "b", "nothing")) == 16
    assert line_of(lines, ("nothing",)) == 0

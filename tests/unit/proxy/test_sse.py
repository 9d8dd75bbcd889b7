from __future__ import annotations

import pytest

from swapd.proxy.sse import Dialect, dialect_of


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", Dialect.CHAT),
        ("/v1/completions", Dialect.CHAT),
        ("/v1/responses", Dialect.RESPONSES),
        ("/v1/messages", Dialect.MESSAGES),
        ("/v1/messages/count_tokens", Dialect.MESSAGES),
    ],
)
def test_dialect_of_a_path(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect

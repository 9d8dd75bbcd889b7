from __future__ import annotations

import json

import pytest

from swapd import errors
from swapd.errors import (
    ConfigError,
    GgufError,
    InsufficientMemory,
    QueueFull,
    StartFailed,
    SwapdError,
    Unauthorized,
    UnknownModel,
)
from swapd.proxy.statuses import STATUSES, Shape, error_body, error_headers, retry_after_s, status_of

NEVER_IN_HTTP = {ConfigError, GgufError}


def leaves(of: type[SwapdError]) -> set[type[SwapdError]]:
    below = of.__subclasses__()
    return {of} if not below else set().union(*(leaves(one) for one in below))


def test_table_covers_every_leaf_that_can_reach_http() -> None:
    ours = {one for one in leaves(SwapdError) if one.__module__ == errors.__name__}
    assert set(STATUSES) == ours - NEVER_IN_HTTP


@pytest.mark.parametrize("error", sorted(STATUSES, key=lambda one: one.__name__))
def test_retry_after_is_on_every_429_and_503_but_can_never_fit(error: type[SwapdError]) -> None:
    told = retry_after_s(error("no"))
    assert (told is not None) == (STATUSES[error] in (429, 503) and error is not InsufficientMemory)


@pytest.mark.parametrize(("told", "sent"), [(None, 5), (0, 1), (3, 3), (60, 60), (600, 60)])
def test_retry_after_is_whole_seconds_and_60_at_most(told: int | None, sent: int) -> None:
    assert retry_after_s(QueueFull("full", retry_after_s=told)) == sent
    assert (b"retry-after", str(sent).encode()) in error_headers(QueueFull("full", retry_after_s=told))


def test_bodies_have_the_shape_of_the_api_asked() -> None:
    error = UnknownModel("no such model")
    assert json.loads(error_body(error, Shape.OPENAI, "r1")) == {
        "error": {"message": "no such model", "type": "invalid_request_error", "param": None, "code": "model_not_found"}
    }
    assert json.loads(error_body(error, Shape.ANTHROPIC, "r1")) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "no such model"},
        "request_id": "r1",
    }


def test_last_words_of_a_process_are_in_the_message_once() -> None:
    error = StartFailed("a did not start", stderr_tail="error: bad flag\n")
    assert json.loads(error_body(error, Shape.OPENAI, ""))["error"]["message"] == "a did not start\nerror: bad flag"
    again = StartFailed("a did not start: error: bad flag", stderr_tail="error: bad flag\n")
    assert json.loads(error_body(again, Shape.OPENAI, ""))["error"]["message"] == "a did not start: error: bad flag"


def test_bug_is_500_and_401_has_a_challenge() -> None:
    assert status_of(SwapdError("?")) == 500
    assert dict(error_headers(Unauthorized("no")))[b"www-authenticate"].startswith(b"Bearer")

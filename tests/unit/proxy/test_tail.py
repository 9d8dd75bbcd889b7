"""The answers' ends are as a llama-server sent them, cut short in their text."""

from __future__ import annotations

import pytest

from swapd.core.activity import EndedRequest
from swapd.proxy.tail import (
    NOTHING_TOLD,
    TAIL_BYTES,
    Told,
    is_complete,
    is_keep_alive,
    last_object,
    prefill_rate,
    told_by,
)

TIMINGS = (
    b'"timings":{"cache_n":31,"prompt_n":100,"prompt_ms":386.5,"prompt_per_token_ms":3.86,"prompt_per_second":258.7,'
    b'"predicted_n":8,"predicted_ms":746.2,"predicted_per_token_ms":106.6,"predicted_per_second":9.38}'
)
DRAFTED = TIMINGS[:-1] + b',"draft_n":40,"draft_n_accepted":31}'
USAGE = (
    b'"usage":{"completion_tokens":8,"prompt_tokens":131,"total_tokens":139,'
    b'"prompt_tokens_details":{"cached_tokens":31}}'
)
FULL = Told(131, 31, 8, 0.3865, 0.7462, 258.7, 9.38)
DONE = b"data: [DONE]\n\n"

CHAT_LAST = b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"id":"c","model":"m",%b}\n\n'
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"c","type":"message","role":"assistant",'
    b'"content":[],"model":"m","stop_reason":null,"stop_sequence":null,'
    b'"usage":{"cache_read_input_tokens":31,"input_tokens":100,"output_tokens":0}}}\n\n'
)
MESSAGE_END = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    b'"usage":{"output_tokens":8}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
RESPONSES_USAGE = (
    b'"usage":{"input_tokens":131,"output_tokens":8,"total_tokens":139,"input_tokens_details":{"cached_tokens":31}}'
)
EMBEDDINGS = b'{"model":"m","object":"list","usage":{"prompt_tokens":5,"total_tokens":5},"data":[{"embedding":['


@pytest.mark.parametrize(
    ("front", "tail", "told"),
    [
        pytest.param(b"", [CHAT_LAST % TIMINGS, DONE], FULL, id="chat stream"),
        pytest.param(b"", [CHAT_LAST % (USAGE + b"," + TIMINGS), DONE], FULL, id="chat stream with usage"),
        pytest.param(b"", [CHAT_LAST % USAGE, DONE], Told(131, 31, 8), id="chat stream of another engine"),
        pytest.param(b"", [CHAT_LAST % DRAFTED], FULL._replace(draft_tokens=40, draft_accepted=31), id="drafts"),
        pytest.param(b"{", [b'{"choices":[],' + USAGE + b',"id":"c",' + TIMINGS + b"}"], FULL, id="chat"),
        pytest.param(b"", [b'{"content":"x","tokens_cached":139,' + TIMINGS + b"}"], FULL, id="completion"),
        pytest.param(
            b"",
            [b'data: {"type":"response.completed","response":{"output":[],', RESPONSES_USAGE, b"},", TIMINGS, b"}\n\n"],
            FULL,
            id="responses stream, in pieces",
        ),
        pytest.param(b"", [b'{"output":[],' + RESPONSES_USAGE + b"}"], Told(131, 31, 8), id="responses"),
        pytest.param(MESSAGE_START, MESSAGE_END, Told(131, 31, 8), id="messages stream"),
        pytest.param(
            b"",
            [b'{"type":"message","usage":{"cache_read_input_tokens":31,"input_tokens":100,"output_tokens":8}}'],
            Told(131, 31, 8),
            id="messages",
        ),
        pytest.param(
            b"", [b'{"usage":{"input_tokens":3,"output_tokens":8}}'], Told(3, None, 8), id="messages without a cache"
        ),
        pytest.param(
            b"",
            [b'{"usage":{"input_tokens":3,"cache_creation_input_tokens":90,"cache_read_input_tokens":7}}'],
            Told(100, 7, None),
            id="messages, cache written",
        ),
        pytest.param(EMBEDDINGS, [EMBEDDINGS, b"0.1," * 4000, b"]}"], Told(5), id="embeddings: usage is in front"),
        pytest.param(
            b"",
            [b'{"timings":{"prompt_n":100,"prompt_ms":50.0,"prompt_per_second":2000,"predicted_n":8},', USAGE, b"}"],
            Told(131, 31, 8, 0.05, None, 2000.0),
            id="timings of an older engine",
        ),
        pytest.param(b"", [CHAT_LAST % b'"usage":null', DONE], NOTHING_TOLD, id="usage null"),
        pytest.param(b"", [b'{"usage": {"total_tok'], NOTHING_TOLD, id="cut off"),
        pytest.param(b"", [b'{"usage": ' + b"{" * 5000], NOTHING_TOLD, id="deep"),
        pytest.param(b"", [b"x" * 1_000_000], NOTHING_TOLD, id="a line of 1 MB"),
        pytest.param(b"", [CHAT_LAST % TIMINGS, b"x" * 10_000], NOTHING_TOLD, id="too far from the end"),
        pytest.param(b"", [b'{"content":"\\"timings\\":{\\"cache_n\\":1}"}'], NOTHING_TOLD, id="said, not told"),
        pytest.param(b"", [b"\xff\xfe", b'"timings":{"prompt_n":"3","cache_n":true,"prompt_ms":NaN}'], NOTHING_TOLD,
                     id="odd values"),
        pytest.param(b"", [b'"timings":{"prompt_n":-3,"predicted_n":1e400,"prompt_ms":-1.0}'], NOTHING_TOLD,
                     id="impossible values"),
        pytest.param(b"", [b'"timings":{"prompt_ms":' + b"1" * 400 + b',"predicted_ms":5}'], Told(decode_s=0.005),
                     id="a number beyond all floats"),
        pytest.param(b"", [], NOTHING_TOLD, id="nothing"),
    ],
)  # fmt: skip
def test_figures_of_an_answer(front: bytes, tail: list[bytes], told: Told) -> None:
    assert told_by(front, b"".join(tail)[-TAIL_BYTES:]) == told


@pytest.mark.parametrize(
    ("tail", "rate"),
    [
        (CHAT_LAST % TIMINGS, 258.7),
        (b'{"timings" : {"prompt_n" : 500,"prompt_per_second" : 1e3}}', 1000.0),
        (b'{"timings":{"prompt_n":1,"prompt_per_second":2.5}}', 0.0),
        (b'{"timings":{"prompt_per_second":812.5}}', 812.5),
        (b'{"timings":{"prompt_per_second":1}} {"timings":{"prompt_per_second":2}}', 2.0),
        (b'{"timings":{"prompt_per_second":null}}', 0.0),
        (b'{"timings":{"prompt_per_second":NaN}}', 0.0),
        (b'{"timings":{"prompt_per_second":1e999}}', 1e9),
        (b'{"prompt_per_second":5}', 0.0),
        (b"", 0.0),
    ],
)
def test_rate_of_reading_needs_tokens_that_were_read(tail: bytes, rate: float) -> None:
    assert prefill_rate(tail) == rate


def test_a_row_ends_with_what_was_told() -> None:
    assert EndedRequest._fields[-len(Told._fields) :] == Told._fields


def test_last_object_of_a_name_counts() -> None:
    assert last_object(b'{"usage":{"a":1}} {"usage" : {"a":2}, "x": 1}', b'"usage"') == {"a": 2}
    assert last_object(b'{"usage":{"a":1}} {"usage":[{"a":2}]}', b'"usage"') == {}


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b":\n\n", True),
        (b": ping\r\n\r\n:\n", True),
        (b":\n\ndata: {}\n\n", False),
        (b": half a comm", False),
        (b"data: {}\n\n", False),
        (b"", False),
    ],
)
def test_only_whole_comments_are_a_keep_alive(data: bytes, is_one: bool) -> None:
    assert is_keep_alive(data) is is_one


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (CHAT_LAST % TIMINGS + DONE, True),
        (b"".join(MESSAGE_END), True),
        (b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True),
        (CHAT_LAST % TIMINGS, False),
        (b'data: {"text":"event: message_stop\\n"}\n\n', False),
        (b"", False),
    ],
)
def test_last_event_of_a_protocol_ends_a_stream(text: bytes, whole: bool) -> None:
    assert is_complete(text) is whole

"""The shortcut of an answer's chunks: whatever arrives in whatever pieces, the body is what the process sent."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swapd.proxy.asgi import Headers
from swapd.proxy.upstream import Connection, Direct, Pool

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Reader:
    """Implements ``Receiver``: ``body`` is all that came, ``direct`` what came by the shortcut, framing and all."""

    def __init__(self, *, takes_chunks: bool = True) -> None:
        self.body = b""
        self.direct: list[bytes] = []
        self.ends = 0
        self.broken = False
        self._takes_chunks = takes_chunks

    def on_head(self, status: int, headers: Headers) -> None:
        assert status == 200

    def on_data(self, data: bytes, *, last: bool) -> Direct | None:
        self.body += data
        self.ends += last
        return self._take

    def _take(self, chunk: bytes) -> bool:
        if not self._takes_chunks:
            return False
        size, _, rest = chunk.partition(b"\r\n")
        assert rest[int(size, 16) :] == b"\r\n"
        self.body += rest[:-2]
        self.direct.append(chunk)
        return True

    def on_upgrade(self, headers: Headers, rest: bytes) -> None:
        raise AssertionError

    def on_room(self) -> None:
        raise AssertionError

    def on_broken(self, error: object) -> None:
        self.broken = True


class Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


class KeepsNothing:
    """Stands for ``Pool``."""

    def release(self, connection: Connection) -> None:
        pass

    def forget(self, connection: Connection) -> None:
        pass


def read(reader: Reader, *pieces: bytes) -> Connection:
    connection = Connection(cast(Pool, KeepsNothing()), ("a", 1))
    connection.connection_made(Transport())
    connection.ask(reader, b"POST / HTTP/1.1\r\n\r\n", b"")
    for piece in pieces:
        connection.data_received(piece)
    return connection


def test_whole_event_is_handed_on_as_it_came() -> None:
    reader = Reader()
    connection = read(reader, HEAD, framed(EVENT), framed(EVENT), framed(EVENT * 2), b"0\r\n\r\n")
    assert reader.direct == [framed(EVENT), framed(EVENT * 2)], "the first one needs the parser"
    assert reader.body == EVENT * 4 and reader.ends == 1
    assert b"".join(connection.tail) == EVENT + framed(EVENT) + framed(EVENT * 2)


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(framed(EVENT) * 2, id="two chunks"),
        pytest.param(framed(EVENT)[:-1], id="a part"),
        pytest.param(framed(b"data: half an ev"), id="no whole event"),
        pytest.param(b"0%b" % framed(EVENT), id="a size with a nought before it"),
        pytest.param(b"+%b" % framed(EVENT)[1:], id="a size with a sign"),
        pytest.param(framed(EVENT).replace(b"\r\n", b";name=value\r\n", 1), id="an extension"),
        pytest.param(framed(EVENT * 100), id="a large chunk"),
    ],
)
def test_anything_else_goes_through_the_parser(piece: bytes) -> None:
    reader = Reader()
    read(reader, HEAD, framed(EVENT), piece)
    assert not reader.direct


@pytest.mark.parametrize("half", [b"2", b"36\r", b"36\r\n", framed(EVENT)[:10], framed(EVENT)[:-2]])
def test_no_chunk_is_taken_for_a_whole_one_behind_half_of_another(half: bytes) -> None:
    reader = Reader()
    read(reader, HEAD, framed(EVENT), half, framed(EVENT))
    assert not reader.direct


def test_chunk_that_nobody_takes_goes_through_the_parser() -> None:
    reader = Reader(takes_chunks=False)
    read(reader, HEAD, framed(EVENT), framed(EVENT), b"0\r\n\r\n")
    assert reader.body == EVENT * 2 and reader.ends == 1


def test_body_with_a_length_has_no_chunks() -> None:
    reader = Reader()
    text = framed(EVENT) * 3
    read(reader, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text), *[framed(EVENT)] * 3)
    assert not reader.direct and reader.body == text and reader.ends == 1


def test_next_answer_on_the_same_connection_begins_anew() -> None:
    first, second = Reader(), Reader()
    connection = read(first, HEAD, framed(EVENT), framed(EVENT), b"0\r\n\r\n")
    connection.ask(second, b"POST / HTTP/1.1\r\n\r\n", b"")
    for piece in (HEAD + framed(EVENT), framed(EVENT), b"0\r\n\r\n"):
        connection.data_received(piece)
    assert (first.body, second.body) == (EVENT * 2, EVENT * 2) and (first.ends, second.ends) == (1, 1)


BODIES = st.one_of(
    st.just(EVENT),
    st.sampled_from([b"\n\n", b"2\r\nx\n\n", b"0\r\n\r\n", b"a\n\n\r\n", framed(EVENT), framed(b"\n\n")]),
    st.binary(min_size=1, max_size=40),
    st.binary(min_size=1, max_size=20).map(lambda text: text + b"\n\n"),
)


@settings(deadline=None)
@given(bodies=st.lists(BODIES, max_size=8), cuts=st.lists(st.integers(0, 600), max_size=8), whole=st.booleans())
@example(bodies=[EVENT, framed(EVENT), EVENT], cuts=[], whole=True)
def test_body_is_what_was_sent_however_it_is_cut(bodies: list[bytes], cuts: list[int], whole: bool) -> None:
    stream = HEAD + b"".join(map(framed, bodies)) + b"0\r\n\r\n"
    if whole:  # each chunk by itself, as from an engine that makes tokens
        pieces = [HEAD, *map(framed, bodies), b"0\r\n\r\n"]
    else:
        ends = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
        pieces = [stream[a:b] for a, b in itertools.pairwise(ends)]
    reader = Reader()
    read(reader, *pieces)
    assert reader.body == b"".join(bodies) and reader.ends == 1 and not reader.broken

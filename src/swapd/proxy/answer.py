"""The client's side of a relayed request: what has gone out decides what may still be said, and how."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, Final

from swapd.errors import SwapdError
from swapd.proxy.asgi import ONE_WRITE, RID, WRITE_CHUNK, Headers, Message, Scope, Send
from swapd.proxy.headers import OWN_STREAM_HEAD, response_headers
from swapd.proxy.refusals import MAX_BYTES, in_its_words, needs_words, refusal_event
from swapd.proxy.sse import KEEP_ALIVES, Dialect, error_event
from swapd.proxy.statuses import error_body, error_headers, status_of
from swapd.proxy.stepping import resumed


class Stage(Enum):
    """What has gone out to the client so far."""

    HELD = "nothing"
    OPENED = "swapd's own 200 and keep-alives"
    WEIGHED = "nothing: the engine has refused, and its words are collected to be said in the protocol's form"
    REFUSED = "swapd's own 200, and the engine has refused: its words are collected for an event"
    RELAYED = "the engine's head"
    STREAMED = "the engine's head of an event stream, or events of it"
    DISCARDED = "the client has gone; the rest goes nowhere"
    ENDED = "everything"


_HELD, _OPENED, _WEIGHED, _REFUSED, _RELAYED, _STREAMED, _DISCARDED, _ENDED = Stage
"""See ``exchange``: looked up once."""
_COLLECTED: Final = (_WEIGHED, _REFUSED)
_FLOWING: Final = (_RELAYED, _STREAMED)


class Answer:
    """Sends in order without ever suspending; what a slow client does not take yet waits here."""

    __slots__ = (
        "_one_write",
        "_queue",
        "_refusal",
        "_rid",
        "_send",
        "_start",
        "_stuck",
        "_write_chunk",
        "asked",
        "dialect",
        "direct",
        "model",
        "scope",
        "stage",
        "status",
    )

    def __init__(self, scope: Scope, send: Send, dialect: Dialect) -> None:
        self.dialect = dialect
        self.stage = _HELD
        self.status = 0
        self._send = send
        self.scope = scope
        self._rid: str = scope[RID]
        self.model = self.asked = ""
        extensions: Mapping[str, Any] = scope.get("extensions", {})
        self._one_write = ONE_WRITE in extensions
        self._write_chunk: Callable[[bytes], bool] | None = extensions.get(WRITE_CHUNK)
        self.direct: Callable[[bytes], bool] | None = None  # ``_write_chunk``, while nothing else is on its way
        self._start: Message | None = None
        self._queue: list[Message] = []
        self._stuck: tuple[Coroutine[Any, Any, None], Any] | None = None
        self._refusal = b""

    @property
    def stuck(self) -> bool:
        """The client is slower than we are: ``drain`` before reading on."""
        return self._stuck is not None

    def head(self, status: int, headers: Headers) -> None:
        """The engine's head; goes out with the ``data`` that always follows, empty or not."""
        self.status = status
        kept, is_stream = response_headers(headers)
        if self.stage is _HELD:
            self.stage = _STREAMED if is_stream else _RELAYED
            if status >= 400 and self.scope["path"].startswith("/v1/") and needs_words(status, kept, self.dialect):
                self.stage = _WEIGHED
            self._start = {"type": "http.response.start", "status": status, "headers": kept}
        elif self.stage is _OPENED:
            self.stage = _STREAMED if is_stream and status == 200 else _REFUSED

    def data(self, data: bytes, *, last: bool) -> bool:
        """Bytes of the engine's body; False if the client does not keep up."""
        if self.stage is _DISCARDED:
            return True
        if self.stage in _COLLECTED:
            self._refusal = (self._refusal + data)[:MAX_BYTES]
            if not last:
                return True
            data = self._refused()
        if last:
            self._end()
        elif not data and self._start is None:
            return True
        message, self._start = self._start, None
        if message is None:
            message = {"type": "http.response.body"}
        elif not self._one_write:
            self._push(message)
            message = {"type": "http.response.body"}
        message["body"] = data
        message["more_body"] = not last
        if not self._push(message):
            return False
        if self.stage in _FLOWING:
            self.direct = self._write_chunk
        return True

    def _refused(self) -> bytes:
        """The engine's refusal in the protocol's form; the head that waits for it gets its length."""
        if self._start is None:
            return refusal_event(self.status, self._refusal, self.dialect, self._rid, self.model)
        body = in_its_words(self.status, self._refusal, self.dialect, self._rid)
        others = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        self._start["headers"] = [*others, (b"content-length", b"%d" % len(body))]
        return body

    def keep_alive(self, *, silent: bool, told: bytes = b"") -> None:
        """A sign of life in the protocol's own form, after swapd's own head if none is out; ``silent``: head only.

        ``told``: what goes out in its place while nothing of the engine's is out.
        """
        if self.stage is _HELD:
            self.stage, self.status = _OPENED, 200
            self._push({"type": "http.response.start", "status": 200, "headers": OWN_STREAM_HEAD})
        if not silent and not self.stuck and self.stage in (_OPENED, _STREAMED):
            body = told if told and self.stage is _OPENED else KEEP_ALIVES[self.dialect]
            self._push({"type": "http.response.body", "body": body, "more_body": True})

    def discard(self) -> None:
        """The client has gone."""
        self.stage, self.direct = _DISCARDED, None
        self._queue.clear()

    def cut(self) -> None:
        """The client does not read, and nobody waits for it any longer."""
        if self._stuck is not None:
            self._stuck[0].close()
            self._stuck = None
        self.discard()

    async def fail(self, error: SwapdError) -> None:
        """End with an error: its status if nothing went out, else the protocol's event.

        An answer of which the engine's own bytes went out is left without an end, so
        that the server closes the connection: nobody may take it for a whole one.
        """
        if self.stage in (_HELD, _WEIGHED):
            self.status = status_of(error)
            body = error_body(error, self.dialect.shape, self._rid)
            headers = [*error_headers(error), (b"content-length", b"%d" % len(body))]
            self._push({"type": "http.response.start", "status": self.status, "headers": headers})
            self._push({"type": "http.response.body", "body": body, "more_body": False})
        elif self.stage in (_OPENED, _REFUSED, _STREAMED):
            event = error_event(error, self.dialect, self._rid, self.model)
            cut = self.stage is _STREAMED
            # the last chunk may have ended inside an event: an empty line ends that one first
            body = b"\n\n" + event if cut else event
            self._push({"type": "http.response.body", "body": body, "more_body": cut})
        self._end()
        await self.drain()

    async def drain(self) -> None:
        """Until the client has taken what waits."""
        while self._stuck is not None:
            await resumed(*self._stuck)
            self._stuck = None
            while self._queue and self._stuck is None:
                self._push(self._queue.pop(0))

    def _end(self) -> None:
        self.stage, self.direct = _ENDED, None

    def _push(self, message: Message) -> bool:
        if self._stuck is not None:
            self._queue.append(message)
            return False
        coro = self._send(message)
        try:
            waits_for = coro.send(None)
        except StopIteration:
            return True
        self._stuck, self.direct = (coro, waits_for), None
        return False

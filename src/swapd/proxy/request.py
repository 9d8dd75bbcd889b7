"""What a request for a model is, and what it leaves behind."""

from __future__ import annotations

import time
from typing import NamedTuple

from swapd.core.spec import ModelId
from swapd.errors import SwapdError
from swapd.proxy.asgi import Headers
from swapd.proxy.bodies import Body
from swapd.proxy.tail import FRONT_BYTES


class Request(NamedTuple):
    """What the client asked, read whole; ``target`` is path and query as they go upstream.

    ``asked``: the model's name as the client wrote it; ``agent`` and ``peer``: who it is.
    """

    rid: str
    method: str
    target: bytes
    headers: Headers
    body: Body
    stream: bool
    asked: str = ""
    agent: bytes = b""
    peer: tuple[str, int] | None = None
    look_up: bool = False


class Trace:
    """What a request leaves behind, without its body: times in monotonic seconds, ``first_at`` 0 until a byte came.

    ``front`` and ``tail``: an answer's first and last bytes, to be read when nobody waits.
    """

    __slots__ = (
        "agent",
        "asked",
        "began",
        "error",
        "first_at",
        "front",
        "load_s",
        "look_up",
        "model",
        "peer",
        "rid",
        "stream",
        "tail",
        "target",
        "waited_s",
    )

    def __init__(self, model: ModelId, request: Request) -> None:
        self.rid, self.model, self.asked, self.target = request.rid, model, request.asked, request.target
        self.agent, self.peer = request.agent, request.peer
        self.stream, self.look_up = request.stream, request.look_up
        self.began = time.monotonic()
        self.waited_s = self.load_s = self.first_at = 0.0
        self.front = self.tail = b""
        self.error: SwapdError | None = None

    def first(self, data: bytes) -> None:
        """The first bytes of the answer's body."""
        self.first_at, self.front = time.monotonic(), data[:FRONT_BYTES]

    def waited(self, since: float, load: tuple[float, float]) -> None:
        """A wait for the grant is over; what of the load lay in it is counted as such."""
        now = time.monotonic()
        self.waited_s += now - since
        self.load_s += max(0.0, min(load[1], now) - max(load[0], since))

"""What is known of the peers: their models and how those are, asked now and then; nothing here is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from swapd.core.naming import Peer, PeerId
from swapd.errors import SwapdError
from swapd.proxy.asgi import Headers
from swapd.proxy.headers import request_head
from swapd.proxy.upstream import Direct, Gone, Pool, tls_context

REFRESH_S: Final = 60.0
"""How often ``models = "auto"`` is asked again."""
RETRY_S: Final = 10.0
"""The same of a peer that did not answer."""
FRESH_S: Final = 5.0
"""What is younger is not asked again because somebody looks."""
BOUND_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 8 << 20
GENERATION: Final = 0
"""A peer is one endpoint for swapd's life."""

_BORROWED: Final = ("context_length", "max_model_len", "capabilities", "modalities", "architecture", "description")
_RUNNING: Final = {"ready": "loaded", "starting": "loading"}

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Seen:
    """One peer's last answer: entries of its model list by name; ``error``: why there is no newer one."""

    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    answered: bool = False
    asked_at: float = float("-inf")


class Peers:
    """Owns the connections to peers; ``watch`` asks them until it is cancelled."""

    def __init__(self, peers: Mapping[PeerId, Peer]) -> None:
        self.pool = Pool()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a peer has other models than before."""
        self._peers = peers
        self._seen = {id_: Seen() for id_ in peers}
        self._looked = {id_: asyncio.Event() for id_ in peers}
        self._adopted = asyncio.Event()

    def adopt(self, peers: Mapping[PeerId, Peer]) -> None:
        """Other peers from now on; of those that stay as they are, what they told stays known."""
        before, self._peers = self._peers, peers
        self._seen = {id_: self._seen[id_] if before.get(id_) == peer else Seen() for id_, peer in peers.items()}
        self._looked = {id_: asyncio.Event() for id_ in peers}
        for id_ in before.keys() - {i for i, peer in peers.items() if before.get(i) == peer}:
            self.pool.drop_idle(id_, GENERATION)
        self._adopted.set()

    async def watch(self) -> None:
        """Ask at start, ``"auto"`` ones every minute, and any when somebody looks at the status."""
        try:
            while True:
                self._adopted.clear()
                if any(peer.upstream.tls for peer in self._peers.values()):
                    await asyncio.to_thread(tls_context)
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._watch(peer, self._seen[id_], self._looked[id_]))
                        for id_, peer in self._peers.items()
                    ]
                    await self._adopted.wait()
                    for task in tasks:
                        task.cancel()
        finally:
            self.pool.close()

    def models(self, peer: PeerId) -> Iterable[str]:
        """Names of a peer's models, as configured or as it told."""
        return _names(self._peers[peer], self._seen[peer])

    def known(self) -> dict[PeerId, frozenset[str]]:
        """Of all peers, in file order."""
        return {id_: frozenset(self.models(id_)) for id_ in self._peers}

    def entry(self, peer: PeerId, model: str) -> dict[str, Any]:
        """What a peer told of a model, as far as our own list has such fields."""
        told = self._seen[peer].models.get(model, {})
        return {key: told[key] for key in _BORROWED if key in told}

    def state(self, peer: PeerId, model: str) -> str | None:
        """``loaded``, ``loading`` or ``unloaded`` when it was last asked; None: it does not tell."""
        return self._seen[peer].states.get(model)

    def error(self, peer: PeerId) -> str:
        """Why it did not answer when it was last asked; empty: it did, or was not asked yet."""
        return self._seen[peer].error

    def status(self) -> list[dict[str, Any]]:
        """For ``/api/status``: what was told last; asks anew for the next time."""
        self._look()
        return [
            {
                "id": id_,
                "url": peer.url,
                "reachable": not seen.error if seen.answered or seen.error else None,
                "error": seen.error or None,
                "models": [{"id": model, "state": self.state(id_, model)} for model in self.models(id_)],
            }
            for (id_, peer), seen in zip(self._peers.items(), self._seen.values(), strict=True)
        ]

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for id_, seen in self._seen.items():
            if now - seen.asked_at > FRESH_S:
                self._looked[id_].set()

    async def _watch(self, peer: Peer, seen: Seen, looked: asyncio.Event) -> None:
        while True:
            looked.clear()
            await self._ask(peer, seen)
            pause_s = RETRY_S if seen.error else REFRESH_S
            try:
                async with asyncio.timeout(pause_s if peer.models is None else None):
                    await looked.wait()
            except TimeoutError:
                pass

    async def _ask(self, peer: Peer, seen: Seen) -> None:
        """``seen`` is the peer's own, also when ``adopt`` has let go of both meanwhile."""
        before = set(_names(peer, seen))
        seen.asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(BOUND_S):
                seen.models = _entries(await self._get(peer, "/v1/models"))
                seen.states = _states(seen.models) or await self._running(peer, _names(peer, seen))
            if seen.error:
                log.info("the peer answers again", peer=peer.id)
            seen.error, seen.answered = "", True
        except (Gone, ValueError, TimeoutError) as error:
            words = str(error) or f"no answer within {BOUND_S:g} s"
            if words != seen.error:
                log.warning("the peer cannot be asked for its models", peer=peer.id, url=peer.url, error=words)
            seen.error, seen.states = words, {}
        if set(_names(peer, seen)) != before and self._seen.get(peer.id) is seen:
            log.info("the peer's models", peer=peer.id, models=list(_names(peer, seen)))
            self.on_change()

    async def _running(self, peer: Peer, models: Iterable[str]) -> dict[str, str]:
        """llama-swap tells states at another place; who has no such place tells none."""
        try:
            rows = (await self._get(peer, "/running"))["running"]
            running = {row["model"]: _RUNNING.get(row["state"], "unloaded") for row in rows}
        except (ValueError, LookupError, TypeError):
            return {}
        return {model: running.get(model, "unloaded") for model in models}

    async def _get(self, peer: Peer, path: str) -> Any:
        """A JSON answer.

        Raises:
            Gone: nobody listens there, or the connection broke.
            ValueError: the answer is none, or no JSON.
        """
        connection = await self.pool.connect(peer.id, GENERATION, peer.upstream)
        answer = _Whole()
        try:
            target = f"{peer.base}{path}".encode()
            connection.ask(answer, request_head("GET", target, [], 0, peer.api_key, peer.host), b"")
            status, body = await answer.ended
        except BaseException:
            connection.abort()  # a whole answer gave it back to the pool, and somebody may have taken it already
            raise
        if status != 200:
            raise ValueError(f"GET {peer.base}{path} answers {status}")
        try:
            return json.loads(body)
        except RecursionError:
            raise ValueError(f"the answer to GET {peer.base}{path} is nested too deeply") from None


class _Whole:
    """An answer, collected."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status, self._body = 0, b""

    def on_head(self, status: int, headers: Headers) -> None:
        self._status = status

    def on_data(self, data: bytes, *, last: bool) -> Direct | None:
        self._body += data
        if len(self._body) > MAX_ANSWER_BYTES:
            self._fail(ValueError(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"))
        elif last and not self.ended.done():
            self.ended.set_result((self._status, self._body))
        return None

    def on_upgrade(self, headers: Headers, rest: bytes) -> None:
        self._fail(Gone("it answers with another protocol"))

    def on_room(self) -> None:
        """Nothing is waiting to be sent."""

    def on_broken(self, error: SwapdError | None) -> None:
        self._fail(Gone("it closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


def _names(peer: Peer, seen: Seen) -> Iterable[str]:
    return seen.models.keys() if peer.models is None else peer.models


def _entries(answer: Any) -> dict[str, Mapping[str, Any]]:
    """A peer's own models: those that it has from peers of its own are left out, or lists would feed each other."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ValueError("its /v1/models is no list of models")
    named = [row for row in rows if isinstance(row, dict) and _is_text(row.get("id"))]
    return {row["id"]: row for row in named if not _is_borrowed(row)}


def _is_text(value: object) -> bool:
    """Half a surrogate pair, which JSON may carry, is none: it could not be sent on."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_borrowed(row: Mapping[str, Any]) -> bool:
    meta = row.get("meta")
    swap = meta.get("llamaswap") if isinstance(meta, dict) else None
    return "peer" in row or (isinstance(swap, dict) and "peerID" in swap)


def _states(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """As swapd and llama.cpp's router tell them in the list itself."""
    told = {name: row.get("status") for name, row in models.items()}
    values = {name: status.get("value") for name, status in told.items() if isinstance(status, dict)}
    return {name: value for name, value in values.items() if isinstance(value, str) and _is_text(value)}

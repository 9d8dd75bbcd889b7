"""The routes of llama.cpp's own router that are not swapd's own: ``/models/load`` and ``/models/unload``."""

from __future__ import annotations

import json

from swapd.errors import BadRequest, SwapdError
from swapd.proxy.asgi import RID, Receive, Scope, Send, respond
from swapd.proxy.bodies import HungUp, Spool, read_body
from swapd.proxy.directory import Directory
from swapd.proxy.names import model_of
from swapd.proxy.settings import ProxySettings
from swapd.proxy.statuses import refuse
from swapd.supervisor.pool import Supervisor

_RUNS = ("starting", "ready", "draining")


class LlamaRouter:
    """Answers as llama-server without a model does: at once, before the load or the stop is done."""

    def __init__(self, supervisor: Supervisor, directory: Directory, settings: ProxySettings) -> None:
        self._supervisor, self._directory, self._settings = supervisor, directory, settings

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama.cpp's router's: load one; answers at once."""
        await self._answer(scope, receive, send, load=True)

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """llama.cpp's router's: unload one; answers at once."""
        await self._answer(scope, receive, send, load=False)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, *, load: bool) -> None:
        try:
            model = self._directory.local(await self._named(scope, receive)).id
            if (self._supervisor.state_of(model) in _RUNS) is load:
                raise BadRequest(f"model is {'already' if load else 'not'} running")
            if load:
                self._load(model, scope[RID])
            else:
                await self._supervisor.unload(model, wait=False)
        except SwapdError as error:
            await refuse(scope, send, error)
        except HungUp:
            return
        else:
            await respond(send, 200, json.dumps({"success": True}).encode())

    def _load(self, model: str, rid: str) -> None:
        """Begin a load; one that is refused at once is refused here."""
        ticket = self._supervisor.load(model, rid=rid)
        error = ticket.error
        ticket.close(served=False)
        if error is not None:
            raise error

    async def _named(self, scope: Scope, receive: Receive) -> str:
        body = await read_body(scope, receive, self._settings)
        if isinstance(body, Spool):
            body.close()
            raise BadRequest("the body is no JSON with a model")
        return model_of(body).model

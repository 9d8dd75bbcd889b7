"""Who a name means now: the configuration's names, the active profile, the peers' models and what is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from swapd.core.naming import (
    SHOWN_CHARS,
    Edit,
    Meaning,
    Names,
    Peer,
    Selector,
    Step,
    choose,
    looks,
    meaning_of,
)
from swapd.core.spec import ModelId, RouteSpec
from swapd.errors import BadRequest, UnknownModel, UnknownProfile
from swapd.proxy.peers import Peers
from swapd.supervisor.pool import Supervisor

REMEMBERED: Final = 4096
"""So many names are looked up once; clients may send any number of others."""


class Target(NamedTuple):
    """Where a request goes: a model of ours, or ``peer``, which knows it as ``there``; ``edit``: of its body."""

    route: RouteSpec
    edit: Edit | None = None
    peer: Peer | None = None
    there: str = ""


class Directory:
    """Resolves names. State: the active profile, and what names were found to mean."""

    def __init__(self, names: Names, routes: Mapping[ModelId, RouteSpec], supervisor: Supervisor, peers: Peers) -> None:
        self.names, self.routes, self.peers = names, routes, peers
        self.profile: str | None = None
        self._supervisor = supervisor
        self._at_peers = peers.known()
        self._meanings: dict[str, Meaning] = {}
        peers.on_change = self._peers_changed

    def use(self, names: Names) -> None:
        """Another configuration's names and peers; a profile that it lacks is switched off."""
        self.names = names
        if self.profile is not None and self.profile not in names.profiles:
            self.profile = None
        self.peers.adopt(names.peers)
        self._peers_changed()

    # ---- requests

    def target(self, name: str) -> Target:
        """Where a request for a name goes; without a name, to ``default_model``.

        Raises:
            UnknownModel: with the valid ids and the nearest.
        """
        meaning = self._meanings.get(name)
        if meaning is None:
            meaning = self.meaning(name)
        if meaning.peer:
            return self._at_peer(meaning.peer, meaning.model)
        model = meaning.model if meaning.selector is None else self.chosen(meaning.selector)
        return Target(self.routes[model], self.names.edits.get(meaning.variant or model))

    def meaning(self, name: str) -> Meaning:
        """What a request's name means.

        Raises:
            UnknownModel: with the valid ids and the nearest.
        """
        found = meaning_of(name or self.names.default, self.names, self.profile, self._at_peers)
        if found is None:
            raise self._unknown(name)
        if len(self._meanings) < REMEMBERED and len(name) <= SHOWN_CHARS:
            self._meanings[name] = found
        return found

    def chosen(self, selector: Selector) -> ModelId:
        """The target that a request to a selector would get now."""
        return choose(selector, self._supervisor.state_of, self._supervisor.has_place)

    def _at_peer(self, peer: str, model: str) -> Target:
        spec = self.names.peers[peer]
        label = model if model in self._at_peers[peer] else "*"  # clients must not fill the metrics with names
        return Target(RouteSpec(f"{peer}/{label}"), None, spec, model)

    def _unknown(self, name: str) -> UnknownModel:
        at_peers = [row for peer, models in self._at_peers.items() for row in self._listed_at(peer, models)]
        valid = ", ".join(sorted([*self.names.listed(), *at_peers])) or "none is configured"
        near = self.names.nearest(name, at_peers) if name else ""
        meant = f" (did you mean {near!r}?)" if near else ""
        what = f"there is no model {name[:SHOWN_CHARS]!r}{meant}" if name else "the request names no model"
        return UnknownModel(f"{what}; valid ids: {valid}")

    # ---- operators and URLs: what runs goes by its id

    def named(self, name: str) -> Target:
        """The same for a name that stands in a URL: a model's id is that model, whatever a profile says.

        Raises:
            UnknownModel: with the valid ids and the nearest.
        """
        if not name:  # "/api/models//load" means no model, not the default one
            raise self._unknown(name)
        route = self.routes.get(name)
        return Target(route, self.names.edits.get(name)) if route is not None else self.target(name)

    def local(self, name: str) -> RouteSpec:
        """A model of ours.

        Raises:
            UnknownModel: with the valid ids and the nearest.
            BadRequest: it is a peer's.
        """
        target = self.named(name)
        if target.peer is not None:
            raise BadRequest(f"{name!r} is a model of peer {target.peer.id}: ask {target.peer.url}")
        return target.route

    def split(self, raw: bytes) -> tuple[str, bytes]:
        """The name at the front of a raw path (slashes in it raw or encoded), and the path behind it.

        The longest id, else the longest other name, else the shortest that a pattern or peer fits.
        """
        parts = raw.split(b"/")
        heads = [unquote(b"/".join(parts[:count]).decode("latin-1")) for count in range(1, len(parts) + 1)]
        counts = range(len(parts), 0, -1)
        count = next((n for n in counts if heads[n - 1] in self.routes), 0)
        count = count or next((n for n in counts if self._is_whole(heads[n - 1])), 0)
        count = count or next((n for n in reversed(counts) if heads[n - 1] and self._find(heads[n - 1])), 1)
        return heads[count - 1], b"/" + b"/".join(parts[count:])

    def _find(self, name: str) -> Meaning | None:
        return meaning_of(name, self.names, self.profile, self._at_peers)

    def _is_whole(self, name: str) -> bool:
        found = self._find(name) if name else None
        return found is not None and found.by not in (Step.AT_PEER, Step.PATTERN)

    # ---- profiles

    def switch(self, profile: str | None) -> None:
        """Make a profile the active one; None: none.

        Raises:
            UnknownProfile: there is none of that name.
        """
        if profile is not None and profile not in self.names.profiles:
            valid = ", ".join(self.names.profiles) or "none is configured"
            raise UnknownProfile(f"there is no profile {profile[:SHOWN_CHARS]!r}; valid profiles: {valid}")
        self.profile = profile
        self._meanings.clear()

    def _peers_changed(self) -> None:
        self._at_peers = self.peers.known()
        self._meanings.clear()

    # ---- for display

    def peers_listed(self) -> list[tuple[str, str, str]]:
        """Peers' models: the name they are asked for by (``peer/name`` where theirs is taken), peer, name there."""
        return [
            (shown, peer, model)
            for peer, models in self._at_peers.items()
            for shown, model in zip(self._listed_at(peer, models), sorted(models), strict=True)
        ]

    def _listed_at(self, peer: str, models: frozenset[str]) -> list[str]:
        meanings = {model: meaning_of(model, self.names, self.profile, self._at_peers) for model in sorted(models)}
        return [
            m if found and found.peer == peer and found.model == m else f"{peer}/{m}" for m, found in meanings.items()
        ]

    def explain(self, name: str) -> dict[str, Any]:
        """What a request for a name would do now, after how its name is understood; JSON-ready.

        Raises:
            UnknownModel: with the valid ids and the nearest.
        """
        meaning = self.meaning(name)
        asked = name or self.names.default
        steps = looks(asked, self.names, self.profile, self._at_peers)
        target = self.target(name)
        if target.peer is not None:
            told = self._explained_peer(target.peer, target.there)
        else:
            told = dict(self._supervisor.explain(target.route.id))
        edit = {"strip": list(target.edit.strip), "set": dict(target.edit.set)} if target.edit else None
        return told | {
            "name": asked,
            "looked_at": [{"step": look.step.value, "found": look.found or None} for look in steps],
            "selected": self._why_selected(meaning.selector, target.route.id) if meaning.selector else None,
            "edit": edit,
        }

    def _why_selected(self, selector: Selector, model: ModelId) -> str:
        states = ", ".join(f"{one} is {self._supervisor.state_of(one)}" for one in selector.targets)
        return f"{model} ({selector.strategy}: {states})"

    def _explained_peer(self, peer: Peer, model: str) -> dict[str, Any]:
        error = self.peers.error(peer.id)
        return {
            "model": f"{peer.id}/{model}",
            "state": self.peers.state(peer.id, model) or "unknown",
            "action": "relay",
            "evicts": [],
            "why": f"{peer.url} is asked for {model}" + (f"; it did not answer just now: {error}" if error else ""),
            "needed_mib": {},
            "available_mib": {},
            "args": [],
        }

"""What a requested name means: one step, the first hit; and what a request's body is edited to for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from swapd.core.endpoint import Upstream
from swapd.core.spec import ModelId

PeerId: TypeAlias = str
Strategy: TypeAlias = Literal["warm", "pin", "spillover"]
PeersModels: TypeAlias = Mapping[PeerId, Collection[str]]
"""The models that each peer is known to have, by their names there; peers in file order."""

SHOWN_CHARS: Final = 200
"""So much of a name that nobody knows is shown and compared."""


def shown(name: str) -> str:
    """A client's word as it is shown and kept: bounded, and text (JSON may carry half a surrogate pair)."""
    return name[:SHOWN_CHARS].encode("utf-8", "replace").decode()


class Step(Enum):
    """Where a name is looked for, in this order; the value is what users read."""

    PIN = "a pin of the active profile"
    MODEL = "a model's id"
    VARIANT = "a variant"
    ALIAS = "an alias"
    SELECTOR = "a selector"
    AT_PEER = "peer/model"
    PEERS_MODEL = "a peer's model"
    PATTERN = "an alias pattern"


@dataclass(frozen=True, slots=True)
class Edit:
    """What a request's body is changed to: keys removed first, then values set over the client's, tables merged."""

    strip: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.strip or self.set)

    def then(self, values: Mapping[str, Any]) -> Edit:
        """The same with more values set over these (a variant's)."""
        return Edit(self.strip, merged(self.set, values))

    def applied_to(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The edited body; the given one stays as it is."""
        return merged({name: value for name, value in body.items() if name not in self.strip}, self.set)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``under``: tables are merged at every depth, anything else is replaced."""
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


@dataclass(frozen=True, slots=True)
class Selector:
    """A virtual model that stands for one of several."""

    id: str
    targets: tuple[ModelId, ...]
    strategy: Strategy = "warm"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server; ``base`` is put before each path, ``models`` None: it is asked for them."""

    id: PeerId
    url: str
    upstream: Upstream
    host: str
    base: str = ""
    api_key: str = ""
    models: tuple[str, ...] | None = None


class Pattern(NamedTuple):
    """An alias with ``*`` (any text, also none), and its model; every other sign means itself."""

    text: str
    model: ModelId

    def matches(self, name: str) -> bool:
        """Whether it fits a whole name; linear, whatever the name."""
        first, *middle, last = self.text.split("*")
        if not (name.startswith(first) and name.endswith(last) and len(name) >= len(first) + len(last)):
            return False
        position, end = len(first), len(name) - len(last)
        for piece in middle:
            found = name.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True


@dataclass(frozen=True, slots=True)
class Names:
    """Every name that the configuration gives, in file order; ``edits`` by model id and variant.

    ``aliases`` are the exact ones; ``unlisted`` are served, but shown to nobody.
    """

    models: tuple[ModelId, ...] = ()
    variants: Mapping[str, ModelId] = field(default_factory=dict)
    aliases: Mapping[str, ModelId] = field(default_factory=dict)
    patterns: tuple[Pattern, ...] = ()
    selectors: Mapping[str, Selector] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, ModelId]] = field(default_factory=dict)
    peers: Mapping[PeerId, Peer] = field(default_factory=dict)
    edits: Mapping[str, Edit] = field(default_factory=dict)
    unlisted: frozenset[ModelId] = frozenset()
    default: str = ""
    """What a request means that names none."""

    def listed(self) -> list[str]:
        """Ids, variants and selectors that are shown."""
        variants = [name for name, model in self.variants.items() if model not in self.unlisted]
        return [*(m for m in self.models if m not in self.unlisted), *variants, *self.selectors]

    def nearest(self, name: str, more: Collection[str] = ()) -> str:
        """The name that looks most like one that nobody knows; empty if none does."""
        known = [*self.listed(), *self.aliases, *more]
        return next(iter(get_close_matches(name[:SHOWN_CHARS], known, n=1)), "")


class Meaning(NamedTuple):
    """What a name means: a ``model`` of ours (with a ``variant``), a ``selector``, or ``model`` of ``peer``.

    ``by``: the step that found it; ``why``: that in words.
    """

    name: str
    by: Step
    model: str = ""
    variant: str = ""
    selector: Selector | None = None
    peer: PeerId = ""
    why: str = ""


class Look(NamedTuple):
    """One step of a search: what it found, in words, or nothing."""

    step: Step
    found: str = ""


def meaning_of(
    name: str, names: Names, profile: str | None = None, at_peers: PeersModels | None = None
) -> Meaning | None:
    """What a requested name means; None if nothing. ``profile``: the active one."""
    return next((m for m in _steps(name, names, profile, at_peers or {}) if isinstance(m, Meaning)), None)


def looks(name: str, names: Names, profile: str | None = None, at_peers: PeersModels | None = None) -> list[Look]:
    """The same search, step by step, up to the one that found it."""
    told: list[Look] = []
    for step in _steps(name, names, profile, at_peers or {}):
        if isinstance(step, Meaning):
            return [*told, Look(step.by, step.why)]
        told.append(Look(step))
    return told


def _steps(name: str, names: Names, profile: str | None, at_peers: PeersModels) -> Iterator[Meaning | Step]:
    """Each step in order: what it found, or which one found nothing."""
    pins = names.profiles.get(profile or "", {})
    if name in pins:
        yield Meaning(name, Step.PIN, pins[name], why=f"profile {profile} pins it to {pins[name]}")
    yield Step.PIN
    if name in names.models:
        yield Meaning(name, Step.MODEL, name, why="it is a model's id")
    yield Step.MODEL
    if name in names.variants:
        model = names.variants[name]
        yield Meaning(name, Step.VARIANT, model, name, why=f"a variant of {model}")
    yield Step.VARIANT
    if name in names.aliases:
        yield Meaning(name, Step.ALIAS, names.aliases[name], why=f"an alias of {names.aliases[name]}")
    yield Step.ALIAS
    if name in names.selectors:
        selector = names.selectors[name]
        why = f"a selector ({selector.strategy}) of {', '.join(selector.targets)}"
        yield Meaning(name, Step.SELECTOR, selector=selector, why=why)
    yield Step.SELECTOR
    peer, _, there = name.partition("/")
    if peer in names.peers and there:
        yield Meaning(name, Step.AT_PEER, there, peer=peer, why=f"{there} of peer {peer}")
    yield Step.AT_PEER
    for peer, models in at_peers.items():
        if name in models:
            yield Meaning(name, Step.PEERS_MODEL, name, peer=peer, why=f"peer {peer} has it")
    yield Step.PEERS_MODEL
    for pattern in names.patterns:
        if pattern.matches(name):
            why = f"the alias {pattern.text} of {pattern.model} fits it"
            yield Meaning(name, Step.PATTERN, pattern.model, why=why)
    yield Step.PATTERN


def choose(selector: Selector, state_of: Callable[[ModelId], str], has_place: Callable[[ModelId], bool]) -> ModelId:
    """The target that a request gets now. ``has_place``: ready, and fewer requests running than ``concurrency``."""
    if selector.strategy == "pin":
        return selector.targets[0]
    if selector.strategy == "spillover":
        for model in selector.targets:
            if has_place(model):
                return model
    states = [state_of(model) for model in selector.targets]
    for wanted in ("ready", "starting"):
        if wanted in states:
            return selector.targets[states.index(wanted)]
    return selector.targets[0]

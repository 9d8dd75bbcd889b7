"""Names in the file: one name space, what names may stand for, and what the resolver of requests gets."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from swapd.config.lines import KeyPath
from swapd.config.load import Problems
from swapd.config.schema import File, Model
from swapd.config.schema import Peer as PeerSection
from swapd.core.endpoint import Upstream
from swapd.core.naming import Edit, Names, Pattern, Peer, Selector, meaning_of

RESERVED_IDS: Final = frozenset({"load", "unload"})
NOT_EDITED: Final = {"model": "use upstream_model", "stream": "only the client knows what it can read"}
"""Keys of a body that ``params`` and variants leave alone, and why."""
_PORTS: Final = {"http": 80, "https": 443}


def names_of(file: File, problems: Problems) -> Names:
    """What requests may name; mistakes go to ``problems``."""
    checks = _Checks(file, problems)
    checks.name_space()
    checks.references()
    checks.edits()
    names = Names(
        models=tuple(file.models),
        variants={name: id_ for id_, model in file.models.items() for name in model.variants},
        aliases={a: id_ for id_, model in file.models.items() for a in model.aliases if "*" not in a},
        patterns=tuple(Pattern(a, id_) for id_, model in file.models.items() for a in model.aliases if "*" in a),
        selectors={s: Selector(s, tuple(section.targets), section.strategy) for s, section in file.selectors.items()},
        profiles={p: dict(section.pins) for p, section in file.profiles.items()},
        peers={p: peer for p, section in file.peers.items() if (peer := checks.peer(p, section))},
        edits=dict(_edits(file)),
        unlisted=frozenset(id_ for id_, model in file.models.items() if model.unlisted),
        default=file.server.default_model,
    )
    checks.default_model(names)
    return names


def must_be_model(file: File, problems: Problems, name: str, path: KeyPath) -> None:
    """Members, pins and targets name models."""
    if name not in file.models:
        near = get_close_matches(name, file.models, n=1, cutoff=0.0)
        problems.add(path, f"{name!r} is no model", f"did you mean {near[0]!r}?" if near else "there is none")


def _edits(file: File) -> Iterator[tuple[str, Edit]]:
    """By model id and variant; what edits nothing is left out."""
    for id_, model in file.models.items():
        own = Edit(tuple(model.params.strip), model.params.set)
        if own:
            yield id_, own
        yield from ((name, edit) for name, values in model.variants.items() if (edit := own.then(values)))


class _Checks:
    def __init__(self, file: File, problems: Problems) -> None:
        self.file, self.problems = file, problems

    def name_space(self) -> None:
        """Ids, variants, aliases and selectors are one name space; profiles and peers have their own."""
        owners: dict[str, KeyPath] = {}
        for name, path in self._names():
            if name in RESERVED_IDS:
                self.problems.add(path, f"{name!r} is a reserved name")
            self._spelt(name, path)
            if name in owners:
                self.problems.add(path, f"the name {name!r} is used already", f"by {'.'.join(owners[name])}")
            owners.setdefault(name, path)
        for name in self.file.profiles:
            self._spelt(name, ("profiles", name))
        for name in self.file.peers:
            self._spelt(name, ("peers", name))
            if "/" in name:
                self.problems.add(("peers", name), "a peer's name has no /", "peer/model names a model of it")

    def _spelt(self, name: str, path: KeyPath) -> None:
        if not name or any(ord(c) < 32 or ord(c) == 127 for c in name):
            self.problems.add(path, "a name must not be empty or have control characters")

    def _names(self) -> Iterator[tuple[str, KeyPath]]:
        for id_ in self.file.models:
            yield id_, ("models", id_)
        for id_, model in self.file.models.items():
            yield from ((v, ("models", id_, "variants", v)) for v in model.variants)
            yield from ((a, ("models", id_, "aliases")) for a in model.aliases)
        yield from ((s, ("selectors", s)) for s in self.file.selectors)

    def references(self) -> None:
        """Targets and pins name models."""
        for name, selector in self.file.selectors.items():
            for target in selector.targets:
                must_be_model(self.file, self.problems, target, ("selectors", name, "targets"))
        for name, profile in self.file.profiles.items():
            for pin, target in profile.pins.items():
                must_be_model(self.file, self.problems, target, ("profiles", name, "pins", pin))

    def default_model(self, names: Names) -> None:
        """It may be any name that is known before a peer is asked."""
        default, path = names.default, ("server", "default_model")
        at_peers = {peer: one.models or () for peer, one in names.peers.items()}
        if default and meaning_of(default, names, None, at_peers) is None:
            near = names.nearest(default)
            self.problems.add(path, f"{default!r} is no model", f"did you mean {near!r}?" if near else "")

    def edits(self) -> None:
        """What params may not touch."""
        for id_, model in self.file.models.items():
            for path, key in self._edited(id_, model):
                if key in NOT_EDITED:
                    self.problems.add(path, f"{key!r} cannot be edited", NOT_EDITED[key])

    def _edited(self, id_: str, model: Model) -> Iterator[tuple[KeyPath, str]]:
        at = ("models", id_)
        yield from (((*at, "params", "set"), key) for key in model.params.set)
        yield from (((*at, "params", "strip"), key) for key in model.params.strip)
        yield from (((*at, "variants", name), key) for name, values in model.variants.items() for key in values)

    def peer(self, id_: str, section: PeerSection) -> Peer | None:
        """None if its address cannot be used."""
        path = ("peers", id_, "url")
        try:
            url = urlsplit(section.url)
            host, port = url.hostname or "", url.port
        except ValueError as error:
            self.problems.add(path, f"{section.url!r} is no address: {error}")
            return None
        if url.scheme not in _PORTS or not host:
            self.problems.add(path, f"{section.url!r} is no address of a peer", 'as in "http://box2:8080"')
            return None
        if url.query or url.fragment or url.username is not None:
            self.problems.add(path, "an address has no query and no user name", "the key goes into api_key")
            return None
        base = url.path.rstrip("/").removesuffix("/v1")
        upstream = Upstream(host=host, port=port or _PORTS[url.scheme], tls=url.scheme == "https")
        models = None if section.models == "auto" else tuple(section.models)
        return Peer(id_, section.url, upstream, url.netloc, base, section.api_key, models)

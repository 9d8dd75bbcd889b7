"""Names that stand for other names: ``profiles``, ``selectors`` and ``peers``."""

from __future__ import annotations

from typing import Any, Final

from swapd.config.importing.models import Imported
from swapd.config.importing.section import Section

_STRATEGIES: Final = {"warm": "warm", "pin": "pin", "spillover": "spillover", "balance": "spillover"}


def read_profiles(section: Section, found: Imported) -> dict[str, dict[str, Any]]:
    """``[profiles]``: pins of names that are models here."""
    profiles: dict[str, dict[str, Any]] = {}
    for name, profile in _tables(
        section, "profiles that list models are of an old llama-swap, which itself dropped them"
    ):
        pins = profile.section("pins")
        kept = {pin: target for pin in pins if (target := _pin(pins, pin, found))}
        profile.leave_out("description", "profiles have none")
        profile.end()
        if kept:
            profiles[name] = {"pins": kept}
        else:
            section.book.leave_out(profile.path, "none of its pins can be imported")
    return profiles


def _pin(pins: Section, pin: str, found: Imported) -> str:
    target = pins.text(pin)
    model = found.names.get(target, "")
    if not target:
        pins.book.leave_out(pins.at(pin), "a pin cannot switch a name off")
    elif model not in found.tables:
        pins.book.leave_out(pins.at(pin), f"{target!r} is no model that was imported")
        return ""
    elif target in found.variants[model]:
        pins.book.differs(pins.at(pin), f"a pin names a model: the settings of {target!r} are left out")
    return model


def read_selectors(section: Section, found: Imported) -> dict[str, dict[str, Any]]:
    """``[selectors]``: targets that are models here."""
    selectors: dict[str, dict[str, Any]] = {}
    for name, selector in _tables(section, "should be a table"):
        strategy = selector.text("strategy", "warm")
        if strategy not in _STRATEGIES:
            section.book.problems.add(selector.at("strategy"), f"should be warm, pin or spillover, got {strategy!r}")
        targets = [model for one in selector.texts("targets") if (model := _target(selector, one, found))]
        for key in ("settings", "balance"):
            selector.leave_out(key, "a model has a free place while its own concurrency is not used up")
        for key in ("name", "description", "unlisted", "metadata"):
            selector.leave_out(key, "selectors are listed by their id only")
        selector.end()
        if targets:
            said = {"targets": targets}
            selectors[name] = said if strategy == "warm" else said | {"strategy": _STRATEGIES.get(strategy, "warm")}
        else:
            section.book.leave_out(selector.path, "none of its targets was imported")
    return selectors


def _target(selector: Section, target: str, found: Imported) -> str:
    model = found.names.get(target, "")
    if model not in found.tables:
        why = f"the target {target!r}: only models of this machine can be targets"
        selector.book.leave_out(selector.at("targets"), why)
        return ""
    if target in found.variants[model]:
        selector.book.differs(selector.at("targets"), f"a target is a model: the settings of {target!r} are left out")
    return model


def read_peers(section: Section) -> dict[str, dict[str, Any]]:
    """``[peers]``."""
    peers: dict[str, dict[str, Any]] = {}
    for name, peer in _tables(section, "should be a table"):
        table: dict[str, Any] = {"url": peer.text("proxy")}
        if key := peer.text("apiKey"):
            table["api_key"] = key
        table["models"] = peer.texts("models")
        peer.leave_out("filters", "requests to peers are sent as they are")
        peer.leave_out("timeouts", "peers have no timeouts of their own")
        peer.leave_out("tailcatKey", "peers are asked over HTTP only")
        peer.end()
        if not table["url"]:
            section.book.problems.add(peer.path, "proxy is needed")
        elif not table["url"].startswith(("http://", "https://")) and "\ue000" not in table["url"]:
            section.book.leave_out(peer.path, f"{table['url']} is no http:// or https:// address")
            continue
        peers[name] = table
    return peers


def _tables(section: Section, otherwise: str) -> list[tuple[str, Section]]:
    """The tables in a table; what is none is listed."""
    found: list[tuple[str, Section]] = []
    for name in section:
        value = section.value(name)
        if isinstance(value, dict):
            found.append((section.book.now(name, section.at(name)), Section(value, section.at(name), section.book)))
        elif isinstance(value, list):
            section.leave_out(name, otherwise)
        else:
            section.book.problems.add(section.at(name), f"should be a table, got {value!r}")
    return found

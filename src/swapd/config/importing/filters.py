"""llama-swap's ``filters`` as ``params`` and ``variants``."""

from __future__ import annotations

from typing import Any

from swapd.config.importing.macros import unknown
from swapd.config.importing.section import Section


def read_filters(id_: str, section: Section, table: dict[str, Any], aliases: list[str]) -> dict[str, dict[str, Any]]:
    """Put ``params`` into the model's table and return its variants; an alias that is a variant is no alias."""
    filters = section.section("filters")
    strip = _names(filters.text("stripParams") or filters.text("strip_params"))
    filters.value("strip_params")
    params = _settings(filters.section("setParams"))
    variants = {name: _settings(inner) for name, inner in filters.section("setParamsByID").sections()}
    for name in (name for name in variants if unknown(name)):
        filters.book.problems.add(filters.at("setParamsByID"), f"there is no macro ${{{unknown(name)[0]}}}")
    filters.leave_out("setParamsByMatch", "params do not depend on what a request says")
    filters.end()
    own = variants.pop(id_, {})
    aliases[:] = [alias for alias in aliases if alias not in variants]
    wider = aliases + [name for name, inner in variants.items() if own.keys() - inner.keys()]
    if own and wider:
        how = f"what it sets for {id_!r} itself also holds for {', '.join(map(repr, wider))}"
        filters.book.differs(filters.at("setParamsByID"), how)
    params |= own
    strip = [name for name in strip if name not in params]  # llama-swap strips first: what is set stays
    said = ({"set": params} if params else {}) | ({"strip": strip} if strip else {})
    if said:
        table["params"] = said
    return variants


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    return sorted({name for name in names if name not in ("", "model")})


def _settings(section: Section) -> dict[str, Any]:
    """What can be set: not the model, and nothing that is null (TOML has no word for it)."""
    found: dict[str, Any] = {}
    for key in section:
        value = section.value(key)
        if key == "model":
            section.book.leave_out(section.at(key), "the model of a request is never changed")
        elif _has_null(value):
            section.book.leave_out(section.at(key), "TOML has no null")
        else:
            found[section.book.now(key, section.at(key))] = value
    return found


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(inner) for inner in value.values())
    return value is None or (isinstance(value, list) and any(_has_null(inner) for inner in value))

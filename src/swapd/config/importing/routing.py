"""Who may be loaded together, who goes first, what is loaded at start: ``groups``, ``matrix``, ``hooks`` and so on."""

from __future__ import annotations

from typing import Any

from swapd.config.importing.matrix import as_groups, expand
from swapd.config.importing.models import Imported
from swapd.config.importing.section import Section
from swapd.config.lines import KeyPath


class RoutingReader:
    """Reads after the models: a group can only name those that were imported."""

    def __init__(self, top: Section, found: Imported, all_models: list[str]) -> None:
        self._top, self._book, self._found, self._all = top, top.book, found, all_models

    def groups(self) -> dict[str, dict[str, Any]]:
        """``[groups]`` from whichever of the four places says it."""
        routing = self._top.section("routing")
        router = routing.section("router")
        settings = router.section("settings")
        self._priorities(routing)
        use = router.text("use")
        if use not in ("", "group", "matrix"):
            self._book.problems.add(router.at("use"), f"should be group or matrix, got {use!r}")
        old = [self._top.section(key) for key in ("groups", "matrix") if key in self._top]
        new = [settings.section(key) for key in ("groups", "matrix") if key in settings]
        if old and (new or use):
            self._book.problems.add(
                old[0].path, "is said both at the top and in routing.router, which llama-swap refuses"
            )
        if len(old) == 2:
            self._book.problems.add(old[1].path, "groups and matrix are both given, which llama-swap refuses")
        if len(new) == 2:
            unused = new.pop(0 if use == "matrix" else 1)
            self._book.leave_out(unused.path, f"routing.router.use is {use or 'group'!r}")
        for section in (settings, router, routing):
            section.end()
        chosen = next(iter(new or old), None)
        if chosen is None:
            return {}
        return self._matrix(chosen) if chosen.path[-1] == "matrix" else self._plain_groups(chosen)

    def _plain_groups(self, section: Section) -> dict[str, dict[str, Any]]:
        groups: dict[str, dict[str, Any]] = {}
        for name, group in section.sections():
            members = [m for m in group.texts("members") if self._is_imported(m, group.at("members"))]
            table: dict[str, Any] = {"members": list(dict.fromkeys(members))}
            for key, default in (("swap", True), ("exclusive", True), ("persistent", False)):
                if (value := group.switch(key, default=default)) != default:
                    table[key] = value
            group.end()
            if members:
                groups[name] = table
            else:
                self._book.leave_out(group.path, "it has no members")
        return groups

    def _is_imported(self, model: str, at: KeyPath) -> bool:
        if model in self._found.tables:
            return True
        why = "it was not imported" if model in self._found.left_out else "it is no model (an alias does not count)"
        self._book.leave_out(at, f"the member {model!r}: {why}")
        return False

    def _matrix(self, section: Section) -> dict[str, dict[str, Any]]:
        names, sets = section.section("vars"), section.section("sets")
        models = {name: names.text(name) for name in names}
        for name, model in models.items():
            if model not in self._all:
                self._book.problems.add(names.at(name), f"{model!r} is no model")

        def model_of(name: str) -> str:
            model = models.get(name, name)
            if model not in self._all:
                raise ValueError(f"{name!r} is neither one of vars nor a model")
            return model

        section.leave_out("evict_costs", "what is cheapest to bring back is measured")
        definitions = {name: sets.text(name) for name in sets}
        section.end()
        try:
            named = expand(definitions, model_of)
        except ValueError as error:
            self._book.problems.add(sets.path, str(error))
            return {}
        kept = {name: [found - self._found.left_out for found in some] for name, some in named.items()}
        groups = as_groups(kept, list(self._found.tables))
        if groups is None:
            why = "groups cannot say these combinations, so models run one at a time; with [scheduling] ungrouped = "
            self._book.leave_out(section.path, why + '"headroom" whatever fits stays loaded instead')
        return groups or {}

    def _priorities(self, routing: Section) -> None:
        scheduler = routing.section("scheduler")
        if (use := scheduler.text("use", "fifo")) != "fifo":
            scheduler.leave_out("use", f"swapd's own order instead of {use!r}")
        settings = scheduler.section("settings")
        fifo = settings.section("fifo")
        ranks = fifo.section("priority")
        for name in ranks:
            value, model = ranks.whole(name, 0, -(2**31)), self._found.names.get(name)
            if model is None:
                self._book.problems.add(ranks.at(name), f"{name!r} is no model")
            elif model in self._found.tables:
                self._found.tables[model]["priority"] = value
        for section in (ranks, fifo, settings, scheduler):
            section.end()

    def preload(self, groups: dict[str, dict[str, Any]]) -> None:
        """``hooks.on_startup.preload`` as ``preload`` of each model."""
        hooks = self._top.section("hooks")
        start = hooks.section("on_startup")
        at, loaded = start.at("preload"), []
        for name in start.texts("preload"):
            model = self._found.names.get(name.strip(), "")
            if model in self._found.tables:
                self._found.tables[model]["preload"] = True
                loaded.append(model)
            else:
                self._book.leave_out(at, f"{name!r}: {'it was not imported' if model else 'it is no model'}")
        start.leave_out("profile", "swapd starts without a profile; choose it with PUT /api/profile")
        start.end()
        hooks.end()
        together = [set(group["members"]) for group in groups.values() if group.get("swap") is False]
        if len(loaded) > 1 and not any(set(loaded) <= members for members in together):
            self._book.differs(at, "of models that unload each other the first is loaded and stays, not the last")

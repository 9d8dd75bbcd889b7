"""Who unloads whom: the contract's table, row by row."""

from __future__ import annotations

from collections.abc import Callable

from swapd.core.spec import Catalog, Group, ModelId


class Rows(dict[ModelId, tuple[str, str]]):
    """One group's part of the table: by resident, what protects it from that group's models, and why it has to go."""

    def __init__(self, row: Callable[[Group | None, ModelId], tuple[str, str]], ours: Group | None) -> None:
        super().__init__()
        self._row, self._ours = row, ours

    def __missing__(self, resident: ModelId) -> tuple[str, str]:
        found = self[resident] = self._row(self._ours, resident)
        return found


class GroupRules:
    """The table for one catalog; answers are cached, since they depend on the target's group alone."""

    def __init__(self, catalog: Catalog) -> None:
        self._ungrouped_swap = catalog.policy.ungrouped == "swap"
        self._models = catalog.models
        self._group_of: dict[ModelId, Group] = {m: g for g in catalog.groups.values() for m in g.members}
        self._rows: dict[str | None, Rows] = {}

    def group_of(self, model: ModelId) -> Group | None:
        """The group that names a model, or ``None``."""
        return self._group_of.get(model)

    def rows_for(self, target: ModelId) -> Rows:
        """What the table says of every resident when ``target`` is to be loaded."""
        group = self._group_of.get(target)
        key = group.id if group else None
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = Rows(self._row, group)
        return rows

    def unloads(self, target: ModelId, resident: ModelId) -> str:
        """Why loading ``target`` unloads ``resident`` by the table, before any protection; ``""`` if it does not."""
        return self.rows_for(target)[resident][1]

    def protects(self, target: ModelId, resident: ModelId) -> str:
        """Why ``resident`` may not be evicted for ``target``; ``""`` if it may."""
        return self.rows_for(target)[resident][0]

    def _row(self, ours: Group | None, resident: ModelId) -> tuple[str, str]:
        theirs = self._group_of.get(resident)
        return self._protection(ours, theirs, resident), self._reason(ours, theirs)

    def _reason(self, ours: Group | None, theirs: Group | None) -> str:
        if ours is not None and theirs is ours:
            return f"group {ours.id!r} swaps its members" if ours.swap else ""
        if ours is not None:
            return f"group {ours.id!r} is exclusive" if ours.exclusive else ""
        if theirs is not None and theirs.exclusive:
            return f"it is in the exclusive group {theirs.id!r}"
        return "ungrouped models swap" if self._ungrouped_swap else ""

    def _protection(self, ours: Group | None, theirs: Group | None, resident: ModelId) -> str:
        spec = self._models.get(resident)
        if spec is None:  # no longer configured
            return ""
        if spec.persistent:
            return f"{resident!r} is persistent"
        if theirs is not None and theirs.persistent and ours is not theirs:
            return f"{resident!r} is in the persistent group {theirs.id!r}"
        return ""

    def bars(self, target: ModelId, resident: ModelId) -> bool:
        """Whether a loaded ``resident`` keeps ``target`` out for good: a persistent sibling in a swap group."""
        ours = self._group_of.get(target)
        return bool(ours and ours.swap and self._group_of.get(resident) is ours and self._models[resident].persistent)

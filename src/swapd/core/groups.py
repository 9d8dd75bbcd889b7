"""Who unloads whom: the contract's table, row by row."""

from __future__ import annotations

from swapd.core.spec import Catalog, Group, ModelId


class GroupRules:
    """The table for one catalog; answers are cached, since they depend on the target's group alone."""

    def __init__(self, catalog: Catalog) -> None:
        self._ungrouped_swap = catalog.policy.ungrouped == "swap"
        self._models = catalog.models
        self._group_of: dict[ModelId, Group] = {m: g for g in catalog.groups.values() for m in g.members}
        self._cache: dict[tuple[str | None, ModelId], str] = {}

    def group_of(self, model: ModelId) -> Group | None:
        """The group that names a model, or ``None``."""
        return self._group_of.get(model)

    def unloads(self, target: ModelId, resident: ModelId) -> str:
        """Why loading ``target`` unloads ``resident`` by the table, before any protection; ``""`` if it does not."""
        group = self._group_of.get(target)
        key = (group.id if group else None, resident)
        reason = self._cache.get(key)
        if reason is None:
            reason = self._cache[key] = self._row(group, self._group_of.get(resident))
        return reason

    def _row(self, ours: Group | None, theirs: Group | None) -> str:
        if ours is not None and theirs is ours:
            return f"group {ours.id!r} swaps its members" if ours.swap else ""
        if ours is not None:
            return f"group {ours.id!r} is exclusive" if ours.exclusive else ""
        if theirs is not None and theirs.exclusive:
            return f"it is in the exclusive group {theirs.id!r}"
        return "ungrouped models swap" if self._ungrouped_swap else ""

    def protects(self, target: ModelId, resident: ModelId) -> str:
        """Why ``resident`` may not be evicted for ``target``; ``""`` if it may."""
        spec = self._models.get(resident)
        if spec is None:  # no longer configured
            return ""
        if spec.persistent:
            return f"{resident!r} is persistent"
        theirs = self._group_of.get(resident)
        if theirs is not None and theirs.persistent and self._group_of.get(target) is not theirs:
            return f"{resident!r} is in the persistent group {theirs.id!r}"
        return ""

    def bars(self, target: ModelId, resident: ModelId) -> bool:
        """Whether a loaded ``resident`` keeps ``target`` out for good: a persistent sibling in a swap group."""
        ours = self._group_of.get(target)
        return bool(ours and ours.swap and self._group_of.get(resident) is ours and self._models[resident].persistent)

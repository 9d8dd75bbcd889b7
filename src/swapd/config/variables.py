"""``${name}``, ``${env:NAME}`` and ``${env:NAME:-default}``: expanded value by value, after parsing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from swapd.config.lines import KeyPath

RESERVED: Final = frozenset({"PORT", "SOCKET", "MODEL_ID", "PID"})
"""Known only when a process starts; left as they are until then."""

_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")


class Expander:
    """Expands every string of a parsed TOML; collects what is wrong, which variables were read, and where."""

    def __init__(self, names: Mapping[str, Any], environ: Mapping[str, str], complain: Callable[[KeyPath, str], None]):
        self._names = {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in names.items()}
        self._environ, self._complain = environ, complain
        self.env_read: set[str] = set()
        self.expanded: set[KeyPath] = set()

    def expand(self, value: Any, path: KeyPath = ()) -> Any:
        """The value with every reference in it replaced, keys as they are."""
        if isinstance(value, str):
            text = _REFERENCE.sub(lambda match: self._reference(match, path), value)
            if text != value:
                self.expanded.add(path)
            return text
        if isinstance(value, dict):
            return {key: self.expand(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.expand(inner, path) for inner in value]
        return value

    def _reference(self, match: re.Match[str], path: KeyPath) -> str:
        escaped, name = match[1], match[2]
        if escaped:
            return "${" + name + "}"
        if name in RESERVED:
            return match[0]
        if name.startswith("env:"):
            return self._environment(name[4:], path)
        if name not in self._names:
            self._complain(path, f"${{{name}}} is no entry of [vars] (write $${{{name}}} for the text itself)")
            return match[0]
        return self._names[name]

    def _environment(self, reference: str, path: KeyPath) -> str:
        name, has_default, default = reference.partition(":-")
        self.env_read.add(name)
        value = self._environ.get(name)
        if value is None and not has_default:
            self._complain(path, f"the environment variable {name} is not set (or give one: ${{env:{name}:-default}})")
            return ""
        return value if value else default

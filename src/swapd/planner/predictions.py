"""Headers and predictions, remembered: an elastic model is sized in dozens of ways, and again after each load."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import DeviceId, ModelId
from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader
from swapd.planner.calibration import OVERHEAD_BYTES

if TYPE_CHECKING:
    from swapd.gguf.memory import Prediction

KEPT: Final = 1024
"""Answers remembered; the oldest go."""

T = TypeVar("T")


class Predictions:
    """What headers say of memory. Touches no store, so it may be used from another thread to fill it beforehand."""

    def __init__(self) -> None:
        self._headers: dict[str, tuple[object, GgufHeader]] = {}
        self._found: OrderedDict[Hashable, object] = OrderedDict()

    def header(self, path: str) -> GgufHeader | None:
        """The header of a file as it is now; ``None`` if it cannot be read."""
        if not path:
            return None
        now = identity(path)
        known = self._headers.get(path)
        if known is not None and known[0] == now:
            return known[1]
        try:
            header = read_header(path)
        except (GgufError, OSError):
            return None
        self._headers[path] = (now, header)
        return header

    def predict(
        self, path: str, flags: EngineFlags, gpus: Sequence[DeviceSample], overheads: Mapping[DeviceId, int]
    ) -> Prediction:
        """Memory of a load with these overheads (which change with every measurement, so they are put in last).

        Raises:
            GgufError, OSError: a file that is named cannot be read.
        """
        splits_by_free = len(gpus) > 1 and not flags.tensor_split
        machine = tuple((g.id, g.total_bytes, g.free_bytes if splits_by_free else 0) for g in gpus)
        files = tuple(identity(p) for p in (path, flags.draft_model, flags.mmproj) if p)
        found = self.remember(("prediction", files, flags, machine), lambda: self._predict(path, flags, gpus))
        devices = tuple(replace(d, overhead=_adjusted(d.overhead, overheads.get(d.id))) for d in found.devices)
        return replace(found, devices=devices)

    def _predict(self, path: str, flags: EngineFlags, gpus: Sequence[DeviceSample]) -> Prediction:
        from swapd.planner.estimate import prediction  # the graph it replays takes 30 ms to import
        from swapd.planner.machine import gpu_of

        header = self.header(path)
        if header is None:
            raise GgufError(f"{path} cannot be read", path=path)
        return prediction(header, flags, [gpu_of(gpu) for gpu in gpus])

    def cached_bytes(self, model: ModelId, path: str, flags: EngineFlags, gpus: Sequence[DeviceSample]) -> int:
        """Weights that every token reads through the page cache."""

        def weigh() -> int:
            from swapd.planner.law_facts import ModelFacts

            return ModelFacts(model, flags, header=self.header(path), gpus=tuple(gpus)).cached_bytes

        machine = tuple((g.id, g.total_bytes) for g in gpus)
        return self.remember(("cached", identity(path), flags, machine), weigh)

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The answer that was computed for this key before, else now."""
        known = self._found.get(key, self)  # one look: another thread may be filling it
        if known is not self:
            return known  # type: ignore[return-value]
        answer = self._found[key] = compute()
        while len(self._found) > KEPT:
            self._found.popitem(last=False)
        return answer


def _adjusted(overhead: int, learned: int | None) -> int:
    """The part that is the machine's is counted once in every device's overhead."""
    return overhead if learned is None else max(overhead + learned - OVERHEAD_BYTES, 0)


def identity(path: str) -> tuple[object, ...]:
    """A file by path, size and time of change."""
    try:
        found = os.stat(path)
    except OSError:
        return (path,)
    return (path, found.st_size, found.st_mtime_ns)

"""What each model takes here: what the operator says, else what was measured, else an estimate that errs high."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import structlog

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, DeviceId, Footprint, LaunchSpec, ModelId
from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import flags_for, llama_server_args
from swapd.store import Load, Store

log = structlog.get_logger(__name__)

DEFAULT_CTX_TOKENS = 32_768
"""Context where neither ``ctx`` nor ``args`` say: the trained one, at most this."""
_DISK_BYTES_PER_S = 1.5e9
_START_S = 1.0


class Footprints:
    """Implements ``supervisor.ports.ModelInfo`` and ``FootprintStore`` for the configured models.

    ``run`` names this swapd, so that each of its loads is one row of the store.
    """

    def __init__(self, launches: Mapping[ModelId, LaunchSpec], store: Store, *, run: str) -> None:
        self._launches, self._store, self._run = launches, store, run
        self._headers: dict[str, GgufHeader | None] = {}
        self._sample = MachineSample()

    # ---- ModelInfo

    def footprint(self, model: ModelId, sample: MachineSample) -> Footprint:
        """See ``supervisor.ports.ModelInfo``."""
        self._sample = sample
        spec = self._launches[model]
        gpus = self._gpus(spec, sample)
        predicted = self._predicted(spec, gpus)
        known = predicted if self._flags(spec).fit else self._measured(spec, gpus, predicted)
        return _configured(spec, gpus, known, self._flags(spec))

    def estimated_load_s(self, model: ModelId) -> float:
        """Seconds of the last load with these flags, else what reading the file takes."""
        spec = self._launches[model]
        loads = self._store.loads(self._key(spec, self._gpus(spec, self._sample)))
        if loads:
            return loads[0].load_s
        header = self._header(spec)
        return _START_S + (header.file_bytes / _DISK_BYTES_PER_S if header else 0.0)

    # ---- FootprintStore

    def record(
        self,
        model: ModelId,
        generation: int,
        idle_bytes: Mapping[DeviceId, int],
        peak_bytes: Mapping[DeviceId, int],
        load_s: float,
        worked: bool,
    ) -> None:
        """See ``supervisor.ports.FootprintStore``; a load with ``--fit on`` takes what is free and tells nothing."""
        spec = self._launches[model]
        if not self._flags(spec).fit:
            key = self._key(spec, self._gpus(spec, self._sample))
            try:
                self._store.record(key, f"{self._run}:{generation}", Load(idle_bytes, peak_bytes, load_s, worked))
            except sqlite3.Error as error:
                log.warning("measurement not stored", model=model, error=str(error))

    # ---- for the launcher

    def gpus_to_show(self, model: ModelId) -> Sequence[str] | None:
        """UUIDs in the configured order, empty to hide all, ``None`` for all there are."""
        spec = self._launches[model]
        return None if spec.gpus is None else [g.id for g in self._gpus(spec, self._sample)]

    def default_ctx(self, model: ModelId) -> int:
        """Tokens where nothing is configured: the trained context, at most 32768."""
        header = self._header(self._launches[model])
        trained = header.n_ctx_train if header else 0
        return min(trained, DEFAULT_CTX_TOKENS) if trained else DEFAULT_CTX_TOKENS

    def context(self, model: ModelId) -> int:
        """Tokens that one conversation can have, by configuration and header; 0 = not known."""
        spec = self._launches[model]
        if self._header(spec) is None and not spec.ctx_tokens:
            return 0
        flags = self._flags(spec)
        shared = flags.parallel <= 1 or flags.kv_unified is True
        return flags.ctx_tokens if shared else flags.ctx_tokens // flags.parallel

    # ---- what is known

    def _gpus(self, spec: LaunchSpec, sample: MachineSample) -> list[DeviceSample]:
        """The GPUs a model may use, in its order. One that is not there keeps its name: it is unknown to the ledger."""
        if spec.gguf and spec.binary is not None and not spec.binary.path:
            return []
        if not sample.gpus_known:
            return [] if spec.gpus == () else [DeviceSample("gpu", 0, None)]
        if spec.gpus is None:
            return list(sample.gpus)
        return [find_gpu(name, sample) or DeviceSample(str(name), 0, None) for name in spec.gpus]

    def _flags(self, spec: LaunchSpec) -> EngineFlags:
        return flags_for(spec, self.default_ctx(spec.id))

    def _header(self, spec: LaunchSpec) -> GgufHeader | None:
        path = spec.gguf or _model_in(spec.cmd)
        if path not in self._headers:
            try:
                self._headers[path] = read_header(path) if path else None
            except (GgufError, OSError):
                self._headers[path] = None
        return self._headers[path]

    def _predicted(self, spec: LaunchSpec, gpus: Sequence[DeviceSample]) -> Footprint:
        header, flags = self._header(spec), self._flags(spec)
        everywhere = frozenset(g.id for g in gpus)
        if header is None or flags.fit:
            return Footprint({RAM: 0} | {g.id: 0 for g in gpus}, alone_on=everywhere)
        from swapd.planner.estimate import estimate  # the graph it replays takes 30 ms to import

        try:
            return estimate(header, flags, gpus, {}).footprint()
        except (GgufError, OSError):
            return Footprint({RAM: 0} | {g.id: 0 for g in gpus}, alone_on=everywhere)

    def _measured(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], predicted: Footprint) -> Footprint:
        """The largest of the last loads; one that could never fit the machine is dropped."""
        totals = {g.id: g.total_bytes for g in gpus}
        need = dict(predicted.need_bytes)
        seen: dict[DeviceId, int] = {}
        for load in self._store.loads(self._key(spec, gpus)):
            size = {d: _peak(load, d, predicted) for d, idle in load.idle_bytes.items() if idle}
            if all(n <= totals.get(d, n) for d, n in size.items()):
                seen = {d: max(n, seen.get(d, 0)) for d, n in {**seen, **size}.items()}
        alone_on = predicted.alone_on - seen.keys() if seen else predicted.alone_on
        return Footprint(need | seen, predicted.growth_bytes, frozenset() if seen else alone_on)

    def _key(self, spec: LaunchSpec, gpus: Sequence[DeviceSample]) -> str:
        """What decides how much memory a load takes: binary, GGUF, flags that matter, GPUs."""
        binary = spec.binary.path if spec.binary else (spec.cmd[0] if spec.cmd else "")
        facts = {
            "binary": _identity(binary),
            "gguf": _identity(spec.gguf or _model_in(spec.cmd)),
            "flags": asdict(self._flags(spec)) if spec.gguf or llama_server_args(spec.cmd) else list(spec.cmd),
            "gpus": [g.id for g in gpus],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def find_gpu(name: str | int, sample: MachineSample) -> DeviceSample | None:
    """A GPU by index, PCI bus id or UUID."""
    text = str(name)
    return next((g for g in sample.gpus if text in (g.id, str(g.index), g.pci_bus_id)), None)


def _configured(spec: LaunchSpec, gpus: Sequence[DeviceSample], known: Footprint, flags: EngineFlags) -> Footprint:
    """A configured size wins; one size for several GPUs is shared out by ``-ts``, else by total memory."""
    need = dict(known.need_bytes)
    if spec.ram != "auto":
        need[RAM] = spec.ram
    if spec.vram == "auto":
        return replace(known, need_bytes=need)
    if isinstance(spec.vram, int):
        shares = list(flags.tensor_split) or [float(g.total_bytes) for g in gpus]
        whole = sum(shares[: len(gpus)]) or 1.0
        need |= {g.id: round(spec.vram * share / whole) for g, share in zip(gpus, shares, strict=False)}
    else:
        sizes = {_device(name, gpus): size for name, size in spec.vram.items()}
        need |= {g.id: 0 for g in gpus} | sizes
    return Footprint(need, {}, fixed=True)


def _device(name: str, gpus: Sequence[DeviceSample]) -> DeviceId:
    return next((g.id for g in gpus if name in (g.id, str(g.index), g.pci_bus_id)), name)


def _peak(load: Load, device: DeviceId, predicted: Footprint) -> int:
    idle = load.idle_bytes[device]
    growth = 0 if load.worked else predicted.growth_bytes.get(device, 0)
    return idle + max(load.peak_bytes.get(device, idle) - idle, growth)


def _model_in(cmd: Sequence[str]) -> str:
    """The GGUF that a ``cmd`` gives to a llama-server; empty if it is none."""
    args = llama_server_args(cmd) or ()
    return next((value for flag, value in itertools.pairwise(args) if flag in ("-m", "--model")), "")


def _identity(path: str) -> list[object]:
    try:
        found = os.stat(path)
    except OSError:
        return [path]
    return [path, found.st_size, found.st_mtime_ns]

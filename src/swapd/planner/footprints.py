"""What each model takes here: what the operator says, else what was measured, else a prediction that errs high."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import structlog

from swapd.core.flags import EngineFlags, usual_ctx
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import PAGE_CACHE, RAM, DeviceId, Footprint, LaunchSpec, ModelId, Policy
from swapd.errors import GgufError
from swapd.gguf.types import GgufHeader
from swapd.llama.flags import flags_for, llama_server_args
from swapd.planner.calibration import Overheads
from swapd.planner.places import configured, configured_limits, explicit_split, find_gpu, visible_by_env
from swapd.planner.predictions import Predictions, identity
from swapd.store import Load, Store

if TYPE_CHECKING:
    from swapd.gguf.memory import Prediction

log = structlog.get_logger(__name__)

_DISK_BYTES_PER_S: Final = 1.5e9
_START_S: Final = 1.0


class Footprints:
    """Implements ``supervisor.ports.ModelInfo`` and ``FootprintStore`` for the configured models.

    ``run`` names this swapd, so that each of its loads is one row of the store.
    """

    def __init__(
        self, launches: Mapping[ModelId, LaunchSpec], store: Store, *, run: str, policy: Policy | None = None
    ) -> None:
        self._launches, self._store, self._run = launches, store, run
        self._policy = policy or Policy()
        self._predictions = Predictions()
        self._sample = MachineSample()
        self._overheads = Overheads(store)
        self._errors: dict[ModelId, dict[DeviceId, int]] = {}

    # ---- ModelInfo

    def footprint(self, model: ModelId, sample: MachineSample) -> Footprint:
        """See ``supervisor.ports.ModelInfo``."""
        self._sample = sample
        spec = self._launches[model]
        gpus = self._gpus(spec, sample)
        found = [self._known(spec, gpus, way) for way in self._possible(spec, gpus, self._ways(spec, gpus))]
        return replace(found[-1], larger=tuple(found[:-1]))

    def warm_up(self, sample: MachineSample) -> Callable[[], None]:
        """Work to be done in another thread: the headers, and the ways of elastic models."""
        wanted = [(spec, self._gpus(spec, sample)) for spec in self._launches.values()]

        def work() -> None:
            for spec, gpus in wanted:
                header = self._header(spec)
                if header is not None and _is_elastic(spec):
                    with suppress(GgufError, OSError):
                        self._elastic(spec, header, self._flags(spec), gpus, {})

        return work

    def use(self, policy: Policy) -> None:
        """Another configuration's headroom and page-cache rule; its models are those of the mapping given at first."""
        self._policy = policy

    def estimated_load_s(self, model: ModelId) -> float:
        """Seconds of the last load with these flags, else what reading the file takes."""
        spec = self._launches[model]
        gpus = self._gpus(spec, self._sample)
        for way in self._ways(spec, gpus):
            loads = self._store.loads(self._key(spec, gpus, way.args))
            if loads:
                return loads[0].load_s
        header = self._header(spec)
        return _START_S + (header.file_bytes / _DISK_BYTES_PER_S if header else 0.0)

    def prediction_errors(self, model: ModelId) -> Mapping[DeviceId, int]:
        """See ``supervisor.ports.ModelInfo``."""
        return self._errors.get(model, {})

    # ---- FootprintStore

    def record(
        self,
        model: ModelId,
        generation: int,
        idle_bytes: Mapping[DeviceId, int],
        peak_bytes: Mapping[DeviceId, int],
        load_s: float,
        worked: bool,
        args: tuple[str, ...],
    ) -> bool:
        """See ``supervisor.ports.FootprintStore``; a load with ``--fit on`` takes what is free and tells nothing."""
        spec = self._launches[model]
        flags = self._flags(spec, args)
        if flags.fit:
            return False
        gpus = self._gpus(spec, self._sample)
        run = f"{self._run}:{model}:{generation}"
        predicted = self._prediction(spec, gpus, args)
        told = (self._store.projection(self._key(spec, gpus)) if predicted and not predicted.exact else None) or {}
        devices = predicted.devices if predicted else ()
        wanted = {d.id: told[d.id] + d.overhead if d.id in told else d.need for d in devices}
        load = Load(idle_bytes, peak_bytes, load_s, worked, wanted)
        self._errors[model] = {d: idle_bytes[d] - size for d, size in wanted.items() if idle_bytes.get(d)}
        self._store.record(self._key(spec, gpus, args), run, load)
        if predicted is None or not predicted.exact:
            return False
        return self._overheads.learn(_binary(spec), predicted, load, run)

    # ---- for the launcher

    def gpus_to_show(self, model: ModelId) -> Sequence[str] | None:
        """UUIDs in the configured order, empty to hide all, ``None`` for all there are."""
        spec = self._launches[model]
        return None if spec.gpus is None else [g.id for g in self._gpus(spec, self._sample)]

    def default_ctx(self, model: ModelId) -> int:
        """Tokens where nothing is configured: the trained context, at most 32768."""
        header = self._header(self._launches[model])
        return usual_ctx(header.n_ctx_train if header else 0)

    def context(self, model: ModelId) -> int:
        """Tokens that one conversation can have, by configuration and header; 0 = not known."""
        spec = self._launches[model]
        if self._header(spec) is None and not spec.ctx_tokens:
            return 0
        flags = self._flags(spec)
        shared = flags.parallel <= 1 or flags.kv_unified is True
        return flags.ctx_tokens if shared else flags.ctx_tokens // flags.parallel

    def overhead(self, model: ModelId, device: DeviceId) -> int:
        """Bytes of context and kernels of the model's binary on a GPU: learned, else the usual."""
        return self._overheads.of(_binary(self._launches[model]), device)

    # ---- the engine's own word

    def is_unsure(self, model: ModelId, sample: MachineSample) -> bool:
        """Whether a model's size is neither configured, measured, predicted exactly nor told by the engine."""
        self._sample, spec = sample, self._launches[model]
        gpus, header, flags = self._gpus(spec, sample), self._header(spec), self._flags(spec)
        if header is None or not (spec.gguf and gpus and spec.vram == "auto") or _is_elastic(spec):
            return False
        from swapd.gguf.model import KNOWN

        odd = flags.unknown or flags.mmproj or flags.split_mode not in ("layer", "none") or flags.override_tensors
        if header.architecture in KNOWN and not odd:
            return False
        if self._store.projection(self._key(spec, gpus)) is not None or self._store.loads(self._key(spec, gpus)):
            return False
        predicted = self._prediction(spec, gpus)
        return predicted is not None and not predicted.exact

    def take_projection(self, model: ModelId, by_gpu: Sequence[int]) -> None:
        """Keep what the engine said it would allocate, in CUDA's order; empty: it could not say."""
        spec = self._launches[model]
        gpus = self._gpus(spec, self._sample)
        sizes = {g.id: size for g, size in zip(gpus, by_gpu, strict=False)} if len(by_gpu) == len(gpus) else {}
        self._store.record_projection(self._key(spec, gpus), sizes)

    # ---- what is known

    def _gpus(self, spec: LaunchSpec, sample: MachineSample) -> list[DeviceSample]:
        """The GPUs a model may use, in its order. One that is not there keeps its name: it is unknown to the ledger."""
        if spec.gguf and spec.binary is not None and not spec.binary.path:
            return []
        names = spec.gpus if spec.gpus is not None else visible_by_env(spec)
        if not sample.gpus_known:
            return [] if names == () else [DeviceSample("gpu", 0, None)]
        if names is None:
            return list(sample.gpus)
        return [find_gpu(name, sample) or DeviceSample(str(name), 0, None) for name in names]

    def _flags(self, spec: LaunchSpec, args: tuple[str, ...] = ()) -> EngineFlags:
        with_args = replace(spec, args=(*spec.args, *args)) if args else spec
        return flags_for(with_args, self.default_ctx(spec.id))

    def _header(self, spec: LaunchSpec) -> GgufHeader | None:
        return self._predictions.header(spec.gguf or _model_in(spec.cmd))

    def _ways(self, spec: LaunchSpec, gpus: Sequence[DeviceSample]) -> list[Footprint]:
        """As predicted, the best way first."""
        header, flags = self._header(spec), self._flags(spec)
        unknown = Footprint({RAM: 0} | {g.id: 0 for g in gpus}, alone_on=frozenset(g.id for g in gpus))
        if header is None or flags.fit:
            return [unknown]
        try:
            if _is_elastic(spec):
                return self._elastic(spec, header, flags, gpus, self._learned(spec, gpus))
            split = explicit_split(spec, header, flags, gpus)
            with_split = replace(flags, tensor_split=split) if split else flags
            words = ("-ts", ",".join(f"{share:g}" for share in split)) if split else ()
            return [replace(self._told(spec, gpus, self._predict(spec, with_split, gpus)), args=words)]
        except (GgufError, OSError):
            return [unknown]

    def _elastic(
        self,
        spec: LaunchSpec,
        header: GgufHeader,
        flags: EngineFlags,
        gpus: Sequence[DeviceSample],
        overheads: Mapping[DeviceId, int],
    ) -> list[Footprint]:
        from swapd.planner.elastic import ways_of

        path = spec.gguf
        return ways_of(
            spec, header, flags, gpus, self._policy, lambda f: self._predictions.predict(path, f, gpus, overheads)
        )

    def _possible(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], ways: list[Footprint]) -> list[Footprint]:
        """Without those that could never fit this machine or the configured size; never empty."""
        if len(ways) == 1:
            return ways
        room = {
            d.id: d.total_bytes - self._policy.headroom(d.id, str(d.index), d.pci_bus_id)
            for d in (*gpus, self._sample.ram)
            if d.total_bytes
        }
        limits = configured_limits(spec, gpus)
        possible = [
            way
            for way in ways
            if all(size <= room.get(d, size) for d, size in way.need_bytes.items())
            and all(sum(way.on(d) for d in ids) <= size for ids, size in limits)
        ]
        return possible or ways[-1:]

    def _told(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], predicted: Prediction) -> Footprint:
        """The engine's own projection, with context, kernels and growth, where the formulas do not know the model."""
        footprint = predicted.footprint()
        told = None if predicted.exact else self._store.projection(self._key(spec, gpus))
        if not told:
            return footprint
        by_id = {d.id: d for d in predicted.devices}
        need = {d: size + by_id[d].overhead + by_id[d].growth for d, size in told.items() if d in by_id}
        return replace(footprint, need_bytes={**footprint.need_bytes, **need})

    def _prediction(
        self, spec: LaunchSpec, gpus: Sequence[DeviceSample], args: tuple[str, ...] = ()
    ) -> Prediction | None:
        flags = self._flags(spec, args)
        if self._header(spec) is None or flags.fit:
            return None
        try:
            return self._predict(spec, flags, gpus)
        except (GgufError, OSError):
            return None

    def _predict(self, spec: LaunchSpec, flags: EngineFlags, gpus: Sequence[DeviceSample]) -> Prediction:
        path = spec.gguf or _model_in(spec.cmd)
        return self._predictions.predict(path, flags, gpus, self._learned(spec, gpus))

    def _learned(self, spec: LaunchSpec, gpus: Sequence[DeviceSample]) -> dict[DeviceId, int]:
        return {g.id: self._overheads.of(_binary(spec), g.id) for g in gpus}

    def _known(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], way: Footprint) -> Footprint:
        """Configured, else measured, else as predicted."""
        flags = self._flags(spec, way.args)
        known = way if flags.fit else self._measured(spec, gpus, way)
        return self._with_pages(spec, gpus, replace(configured(spec, gpus, known, flags), args=way.args), flags)

    def _with_pages(
        self, spec: LaunchSpec, gpus: Sequence[DeviceSample], known: Footprint, flags: EngineFlags
    ) -> Footprint:
        """The weights it reads through the page cache; as a need of its own where they must fit."""
        if self._header(spec) is None or self._policy.page_cache == "off":
            return known
        cached = self._predictions.cached_bytes(spec.id, spec.gguf or _model_in(spec.cmd), flags, gpus)
        need = dict(known.need_bytes)
        if cached and self._policy.page_cache == "refuse":
            need[PAGE_CACHE] = need.get(RAM, 0) + cached
        return replace(known, need_bytes=need, cached_bytes=cached)

    def _measured(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], predicted: Footprint) -> Footprint:
        """The largest of the last loads; one that could never fit the machine is dropped."""
        totals = {g.id: g.total_bytes for g in gpus}
        need = dict(predicted.need_bytes)
        seen: dict[DeviceId, int] = {}
        for load in self._store.loads(self._key(spec, gpus, predicted.args)):
            size = {d: _peak(load, d, predicted) for d, idle in load.idle_bytes.items() if idle}
            if all(n <= totals.get(d, n) for d, n in size.items()):
                seen = {d: max(n, seen.get(d, 0)) for d, n in {**seen, **size}.items()}
        alone_on = predicted.alone_on - seen.keys() if seen else predicted.alone_on
        return Footprint(need | seen, predicted.growth_bytes, frozenset() if seen else alone_on)

    def _key(self, spec: LaunchSpec, gpus: Sequence[DeviceSample], args: tuple[str, ...] = ()) -> str:
        """What decides how much memory a load takes: binary, GGUF, flags that matter, GPUs."""
        flags = self._flags(spec, args)
        facts = {
            "binary": _binary(spec),
            "gguf": [identity(path) for path in (spec.gguf or _model_in(spec.cmd), flags.draft_model, flags.mmproj)],
            "parts": header.file_bytes if (header := self._header(spec)) else 0,
            "flags": asdict(flags) if spec.gguf or llama_server_args(spec.cmd) else list(spec.cmd),
            "gpus": [g.id for g in gpus],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _peak(load: Load, device: DeviceId, predicted: Footprint) -> int:
    idle = load.idle_bytes[device]
    growth = 0 if load.worked else predicted.growth_bytes.get(device, 0)
    return idle + max(load.peak_bytes.get(device, idle) - idle, growth)


def _model_in(cmd: Sequence[str]) -> str:
    """The GGUF that a ``cmd`` gives to a llama-server; empty if it is none."""
    args = llama_server_args(cmd) or ()
    return next((value for flag, value in itertools.pairwise(args) if flag in ("-m", "--model")), "")


def _binary(spec: LaunchSpec) -> str:
    """The program that runs a model, by path, size and time of change."""
    return json.dumps(identity(spec.binary.path if spec.binary else (spec.cmd[0] if spec.cmd else "")))


def _is_elastic(spec: LaunchSpec) -> bool:
    return spec.auto_ctx or spec.auto_n_cpu_moe or spec.ladder is not None

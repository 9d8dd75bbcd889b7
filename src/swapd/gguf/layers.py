"""What single layers weigh on a GPU, so that placements can be compared without replaying the graph for each."""

from __future__ import annotations

from dataclasses import dataclass

from swapd.core.flags import EngineFlags
from swapd.gguf.cache import kv_bytes, slots, state_bytes
from swapd.gguf.compute import plan_run
from swapd.gguf.model import Model, layer_of
from swapd.gguf.placement import EXPERTS, place
from swapd.gguf.types import GgufHeader


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes by layer: weights without the routed experts, these experts, cache and state; ``head``: what follows.

    ``active``: weights read for one token by layer, experts counted by how many are used; ``active_experts``: of
    these, the experts' part.
    """

    dense: tuple[int, ...]
    experts: tuple[int, ...]
    cache: tuple[int, ...]
    head: int
    active: tuple[int, ...]
    active_experts: tuple[int, ...]

    @property
    def is_moe(self) -> bool:
        """Whether there are routed experts."""
        return any(self.experts)

    @property
    def count(self) -> int:
        """Layers."""
        return len(self.dense)


def layer_bytes(header: GgufHeader, flags: EngineFlags) -> LayerBytes:
    """Sizes by layer for this context, slots and cache types (formulas: ``weights``, ``cache``)."""
    model = Model(header)
    placement = place(model, flags, [])
    size = slots(model, flags)
    run = plan_run(model, flags, placement, size)
    states = sum(state_bytes(model, run))
    recurrent = sum(model.is_recurrent(layer) for layer in range(model.layers))
    share = states // recurrent if recurrent else 0
    dense, experts = [0] * model.all_layers, [0] * model.all_layers
    head = 0
    for tensor in header.tensors:
        layer = layer_of(tensor.name)
        if 0 <= layer < model.all_layers:
            if layer < model.layers:
                (experts if EXPERTS.search(tensor.name) else dense)[layer] += tensor.nbytes
        elif tensor.name.startswith("output") or (model.is_tied and tensor.name == "token_embd.weight"):
            head += tensor.nbytes
    cache = tuple(
        share if model.is_recurrent(i) else sum(map(sum, kv_bytes(model, run, range(i, i + 1))))
        for i in range(model.all_layers)
    )
    count = header.number("expert_count")
    used = min(header.number("expert_used_count") / count, 1.0) if count else 1.0
    active_experts = tuple(round(size * used) for size in experts)
    active = tuple(d + e for d, e in zip(dense, active_experts, strict=True))
    return LayerBytes(tuple(dense), tuple(experts), cache, head, active, active_experts)

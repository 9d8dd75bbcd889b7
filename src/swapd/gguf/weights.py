"""Bytes of weights on each GPU and on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from swapd.gguf.blocks import row_padding
from swapd.gguf.model import Model, layer_of
from swapd.gguf.placement import Placement
from swapd.gguf.types import TensorInfo

ALIGNMENT = 128
"""Of tensors in a CUDA buffer (ggml-cuda.cu)."""


@dataclass(slots=True)
class Weights:
    """``by_gpu``: bytes in each device's buffer; ``on_host``: tensors that stay."""

    by_gpu: list[int]
    on_host: list[TensorInfo] = field(default_factory=list)

    @property
    def host_bytes(self) -> int:
        """Bytes of the tensors on the host."""
        return sum(tensor.nbytes for tensor in self.on_host)


def weigh(model: Model, placement: Placement, *, mtp: bool) -> Weights:
    """Each tensor in its place, padded to 128 bytes and to whole rows of 512 on a GPU.

    Source: ``ggml_backend_alloc_ctx_tensors_from_buft`` and ``get_alloc_size`` (ggml-cuda.cu). The layers
    of a prediction head (MTP) are loaded only if it is used.
    """
    weights = Weights([0] * len(placement.devices))
    for tensor in model.header.tensors:
        if layer_of(tensor.name) >= model.layers and not mtp:
            continue
        _put(weights, tensor, placement.of(tensor), placement.host)
    head = model.header.tensor.get("token_embd.weight")
    if model.is_tied and head is not None and placement.output_place != placement.host:
        _put(weights, head, placement.output_place, placement.host)
    return weights


def _put(weights: Weights, tensor: TensorInfo, place: int, host: int) -> None:
    if place == host:
        weights.on_host.append(tensor)
    else:
        weights.by_gpu[place] += -(-(tensor.nbytes + row_padding(tensor)) // ALIGNMENT) * ALIGNMENT

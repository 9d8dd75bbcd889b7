"""Which backend runs each node, what is copied between them, and so what each backend's buffer must hold.

Follows ``ggml_backend_sched_split_graph`` (ggml/src/ggml-backend.cpp) pass by
pass. Backends are numbered as there: GPUs first, the host last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from swapd.gguf.allocator import Allocator
from swapd.gguf.fusion import keep_for_fusion
from swapd.gguf.graph import NONE, UNASSIGNED, VIEW, Graph, Node

OFFLOAD_ROWS = 32
"""Batches from this size on are worth sending a host weight to a GPU (GGML_OP_OFFLOAD_MIN_BATCH)."""
PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES."""


@dataclass(slots=True)
class _Split:
    backend: int
    start: int
    end: int = 0
    inputs: list[Node] = field(default_factory=list)


def buffer_sizes(graph: Graph, backends: int, *, op_offload: bool, pipeline: bool) -> list[int]:
    """Bytes of each backend's compute buffer, the host's last."""
    host = backends - 1
    _assign_by_weight(graph, host, op_offload)
    _spread(graph.nodes, host)
    _assign_rest(graph.nodes)
    copies = PIPELINE_COPIES if pipeline else 1
    splits, copied = _split(graph.nodes, copies)
    nodes, owners = _with_copies(graph.nodes, splits, copied, host)
    leafs = list(_input_copies(graph.leafs, splits, copied, copies)) + graph.leafs
    return Allocator(backends).run(leafs, nodes, owners)


def _assign_by_weight(graph: Graph, host: int, op_offload: bool) -> None:
    """Pass 1: a node runs where its weight lies, or on the first GPU if it is worth copying it there."""
    for node in graph.leafs:
        if node.is_input:
            node.backend = host
    for node in graph.nodes:
        if node.backend != UNASSIGNED:
            continue
        if node.root is not None and node.root.external:
            node.backend = node.root.backend
            continue
        if node.op in ("rope", "flash_attn"):
            continue
        weight = next((source for source in node.sources if source.is_weight), None)
        if weight is None:
            continue
        node.backend = weight.backend
        if op_offload and host and weight.backend == host and _batch(node) >= OFFLOAD_ROWS:
            node.backend = 0


def _batch(node: Node) -> int:
    """Rows that decide whether copying a weight pays (``get_op_batch_size`` in ggml-cuda.cu)."""
    if node.op == "get_rows":
        return 0
    if node.op == "mul_mat":
        return node.shape[1] if len(node.shape) > 1 else 1
    if node.op in ("mul_mat_id", "rope"):
        return node.shape[2] if len(node.shape) > 2 else 1
    return node.rows


def _spread(nodes: Sequence[Node], host: int) -> None:
    """Pass 2: neighbours join a GPU, downwards and upwards, then whatever is beside them."""
    run = [node for node in nodes if node.op != VIEW]
    for order, gpu_only in ((run, True), (run[::-1], True), (run, False), (run[::-1], False)):
        current = UNASSIGNED
        for node in order:
            if node.backend == UNASSIGNED:
                node.backend = current
            else:
                current = UNASSIGNED if gpu_only and node.backend == host else node.backend


def _assign_rest(nodes: Iterable[Node]) -> None:
    """Pass 4: views follow what they show, other sources their reader."""
    for node in nodes:
        if node.root is not None and node.backend == UNASSIGNED:
            node.backend = node.root.backend
        for source in node.sources:
            if source.backend == UNASSIGNED:
                source.backend = node.backend if source.root is None else source.root.backend


def _split(nodes: Sequence[Node], copies: int) -> tuple[list[_Split], dict[tuple[Node, int], list[Node]]]:
    """Pass 5: cut where the backend changes, and where a further host weight arrives; note what is copied."""
    first = next((node.backend for node in nodes if node.op != VIEW), 0)
    split = _Split(first, 0)
    splits = [split]
    copied: dict[tuple[Node, int], list[Node]] = {}
    for index, node in enumerate(nodes):
        if node.op == VIEW:
            continue
        if node.backend != split.backend or _brings_weight(node, split):
            split.end = index
            split = _Split(node.backend, index)
            splits.append(split)
        for position, source in enumerate(node.sources):
            if source.backend == split.backend:
                continue
            key = (source, split.backend)
            if key not in copied:
                copied[key] = [_copy(source, kept=copies > 1) for _ in range(copies)]
                split.inputs.append(source)
            node.sources[position] = copied[key][0]
    split.end = len(nodes)
    return splits, copied


def _brings_weight(node: Node, split: _Split) -> bool:
    """A new split lets the memory of the last weight be used again."""
    return bool(split.inputs) and any(s.is_weight and s.backend != split.backend for s in node.sources)


def _copy(source: Node, *, kept: bool) -> Node:
    twin = Node(NONE, source.shape, source.bytes, [])
    twin.layout, twin.extra = source.layout or object(), source.extra
    twin.is_input = twin.is_output = kept
    return twin


def _with_copies(
    nodes: Sequence[Node], splits: Sequence[_Split], copied: dict[tuple[Node, int], list[Node]], host: int
) -> tuple[list[Node], list[int]]:
    """The order in which memory is taken: copies at the start of their split, kept tensors after their last use."""
    out: list[Node] = []
    owners: list[int] = []
    for split in splits:
        for source in split.inputs:
            out.append(_holder([source]))
            owners.append(source.backend)
            out.append(copied[source, split.backend][0])
            owners.append(split.backend)
        body = list(nodes[split.start : split.end])
        keep = keep_for_fusion(body) if split.backend != host else {}
        for node in body:
            out.append(node)
            owners.append(node.backend)
            if node in keep:
                out.append(_holder(keep[node]))
                owners.append(split.backend)
    return out, owners


def _holder(kept: list[Node]) -> Node:
    """A view that does nothing but keep tensors alive until here."""
    return Node(NONE, (), 0, list(kept), kept[0].root or kept[0])


def _input_copies(
    leafs: Iterable[Node], splits: Iterable[_Split], copied: dict[tuple[Node, int], list[Node]], copies: int
) -> Iterator[Node]:
    """With pipeline copies, inputs exist several times and are never freed."""
    if copies == 1:
        return
    for node in leafs:
        if not node.is_input:
            continue
        node.is_output = True
        yield node
        for _ in range(copies - 1):
            twin = _copy(node, kept=True)
            twin.backend = node.backend
            yield twin
    for split in splits:
        for source in split.inputs:
            for twin in copied[source, split.backend]:
                twin.backend = split.backend
                yield twin

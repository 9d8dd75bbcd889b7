"""What the CUDA backend keeps alive to fuse kernels (``ggml_backend_cuda_graph_optimize``, ggml-cuda.cu)."""

from __future__ import annotations

from swapd.gguf.graph import VIEW, Node

MAX_EXPERTS_REDUCED = 15


def keep_for_fusion(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Tensors to keep until a node is computed, by that node; ``nodes`` may be reordered in place."""
    keep: dict[Node, list[Node]] = {}
    _join_shared_expert(nodes, keep)
    index = 0
    while index < len(nodes):
        node = nodes[index]
        if node.op == "mul" and _is_weighting(node):
            index += _keep_weighting(nodes, index, keep)
        elif node.op in ("soft_max", "unary"):
            index += _keep_routing(nodes, index, keep)
        index += 1
    return keep


def _add(keep: dict[Node, list[Node]], until: Node, *kept: Node) -> None:
    held = keep.setdefault(until, [])
    held.extend(node for node in kept if node not in held)


def _join_shared_expert(nodes: list[Node], keep: dict[Node, list[Node]]) -> None:
    """A shared expert of the routed ones' shape is computed right behind their gate and up."""
    index = 0
    while index + 5 < len(nodes):
        if nodes[index].op == "mul_mat_id" and (at := _shared_after(nodes, index)):
            shared = nodes[at : at + 3]
            del nodes[at : at + 3]
            nodes[index + 3 : index + 3] = shared
            up = nodes[index + 2].sources[1]
            _add(keep, nodes[index + 5], *up.sources[1:3])
            index += 5
        index += 1


def _shared_after(nodes: list[Node], index: int) -> int:
    if nodes[index + 1].op != "mul_mat_id" or nodes[index + 2].op != "glu":
        return 0
    routed = nodes[index].sources[0]
    for at in range(index + 3, len(nodes) - 2):
        pair = nodes[at], nodes[at + 1]
        if all(node.op == "mul_mat_id" for node in pair):
            return 0
        if (
            pair[0].op == pair[1].op == "mul_mat"
            and nodes[at + 2].op == "glu"
            and set(nodes[at + 2].sources) == set(pair)
        ):
            same = pair[0].sources[0]
            if same.shape[:2] == routed.shape[:2] and same.bytes * routed.shape[2] == routed.bytes:
                return at
    return 0


def _is_weighting(node: Node) -> bool:
    """Experts' results times the router's weights."""
    experts, weights = node.sources[:2]
    return experts.shape == node.shape and len(node.shape) == 3 and weights.shape == (1, *node.shape[1:])


def _keep_weighting(nodes: list[Node], index: int, keep: dict[Node, list[Node]]) -> int:
    """Experts and weights stay until their sum is done; how many nodes that takes."""
    node = nodes[index]
    used = node.shape[1]
    last = index + 2 * used - 1
    if not 2 <= used <= MAX_EXPERTS_REDUCED or last >= len(nodes):
        return 0
    tail = nodes[index + 1 : last + 1]
    if [t.op for t in tail].count(VIEW) != used or tail[-1].op != "add":
        return 0
    _add(keep, nodes[last], node.sources[0], node.sources[1])
    return last - index


_NORMED = ["view", "sum_rows", "clamp", "div", "view"]


def _keep_routing(nodes: list[Node], index: int, keep: dict[Node, list[Node]]) -> int:
    """Top-k routing as one kernel: everything from the gate's activation to the weights stays until after it."""
    ops = [node.op for node in nodes[index : index + 12]]
    for lead in (["view", "argsort", "view", "get_rows"], ["view", "add", "argsort", "view", "get_rows"]):
        if ops[1 : 1 + len(lead)] == lead:
            length = 1 + len(lead)
            break
    else:
        return 0
    experts = nodes[index].shape[0]
    if (experts & (experts - 1) or experts > 512) and experts not in (288, 576):
        return 0
    if ops[length : length + 5] == _NORMED:
        length += 5
    if ops[length : length + 1] == ["scale"]:
        length += 1
    if index + length >= len(nodes):
        return 0
    for node in nodes[index : index + length]:
        _add(keep, nodes[index + length], node, *node.sources)
    return length - 1

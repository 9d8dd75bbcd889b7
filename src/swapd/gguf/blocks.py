"""The parts that llama.cpp's model graphs are made of (src/llama-graph.cpp), as nodes with sizes."""

from __future__ import annotations

from math import prod

from swapd.gguf.graph import Graph, Node, given, like, make, stored, view, write
from swapd.gguf.model import Model
from swapd.gguf.run import Run, cache_bytes, is_quantized
from swapd.gguf.types import TENSOR_TYPES, TensorInfo

ROW_PADDING = 512
"""Quantized rows on a GPU are padded to this many elements (MATRIX_ROW_PADDING in ggml-cuda)."""
MAX_EXPERTS = 512
"""Experts used at once; a header that says more is bounded to it."""
_PLAIN_TYPES = frozenset([0, 1, 24, 25, 26, 27, 28, 30])


def row_padding(tensor: TensorInfo) -> int:
    """Bytes that a quantized tensor takes more on a GPU, for the padding of its last row."""
    kind = TENSOR_TYPES.get(tensor.type_id)
    if kind is None or tensor.type_id in _PLAIN_TYPES or not tensor.shape or not tensor.shape[0] % ROW_PADDING:
        return 0
    return (ROW_PADDING - tensor.shape[0] % ROW_PADDING) // kind.block * kind.block_bytes


class Blocks:
    """Builds a graph piece by piece; ``n`` is the tokens of a batch."""

    def __init__(self, model: Model, run: Run) -> None:
        self.model, self.run, self.graph, self.n = model, run, Graph(), run.tokens
        self._weights: dict[str, Node] = {}

    # --- weights and plain operations

    def weight(self, name: str) -> Node | None:
        """A tensor of the file, wherever it was put; ``None`` if the file has none of that name."""
        info = self.model.header.tensor.get(name)
        if info is None:
            return None
        if name not in self._weights:
            node = stored(info.shape, info.nbytes, self.run.place(info), weight=True)
            node.extra = row_padding(info)
            self._weights[name] = node
        return self._weights[name]

    def of(self, layer: int, role: str) -> Node | None:
        """A layer's weight."""
        return self.weight(f"blk.{layer}.{role}.weight")

    def multiply(self, weight: Node | None, x: Node) -> Node:
        """A matrix times a batch; without the matrix, the batch itself."""
        if weight is None:
            return x
        return make("mul_mat", (_rows(weight), *x.shape[1:]), weight, x)

    def bias(self, x: Node, name: str, ids: Node | None = None) -> Node:
        """Add a bias if the file has it; for experts, each one's own."""
        weight = self.weight(name)
        if weight is None:
            return x
        return like("add", x, weight) if ids is None else like("add_id", x, weight, ids)

    def norm(self, x: Node, weight: Node | None, layer: int = -1) -> Node:
        """RMS norm and its weight; with all layers on GPUs it is pinned to the layer's (``graph_get_cb``)."""
        y = like("norm", x)
        if weight is None:
            return y
        if layer >= 0 and (self.run.full_offload or self.n < 32):
            y.backend = self.run.layer_backend[layer]
        return like("mul", y, weight)

    def head_norm(self, x: Node, layer: int, role: str) -> Node:
        """Norm of each head's Q or K, where the model has it."""
        weight = self.of(layer, role)
        return x if weight is None else self.norm(x, weight, layer)

    # --- inputs

    def embed(self, *, scaled: bool = False) -> Node:
        """Tokens to vectors, and the branches for ready-made vectors, reserved as well (``build_inp_embd``)."""
        n, width, table = self.n, self.model.width, self.weight("token_embd.weight")
        if table is None:
            return given((width, n))
        x = make("get_rows", (width, n), table, given((n,)))
        self.graph.expand(x)
        self.graph.expand(given((width, n)))
        ready = make("dup", (width, n), given((width, n)))
        tokens = make("get_rows", (width, n), table, given((n,)))
        self.graph.expand(write(ready, tokens, given((n,), 8)))
        if scaled:
            x = like("mul", x, given((1, n)))
            self.graph.expand(x)
        return x

    # --- attention

    def cache(self, layer: int, width: int, kind: str) -> Node:
        """One layer's K or V."""
        cells = self.cells(layer) * self.run.streams
        size = int(width * cells * cache_bytes(kind))
        return stored((width, cells), size, self.run.cache_backend(layer), weight=False)

    def cells(self, layer: int) -> int:
        """Cells of each stream in a layer's cache."""
        return self.run.window_cells if self.model.is_windowed(layer) else self.run.cells

    def read_cache(self, cache: Node, layer: int, head: int, heads: int, kind: str) -> Node:
        """What the attention sees of a cache."""
        shape = (head, self.cells(layer), heads, self.run.streams)
        return view(cache, shape, whole=False, element=cache_bytes(kind))

    def attend(self, q: Node, k: Node, v: Node, mask: Node, *, value: int, sinks: Node | None, up: Node | None) -> Node:
        """Attention proper (``build_attn_mha``): flash attention, or scores and softmax; ``up``: MLA's way back."""
        streams = self.run.streams
        q = view(q, (q.shape[0], q.shape[1], q.shape[2] // streams, streams), whole=False)
        q = view(q, (q.shape[0], q.shape[2], q.shape[1], streams), whole=False)
        heads = q.shape[2]
        if self.run.flash:
            out = self._flash(q, k, v, mask, value, sinks)
            if up is not None:
                out = view(out, (value, self.n, heads), whole=False)
                out = make(
                    "cont", (_rows(up), heads, self.n), view(make("mul_mat", (_rows(up), self.n, heads), up, out), (1,))
                )
            out = view(out, (out.shape[0] * heads, self.n))
        else:
            out = self._scores(q, k, v, mask, value, sinks, up)
        self.graph.expand(out)
        return out

    def _flash(self, q: Node, k: Node, v: Node, mask: Node, value: int, sinks: Node | None) -> Node:
        extra = (sinks,) if sinks is not None else ()
        out = make("flash_attn", (value, q.shape[2], q.shape[1], q.shape[3]), q, k, v, mask, *extra)
        out.extra = self._expanded(out.bytes, k, v)
        return out

    def _expanded(self, size: int, k: Node, v: Node) -> int:
        """A quantized cache is expanded to f16 beside the result (``ggml_cuda_flash_attn_ext_get_alloc_size``)."""
        end = size
        for node, kind in ((k, self.run.key_type), (v, self.run.value_type)):
            if kind == "f16" or (node is v and v.root is k.root and end != size):
                continue
            end = -(-end // 128) * 128 + 2 * prod(node.shape)
        return end - size

    def _scores(self, q: Node, k: Node, v: Node, mask: Node, value: int, sinks: Node | None, up: Node | None) -> Node:
        heads, tokens, streams = q.shape[2], q.shape[1], q.shape[3]
        scores = make("mul_mat", (k.shape[1], tokens, heads, streams), k, q)
        extra = (sinks,) if sinks is not None else ()
        scores = like("soft_max", scores, mask, *extra)
        if up is not None:
            v = make("cont", (k.shape[1], value, 1, streams), v, element=cache_bytes(self.run.key_type))
        out = make("mul_mat", (value, tokens, heads, streams), v, scores)
        if up is not None:
            out = make("mul_mat", (_rows(up), tokens, heads, streams), up, out)
        out = make(
            "cont", (out.shape[0] * heads, self.n), view(out, (out.shape[0], heads, tokens, streams), whole=False)
        )
        if not self.run.kv_offload:
            out.backend = self.run.host
        return out

    def rotate(self, x: Node, rotation: Node | None) -> Node:
        """Hadamard rotation before a quantized cache (``llama_mul_mat_hadamard``)."""
        if rotation is None:
            return x
        size = rotation.shape[0]
        flat = view(x, (size, x.bytes // 4 // size))
        return view(like("mul_mat", flat, rotation, flat), x.shape)

    # --- feed forward

    def dense(self, x: Node, layer: int, part: str = "") -> Node:
        """Gate, up, activation, down (``build_ffn``); ``part``: ``_shexp`` for a shared expert."""
        prefix = f"blk.{layer}."
        up = self.bias(self.multiply(self.of(layer, f"ffn_up{part}"), x), f"{prefix}ffn_up{part}.bias")
        gate = self.of(layer, f"ffn_gate{part}")
        if gate is None:
            y = like("unary", up)
        else:
            y = like("glu", self.bias(self.multiply(gate, x), f"{prefix}ffn_gate{part}.bias"), up)
        return self.bias(self.multiply(self.of(layer, f"ffn_down{part}"), y), f"{prefix}ffn_down{part}.bias")

    def routed(self, x: Node, layer: int, *, late_softmax: bool, normed: bool) -> Node:
        """Mixture of experts (``build_moe_ffn``)."""
        ids, weights = self._route(x, layer, late_softmax=late_softmax, normed=normed)
        self.graph.expand(weights)
        experts = self._experts(view(x, (x.shape[0], 1, self.n)), ids, layer)
        experts = like("mul", experts, weights)
        self.graph.expand(experts)
        shares = [view(experts, (x.shape[0], self.n), whole=False) for _ in range(ids.shape[0])]
        for share in shares:
            self.graph.expand(share)
        total = shares[0]
        for share in shares[1:]:
            total = make("add", share.shape, total, share)
            self.graph.expand(total)
        return make("cont", total.shape, total) if len(shares) == 1 else total

    def _route(self, x: Node, layer: int, *, late_softmax: bool, normed: bool) -> tuple[Node, Node]:
        header = self.model.header
        used = min(max(header.per_layer("expert_used_count", layer), 1), MAX_EXPERTS)
        logits = self.multiply(self.of(layer, "ffn_gate_inp"), x)
        logits = self.bias(logits, f"blk.{layer}.ffn_gate_inp.bias")
        probs = logits if late_softmax else like("soft_max", logits)
        select = self.bias(probs, f"blk.{layer}.exp_probs_b.bias")
        ids = view(like("argsort", select), (used, self.n), whole=False)
        weights = make("get_rows", (1, used, self.n), view(probs, (1, logits.shape[0], self.n)), ids)
        if late_softmax:
            weights = view(like("soft_max", view(weights, (used, self.n))), (1, used, self.n))
        if normed:
            flat = view(weights, (used, self.n))
            total = like("clamp", make("sum_rows", (1, self.n), flat))
            weights = view(like("div", flat, total), (1, used, self.n))
        if header.get("expert_weights_scale") not in (None, 0.0, 1.0):
            weights = like("scale", weights)
        return ids, weights

    def _experts(self, x: Node, ids: Node, layer: int) -> Node:
        prefix = f"blk.{layer}."
        both = self.of(layer, "ffn_gate_up_exps")
        if both is not None:
            pair = self.bias(self._selected(both, x, ids), f"{prefix}ffn_gate_up_exps.bias", ids)
            half = (pair.shape[0] // 2, *pair.shape[1:])
            gate, up = view(pair, half, whole=False), view(pair, half, whole=False)
            y = make("glu", half, gate, up)
        else:
            up = self.bias(self._selected(self.of(layer, "ffn_up_exps"), x, ids), f"{prefix}ffn_up_exps.bias", ids)
            gate_weight = self.of(layer, "ffn_gate_exps")
            if gate_weight is None:
                y = like("unary", up)
            else:
                gate = self.bias(self._selected(gate_weight, x, ids), f"{prefix}ffn_gate_exps.bias", ids)
                y = like("glu", gate, up)
        return self.bias(self._selected(self.of(layer, "ffn_down_exps"), y, ids), f"{prefix}ffn_down_exps.bias", ids)

    def _selected(self, weight: Node | None, x: Node, ids: Node) -> Node:
        if weight is None:
            return x
        return make("mul_mat_id", (_rows(weight), ids.shape[0], self.n), weight, x, ids)

    def rotations(self) -> tuple[Node | None, Node | None]:
        """Hadamard matrices for K and V (``llama_kv_cache``'s constructor): only for quantized types."""
        run, model = self.run, self.model
        key, value = None, None
        if is_quantized(run.key_type) and model.key_length and model.key_length % 64 == 0:
            size = 64
            while model.key_length % (2 * size) == 0:
                size *= 2
            key = given((size, size))
        if is_quantized(run.value_type) and not model.is_mla and model.value_length and model.value_length % 64 == 0:
            value = given((64, 64))
        return key, value


def _rows(weight: Node) -> int:
    """Elements of a matrix's result."""
    return weight.shape[1] if len(weight.shape) > 1 else 1

"""Graphs of the known architectures (src/models/*.cpp), and a generic one for the rest."""

from __future__ import annotations

from swapd.gguf.blocks import Blocks
from swapd.gguf.delta_net import DeltaNet
from swapd.gguf.graph import Graph, Node, given, like, make, view, write
from swapd.gguf.model import Model
from swapd.gguf.run import Run

_LATE_OUTPUT = frozenset(["gpt-oss", "qwen35moe", "qwen3next", "qwen35"])
"""Select the tokens that need logits after the last layer, not before its feed forward."""
_NORM_FIRST = frozenset(["qwen35moe", "qwen3next", "qwen35"])
"""Do so after the final norm."""


class _Inputs:
    """What attention layers share: positions, where to store, masks, rotations."""

    def __init__(self, blocks: Blocks) -> None:
        run, model = blocks.run, blocks.model
        element = 2 if run.flash else 4
        values = run.tokens if run.flash else run.tokens * max(model.v_width(0), 1)
        tokens = run.tokens // run.streams
        self.positions = given((run.tokens * (4 if model.header.get("rope.dimension_sections") else 1),))
        self.slots = [(given((run.tokens,), 8), given((values,), 8)) for _ in range(2)]
        self.masks = [given((cells, tokens, 1, run.streams), element) for cells in (run.cells, run.window_cells)]
        self.rotations = [blocks.rotations() for _ in range(2)]


def build(model: Model, run: Run, layers: list[int]) -> Graph:
    """The graph of a batch through these layers and the output head."""
    blocks = Blocks(model, run)
    x = blocks.embed(scaled=model.arch == "gemma3")
    inputs = _Inputs(blocks)
    wanted = given((run.outputs,))
    recurrent = DeltaNet(blocks)
    for layer in layers:
        last = layer == layers[-1] and model.arch not in _LATE_OUTPUT
        x = _layer(blocks, inputs, recurrent, x, layer, wanted if last else None)
    _output(blocks, x, wanted)
    return blocks.graph


def build_mtp(model: Model, run: Run, layer: int) -> Graph:
    """The graph of a prediction head: its own input projection, one layer, the model's output head (``graph_mtp``)."""
    blocks = Blocks(model, run)
    width, n = model.width, run.tokens
    table = blocks.weight("token_embd.weight")
    tokens = make("get_rows", (width, n), table, given((n,))) if table is not None else given((width, n))
    hidden = blocks.norm(given((width, n)), blocks.of(layer, "nextn.hnorm"), layer)
    x = make("concat", (2 * width, n), blocks.norm(tokens, blocks.of(layer, "nextn.enorm"), layer), hidden)
    inputs = _Inputs(blocks)
    x = blocks.multiply(blocks.of(layer, "nextn.eh_proj"), x)
    y = blocks.norm(x, blocks.of(layer, "attn_norm"), layer)
    y = _latent(blocks, inputs, y, layer) if model.is_mla else _gated(blocks, inputs, y, layer)
    x = _feed_forward(blocks, y, x, layer)
    x = blocks.norm(x, blocks.of(layer, "nextn.shared_head_norm") or blocks.weight("output_norm.weight"))
    x.is_output = True
    x = make("get_rows", (width, run.outputs), x, given((run.outputs,)))
    own = blocks.of(layer, "nextn.shared_head_head")
    logits = blocks.multiply(own or blocks.weight("output.weight") or table, x)
    logits.is_output = True
    blocks.graph.expand(logits)
    return blocks.graph


def _output(blocks: Blocks, x: Node, wanted: Node) -> None:
    """Final norm, output head (``t_h_nextn``, ``t_embd`` and ``t_logits`` are kept to the end)."""
    model, run = blocks.model, blocks.run
    norm = blocks.weight("output_norm.weight")
    if model.arch == "gpt-oss":
        x.is_output = True
        x = make("get_rows", (x.shape[0], run.outputs), x, wanted)
    x = blocks.norm(x, norm)
    x.is_output = True
    if model.arch in _NORM_FIRST:
        x = make("get_rows", (x.shape[0], run.outputs), x, wanted)
        x.is_output = True
    logits = blocks.multiply(blocks.weight("output.weight") or blocks.weight("token_embd.weight"), x)
    logits.is_output = True
    blocks.graph.expand(logits)


def _layer(blocks: Blocks, inputs: _Inputs, recurrent: DeltaNet, x: Node, layer: int, wanted: Node | None) -> Node:
    model = blocks.model
    y = blocks.norm(x, blocks.of(layer, "attn_norm"), layer)
    if model.arch in _NORM_FIRST:
        blocks.graph.expand(y)
    if model.is_recurrent(layer):
        y = recurrent.layer(y, layer)
    elif model.is_mla:
        y = _latent(blocks, inputs, y, layer)
    elif model.arch in _NORM_FIRST:
        y = _gated(blocks, inputs, y, layer)
    else:
        y = _plain(blocks, inputs, y, layer)
    if wanted is not None:
        y, x = (make("get_rows", (t.shape[0], wanted.shape[0]), t, wanted) for t in (y, x))
        blocks.n = wanted.shape[0]
    return _feed_forward(blocks, y, x, layer)


def _feed_forward(blocks: Blocks, y: Node, x: Node, layer: int) -> Node:
    gemma = blocks.model.arch == "gemma3"
    if gemma:
        y = blocks.norm(y, blocks.of(layer, "post_attention_norm"), layer)
    residual = like("add", y, x)
    norm = blocks.of(layer, "ffn_norm")
    if norm is None and not gemma:
        norm = blocks.of(layer, "post_attention_norm")
    y = _mixture(blocks, blocks.norm(residual, norm, layer), layer)
    if gemma:
        y = blocks.norm(y, blocks.of(layer, "post_ffw_norm"))
    return like("add", y, residual)


def _mixture(blocks: Blocks, x: Node, layer: int) -> Node:
    """Experts and the shared expert beside them, or a dense feed forward."""
    if blocks.of(layer, "ffn_gate_inp") is None:
        return blocks.dense(x, layer)
    model = blocks.model
    normed = model.arch not in ("gpt-oss", "deepseek2") or bool(model.header.get("expert_weights_norm"))
    y = blocks.routed(x, layer, late_softmax=model.arch == "gpt-oss", normed=normed)
    if blocks.of(layer, "ffn_up_shexp") is None:
        return y
    shared = blocks.dense(x, layer, "_shexp")
    gate = blocks.of(layer, "ffn_gate_inp_shexp")
    if gate is not None:
        shared = like("mul", shared, like("unary", make("mul_mat", (1, blocks.n), gate, x)))
    return like("add", y, shared)


def _heads(blocks: Blocks, x: Node, layer: int, which: str, length: int) -> Node:
    """One of Q, K, V, split into heads."""
    y = blocks.multiply(blocks.of(layer, f"attn_{which}"), x)
    y = blocks.bias(y, f"blk.{layer}.attn_{which}.bias")
    return view(y, (length, y.shape[0] // length, blocks.n))


def _plain(blocks: Blocks, inputs: _Inputs, x: Node, layer: int) -> Node:
    """Attention with grouped heads."""
    model = blocks.model
    fused = blocks.of(layer, "attn_qkv")
    if fused is not None and blocks.of(layer, "attn_q") is None:
        q, k, v = _fused(blocks, blocks.multiply(fused, x), layer)
    else:
        q = _heads(blocks, x, layer, "q", model.key_length)
        k = _heads(blocks, x, layer, "k", model.key_length)
        v = _heads(blocks, x, layer, "v", model.value_length)
    factors = blocks.weight("rope_freqs.weight")
    extra = (inputs.positions,) if factors is None else (inputs.positions, factors)
    q = like("rope", blocks.head_norm(q, layer, "attn_q_norm"), *extra)
    k = like("rope", blocks.head_norm(k, layer, "attn_k_norm"), *extra)
    if model.arch == "gemma3":
        q = like("scale", q)
    y = _stored_attention(blocks, inputs, (q, k, v), layer)
    y = blocks.multiply(blocks.of(layer, "attn_output"), y)
    return blocks.bias(y, f"blk.{layer}.attn_output.bias")


def _fused(blocks: Blocks, qkv: Node, layer: int) -> tuple[Node, Node, Node]:
    model = blocks.model
    q = view(qkv, (model.key_length, model.heads(layer), blocks.n), whole=False)
    k = view(qkv, (model.key_length, model.kv_heads(layer), blocks.n), whole=False)
    v = view(qkv, (model.value_length, model.kv_heads(layer), blocks.n), whole=False)
    return q, k, v


def _stored_attention(blocks: Blocks, inputs: _Inputs, qkv: tuple[Node, Node, Node], layer: int) -> Node:
    """Store K and V, attend (``build_attn`` for ``kv`` and ``kv_iswa`` inputs)."""
    model, run, graph = blocks.model, blocks.run, blocks.graph
    windowed = model.is_windowed(layer)
    rotate_k, rotate_v = inputs.rotations[windowed]
    q, k, v = (blocks.rotate(t, r) for t, r in zip(qkv, (rotate_k, rotate_k, rotate_v), strict=True))
    for node in (q, k, v) if model.window else (q, v, k):
        graph.expand(node)
    k_slots, v_slots = inputs.slots[windowed]
    k_cache = blocks.cache(layer, model.k_width(layer), run.key_type)
    v_cache = blocks.cache(layer, model.v_width(layer), run.value_type)
    graph.expand(write(k_cache, view(k, (model.k_width(layer), blocks.n)), k_slots))
    graph.expand(write(v_cache, view(v, (model.v_width(layer), blocks.n)), v_slots))
    heads = model.kv_heads(layer)
    keys = blocks.read_cache(k_cache, layer, model.key_length, heads, run.key_type)
    values = blocks.read_cache(v_cache, layer, model.value_length, heads, run.value_type)
    sinks = blocks.of(layer, "attn_sinks")
    y = blocks.attend(q, keys, values, inputs.masks[windowed], value=model.value_length, sinks=sinks, up=None)
    return blocks.rotate(y, rotate_v)


def _gated(blocks: Blocks, inputs: _Inputs, x: Node, layer: int) -> Node:
    """Attention whose Q projection brings a gate as well (Qwen3-Next and after)."""
    model, n = blocks.model, blocks.n
    length, heads = model.key_length, model.heads(layer)
    both = blocks.multiply(blocks.of(layer, "attn_q"), x)
    k = blocks.multiply(blocks.of(layer, "attn_k"), x)
    v = blocks.multiply(blocks.of(layer, "attn_v"), x)
    q = blocks.head_norm(view(both, (length, heads, n), whole=False), layer, "attn_q_norm")
    k = blocks.head_norm(view(k, (length, model.kv_heads(layer), n)), layer, "attn_k_norm")
    gate = make("cont", (length * heads, n), view(both, (length, heads, n), whole=False))
    v = view(v, (model.value_length, model.kv_heads(layer), n))
    q, k = like("rope", q, inputs.positions), like("rope", k, inputs.positions)
    y = _stored_attention(blocks, inputs, (q, k, v), layer)
    return blocks.multiply(blocks.of(layer, "attn_output"), like("mul", y, like("unary", gate)))


def _latent(blocks: Blocks, inputs: _Inputs, x: Node, layer: int) -> Node:
    """Multi-head latent attention in its absorbed form: one K row a token, V is a part of it (DeepSeek)."""
    model, run, graph, n = blocks.model, blocks.run, blocks.graph, blocks.n
    rank, rope = model.header.number("attention.kv_lora_rank"), model.header.number("rope.dimension_count")
    head, heads = model.header.number("attention.key_length_mla"), model.heads(layer)
    if blocks.of(layer, "attn_q") is not None:
        q = blocks.multiply(blocks.of(layer, "attn_q"), x)
    else:
        q = blocks.norm(blocks.multiply(blocks.of(layer, "attn_q_a"), x), blocks.of(layer, "attn_q_a_norm"), layer)
        q = blocks.multiply(blocks.of(layer, "attn_q_b"), q)
    q = view(q, (head, heads, n))
    latent = blocks.multiply(blocks.of(layer, "attn_kv_a_mqa"), x)
    k_rope = like("rope", view(latent, (rope, 1, n), whole=False), inputs.positions)
    latent = blocks.norm(view(latent, (rank, n), whole=False), blocks.of(layer, "attn_kv_a_norm"), layer)
    q_rope = like("rope", view(q, (rope, heads, n), whole=False), inputs.positions)
    plain = view(view(q, (head - rope, heads, n), whole=False), (head - rope, n, heads), whole=False)
    down = blocks.of(layer, "attn_k_b")
    absorbed = make("mul_mat", (rank, n, heads), *((down, plain) if down is not None else (plain,)))
    q = make("concat", (rank + rope, heads, n), view(absorbed, (rank, heads, n), whole=False), q_rope)
    latent = view(latent, (rank, 1, n))
    k = make("concat", (rank + rope, 1, n), latent, k_rope)
    for node in (q, latent, k):
        graph.expand(node)
    cache = blocks.cache(layer, rank + rope, run.key_type)
    graph.expand(write(cache, view(k, (rank + rope, n)), inputs.slots[0][0]))
    keys = blocks.read_cache(cache, layer, rank + rope, 1, run.key_type)
    values = blocks.read_cache(cache, layer, rank, 1, run.key_type)
    y = blocks.attend(q, keys, values, inputs.masks[0], value=rank, sinks=None, up=blocks.of(layer, "attn_v_b"))
    return blocks.multiply(blocks.of(layer, "attn_output"), y)

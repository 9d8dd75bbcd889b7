"""Recurrent layers: gated delta net with a short convolution (src/models/delta-net-base.cpp)."""

from __future__ import annotations

from swapd.gguf.blocks import Blocks
from swapd.gguf.graph import Node, given, like, make, stored, view, write


class DeltaNet:
    """Builds the linear attention layers of one graph."""

    def __init__(self, blocks: Blocks) -> None:
        header = blocks.model.header
        self.blocks, self.run, self.model = blocks, blocks.run, blocks.model
        self.copies = given((self.run.sequences,))
        self.key_heads = header.number("ssm.group_count")
        self.value_heads = max(header.number("ssm.time_step_rank"), 1)
        self.key = header.number("ssm.state_size")
        self.value = header.number("ssm.inner_size") // self.value_heads
        self.inner = header.number("ssm.inner_size")
        self.per_sequence = self.run.tokens // self.run.sequences

    def layer(self, x: Node, layer: int) -> Node:
        """One layer, from the norm to the output projection."""
        blocks = self.blocks
        mixed = blocks.multiply(blocks.of(layer, "attn_qkv"), x)
        mixed = view(mixed, (mixed.shape[0], self.per_sequence, self.run.sequences))
        z = blocks.multiply(blocks.of(layer, "attn_gate"), x)
        beta, gate = self._rates(x, layer)
        conv = self._convolved(mixed, layer)
        states = self._states(self.model.delta_state, layer)
        state = self._gathered(states, self.model.delta_state)
        state = view(state, (self.value, self.value, self.value_heads, self.run.sequences))
        kernel = blocks.of(layer, "ssm_conv1d")
        extra = (kernel,) if kernel is not None else ()
        conv = like(
            "unary", make("ssm_conv", (self.model.conv_channels, self.per_sequence, self.run.sequences), conv, *extra)
        )
        y = self._attention(conv, gate, beta, state, states)
        y = blocks.norm(y, blocks.of(layer, "ssm_norm"), layer)
        y = like("mul", y, like("unary", view(z, y.shape)))
        y = view(y, (self.inner, self.per_sequence, self.run.sequences))
        return view(blocks.multiply(blocks.of(layer, "ssm_out"), y), (self.model.width, blocks.n))

    def _rates(self, x: Node, layer: int) -> tuple[Node, Node]:
        """How fast each head learns and forgets."""
        blocks, shape = self.blocks, (self.value_heads, self.per_sequence, self.run.sequences)
        four = (1, *shape)
        both = blocks.of(layer, "ssm_ba")
        if both is not None:
            mixed = blocks.multiply(both, x)
            beta = view(like("unary", make("cont", shape, view(mixed, shape, whole=False))), four)
            alpha = make("cont", shape, view(mixed, shape, whole=False))
        else:
            beta = like("unary", view(blocks.multiply(blocks.of(layer, "ssm_beta"), x), four))
            alpha = view(blocks.multiply(blocks.of(layer, "ssm_alpha"), x), shape)
        alpha = like("unary", blocks.bias(alpha, f"blk.{layer}.ssm_dt.bias"))
        scale = blocks.weight(f"blk.{layer}.ssm_a")
        return beta, view(like("mul", alpha, scale) if scale is not None else alpha, four)

    def _states(self, size: int, layer: int) -> Node:
        """A layer's states of all sequences."""
        rows = self.run.sequences * (1 + self.run.snapshots)
        return stored((size, rows), 4 * size * rows, self.run.cache_backend(layer), weight=False)

    def _gathered(self, states: Node, size: int) -> Node:
        """The states of this batch's sequences (``build_rs``)."""
        graph, run = self.blocks.graph, self.run
        flat = view(states, states.shape)
        graph.expand(write(view(flat, (0,)), op="scale"))
        everything = make("get_rows", (size, run.sequences), flat, self.copies)
        mine = view(everything, (size, run.sequences))
        graph.expand(mine)
        rest = view(everything, (size, 0))
        graph.expand(write(view(states, (size, 0)), rest, op="cpy"))
        return mine

    def _convolved(self, mixed: Node, layer: int) -> Node:
        """The convolution's input: old tail and new tokens; the new tail is stored (``build_conv_state``)."""
        run, channels = self.run, self.model.conv_channels
        tail = self.model.conv_state // max(channels, 1)
        states = self._states(self.model.conv_state, layer)
        old = view(self._gathered(states, self.model.conv_state), (tail, channels, run.sequences))
        new = view(mixed, (self.per_sequence, channels, run.sequences), whole=False)
        joined = make("concat", (tail + self.per_sequence, channels, run.sequences), old, new)
        for _ in range(1 + run.snapshots):
            kept = view(joined, (tail, channels, run.sequences), whole=False)
            self.blocks.graph.expand(write(view(states, (self.model.conv_state, run.sequences)), kept, op="cpy"))
        return joined

    def _attention(self, conv: Node, gate: Node, beta: Node, state: Node, states: Node) -> Node:
        run = self.run
        tokens = self.per_sequence
        q = self._unit(conv)
        k = self._unit(conv)
        v = view(conv, (self.value, self.value_heads, tokens, run.sequences), whole=False)
        if self.model.arch == "qwen3next" and self.key_heads != self.value_heads:
            q, k = self._repeated(q), self._repeated(k)
        rows = tokens * run.sequences + self.value * run.sequences * (1 + run.snapshots)
        out = make("delta_net", (self.value * self.value_heads, rows), q, k, v, gate, beta, state)
        y = view(out, (self.value, self.value_heads, tokens, run.sequences))
        after = view(out, (self.model.delta_state, run.sequences))
        self.blocks.graph.expand(write(view(states, (self.model.delta_state, run.sequences)), after, op="cpy"))
        return y

    def _unit(self, conv: Node) -> Node:
        part = view(conv, (self.key, self.key_heads, self.per_sequence, self.run.sequences), whole=False)
        return like("scale", like("norm", part))

    def _repeated(self, x: Node) -> Node:
        times = self.value_heads // max(self.key_heads, 1)
        flat = view(x, (self.key, 1, self.key_heads, self.blocks.n))
        wide = make("repeat", (self.key, times, self.key_heads, self.blocks.n), flat)
        return view(wide, (self.key, self.value_heads, self.per_sequence, self.run.sequences))

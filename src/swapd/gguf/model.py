"""What kind of model a header describes, as far as memory is concerned: layers, heads, windows, states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from swapd.gguf.types import GgufHeader, TensorInfo

KNOWN = frozenset(["llama", "qwen3", "qwen3moe", "qwen35moe", "qwen3next", "gpt-oss", "gemma3", "deepseek2"])
"""Architectures whose graph is described exactly; any other is estimated from its tensors, erring high."""
_WINDOW_PERIOD = {"gemma3": 6, "gpt-oss": 2}
_HYBRID = frozenset(["qwen35moe", "qwen3next", "qwen35"])


@dataclass(frozen=True)
class Model:
    """A header read as llama.cpp's ``llama_hparams`` reads it (src/llama-hparams.cpp, src/models/*.cpp)."""

    header: GgufHeader

    @property
    def arch(self) -> str:
        """The architecture's name."""
        return self.header.architecture

    @cached_property
    def known(self) -> bool:
        """Whether the graph is described exactly."""
        return self.arch in KNOWN

    @cached_property
    def mtp_layers(self) -> int:
        """Layers at the end that only predict further tokens; not run, and not loaded without ``draft-mtp``."""
        return max(self.header.number("nextn_predict_layers"), 0)

    @cached_property
    def all_layers(self) -> int:
        """Layers in the file; an absurd count is bounded by the tensors that are there, or 0."""
        return max(min(self.header.block_count, len(self.header.tensors)), 0)

    @cached_property
    def layers(self) -> int:
        """Layers of the model itself."""
        return max(self.all_layers - self.mtp_layers, 0)

    @cached_property
    def width(self) -> int:
        """Elements of a token's embedding."""
        return self.header.number("embedding_length")

    @cached_property
    def vocab(self) -> int:
        """Rows of the output head."""
        return self.header.vocab_size

    def heads(self, layer: int) -> int:
        """Query heads."""
        return self.header.per_layer("attention.head_count", layer)

    def kv_heads(self, layer: int) -> int:
        """Heads of K and V (GQA)."""
        return self.header.per_layer("attention.head_count_kv", layer, self.heads(layer))

    @cached_property
    def is_mla(self) -> bool:
        """Latent attention: one row a token holds K and V (DeepSeek)."""
        return bool(self.header.number("attention.key_length_mla") and self.header.number("attention.kv_lora_rank"))

    @cached_property
    def key_length(self) -> int:
        """Elements of one K head."""
        return self.header.number("attention.key_length") or max(self.width // max(self.heads(0), 1), 1)

    @cached_property
    def value_length(self) -> int:
        """Elements of one V head."""
        return self.header.number("attention.value_length") or max(self.width // max(self.heads(0), 1), 1)

    def k_width(self, layer: int) -> int:
        """Elements of K that one token takes in one layer's cache."""
        return self.key_length * (1 if self.is_mla else self.kv_heads(layer))

    def v_width(self, layer: int) -> int:
        """Elements of V likewise; none with latent attention."""
        return 0 if self.is_mla else self.value_length * self.kv_heads(layer)

    @cached_property
    def window(self) -> int:
        """Tokens of the sliding window; 0 = none."""
        return self.header.number("attention.sliding_window") if self.arch in _WINDOW_PERIOD else 0

    def is_windowed(self, layer: int) -> bool:
        """Whether a layer sees only the window (``llama_hparams::set_swa_pattern``: the last of a period sees all)."""
        if not self.window or layer >= self.layers:
            return False
        given = self.header.get("attention.sliding_window_pattern")
        if isinstance(given, tuple):
            return layer < len(given) and bool(given[layer])
        period = self.header.number("attention.sliding_window_pattern", _WINDOW_PERIOD[self.arch])
        return period == 0 or layer % period < period - 1

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer keeps a state of fixed size instead of K and V (gated delta net)."""
        if self.arch not in _HYBRID or layer >= self.layers:
            return False
        given = self.header.get("attention.recurrent_layers")
        if isinstance(given, tuple):
            return layer < len(given) and bool(given[layer])
        return (layer + 1) % max(self.header.number("full_attention_interval", 4), 1) != 0

    @cached_property
    def conv_channels(self) -> int:
        """Channels of a recurrent layer's convolution."""
        header = self.header
        return header.number("ssm.inner_size") + 2 * header.number("ssm.group_count") * header.number("ssm.state_size")

    @cached_property
    def conv_state(self) -> int:
        """Elements of a sequence's convolution state in one layer (``n_embd_r``)."""
        return max(self.header.number("ssm.conv_kernel") - 1, 0) * self.conv_channels

    @cached_property
    def delta_state(self) -> int:
        """Elements of a sequence's recurrent state in one layer (``n_embd_s``)."""
        return self.header.number("ssm.state_size") * self.header.number("ssm.inner_size")

    @cached_property
    def by_layer(self) -> dict[int, list[TensorInfo]]:
        """Tensors of each layer."""
        groups: dict[int, list[TensorInfo]] = {}
        for tensor in self.header.tensors:
            layer = layer_of(tensor.name)
            if layer >= 0:
                groups.setdefault(layer, []).append(tensor)
        return groups

    @cached_property
    def is_tied(self) -> bool:
        """No output head of its own: the embedding serves as one."""
        return "output.weight" not in self.header.tensor


def layer_of(name: str) -> int:
    """The layer a tensor belongs to by its name; -1 for none."""
    if not name.startswith("blk."):
        return -1
    digits = name[4 : name.find(".", 4)]
    return int(digits) if digits.isdecimal() and len(digits) < 8 else -1

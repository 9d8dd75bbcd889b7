"""A compute graph as llama.cpp would build it, reduced to what decides its memory.

A node knows its bytes, its sources, whether it is a view, and whether its
operation may overwrite a source. Nodes are ordered as ggml orders them
(``ggml_build_forward_expand``: depth first, sources left to right).
"""

from __future__ import annotations

from math import prod

IN_PLACE = frozenset(["scale", "add", "add_id", "sub", "mul", "div", "unary", "rope", "norm", "clamp", "soft_max"])
"""Operations that may take over a source's memory (``ggml_op_can_inplace`` in ggml-alloc.c)."""
VIEW = "view"
"""Reshape, view, permute and transpose: no memory and no backend of their own."""
NONE = "none"
"""A leaf: a weight, a cache, or an input."""

UNASSIGNED = -1


class Node:
    """One tensor of the graph; sizes in bytes.

    ``root``: the tensor it is a view of. ``extra``: bytes that a GPU adds for scratch
    or padding. ``external``: it has memory already (weights, caches) on ``backend``.
    """

    __slots__ = (
        "backend",
        "bytes",
        "external",
        "extra",
        "is_input",
        "is_output",
        "is_weight",
        "layout",
        "op",
        "root",
        "seen",
        "shape",
        "sources",
    )

    def __init__(
        self, op: str, shape: tuple[int, ...], size: int, sources: list[Node], root: Node | None = None
    ) -> None:
        self.op, self.shape, self.bytes, self.sources, self.root = op, shape, size, sources, root
        self.layout: object = None
        self.extra = 0
        self.backend = UNASSIGNED
        self.external = self.is_weight = self.is_input = self.is_output = self.seen = False

    @property
    def rows(self) -> int:
        """Everything but the first dimension."""
        return prod(self.shape[1:])


def _layout(shape: tuple[int, ...], element: float) -> tuple[object, ...]:
    """What two tensors must share for one to overwrite the other (``ggml_are_same_layout``)."""
    return (element, *shape, *(1,) * (4 - len(shape)))


class Graph:
    """Nodes and leafs in ggml's order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leafs: list[Node] = []

    def expand(self, node: Node) -> None:
        """Append what this node needs, then the node."""
        if node.seen:
            return
        node.seen = True
        for source in node.sources:
            if not source.seen:
                self.expand(source)
        (self.leafs if node.op == NONE else self.nodes).append(node)


def leaf(shape: tuple[int, ...], element: float = 4) -> Node:
    """A tensor without sources."""
    node = Node(NONE, shape, int(prod(shape) * element), [])
    node.layout = _layout(shape, element)
    return node


def given(shape: tuple[int, ...], element: float = 4) -> Node:
    """An input, filled in before each run."""
    node = leaf(shape, element)
    node.is_input = True
    return node


def stored(shape: tuple[int, ...], size: int, backend: int, *, weight: bool) -> Node:
    """A weight or a cache: its memory is counted elsewhere."""
    node = Node(NONE, shape, size, [])
    node.external, node.is_weight, node.backend = True, weight, backend
    return node


def make(op: str, shape: tuple[int, ...], *sources: Node, element: float = 4) -> Node:
    """The result of an operation."""
    node = Node(op, shape, int(prod(shape) * element), list(sources))
    node.layout = _layout(shape, element)
    return node


def like(op: str, source: Node, *others: Node) -> Node:
    """An operation whose result has the shape of its first source."""
    return make(op, source.shape, source, *others)


def view(source: Node, shape: tuple[int, ...], *, whole: bool = True, element: float = 4) -> Node:
    """The same memory seen with another shape; ``whole=False`` if its rows lie apart."""
    node = Node(VIEW, shape, int(prod(shape) * element), [source], source.root or source)
    node.layout = _layout(shape, element) if whole else object()
    return node


def write(target: Node, *sources: Node, op: str = "set_rows") -> Node:
    """An operation that writes into an existing tensor and yields a view of it."""
    node = Node(op, target.shape, target.bytes, [*sources, target], target.root or target)
    node.layout = target.layout or object()
    return node

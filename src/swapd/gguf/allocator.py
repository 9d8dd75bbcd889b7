"""How ggml-alloc packs a graph's tensors: best fit over free blocks, freed after the last use.

The sizes of compute buffers follow from this alone (ggml/src/ggml-alloc.c): nothing here is fitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from swapd.gguf.graph import IN_PLACE, NONE, Node

ENDLESS = 1 << 62


class Arena:
    """One buffer; ``peak`` is the size it must have."""

    def __init__(self, alignment: int) -> None:
        self.alignment, self.peak = alignment, 0
        self._starts = [0]
        self._sizes = [ENDLESS]

    def take(self, size: int) -> int:
        """The smallest free block that fits (the last of equals); the endless one at the end only if none does."""
        size = self.padded(size)
        best, best_size = len(self._sizes) - 1, ENDLESS
        for index in range(best):
            block = self._sizes[index]
            if size <= block <= best_size:
                best, best_size = index, block
        start = self._starts[best]
        if self._sizes[best] == size:
            del self._starts[best], self._sizes[best]
        else:
            self._starts[best] += size
            self._sizes[best] -= size
        self.peak = max(self.peak, start + size)
        return start

    def give(self, start: int, size: int) -> None:
        """Free a block and join it with its neighbours."""
        size = self.padded(size)
        if not size:
            return
        starts, sizes = self._starts, self._sizes
        index = bisect_left(starts, start)
        if index and starts[index - 1] + sizes[index - 1] == start:
            index -= 1
            sizes[index] += size
        else:
            starts.insert(index, start)
            sizes.insert(index, size)
        if index + 1 < len(starts) and starts[index] + sizes[index] == starts[index + 1]:
            sizes[index] += sizes.pop(index + 1)
            del starts[index + 1]

    def padded(self, size: int) -> int:
        """Rounded up to the alignment."""
        return -(-size // self.alignment) * self.alignment


class _Use:
    """What is known of one tensor while the graph is walked."""

    __slots__ = ("arena", "children", "owned", "start", "views")

    def __init__(self) -> None:
        self.children = self.views = self.arena = self.start = 0
        self.owned = False


class Allocator:
    """Walks a graph once; arenas by backend, host memory last."""

    def __init__(self, backends: int, gpu_alignment: int = 128, host_alignment: int = 32) -> None:
        self.host = backends - 1
        self.arenas = [Arena(gpu_alignment) for _ in range(self.host)] + [Arena(host_alignment)]
        self._uses: dict[Node, _Use] = {}

    def run(self, leafs: Sequence[Node], nodes: Sequence[Node], backends: Sequence[int]) -> list[int]:
        """Bytes of each backend's buffer; ``backends[i]`` says where node i lives."""
        for node in leafs:
            self._place(node, node.backend)
        self._count(nodes, backends)
        for node, backend in zip(nodes, backends, strict=True):
            for source in node.sources:
                self._place(source, backend)
            self._place(node, backend)
            for source in node.sources:
                self._release(source)
        return [arena.peak for arena in self.arenas]

    def _use(self, node: Node) -> _Use:
        use = self._uses.get(node)
        if use is None:
            use = self._uses[node] = _Use()
        return use

    def _count(self, nodes: Sequence[Node], backends: Sequence[int]) -> None:
        for node, backend in zip(nodes, backends, strict=True):
            if node.root is not None and node.op != NONE:
                self._use(node.root).views += 1
            if node.is_input:
                self._place(node, backend)
            for source in node.sources:
                self._use(source).children += 1
                if source.is_input:
                    self._place(source, backend)

    def _place(self, node: Node, backend: int) -> None:
        if node.external or node.root is not None:
            return
        use = self._use(node)
        if use.owned:
            return
        use.owned = True
        if node.op in IN_PLACE and self._overwrites(node, use):
            return
        use.arena = backend
        use.start = self.arenas[backend].take(self._size(node, backend))

    def _overwrites(self, node: Node, use: _Use) -> bool:
        """Take over a source's memory if nothing else needs it and it looks the same; never that of a view."""
        for source in node.sources:
            parent = self._uses.get(source)
            if parent is None or not parent.owned or source.is_output or source.layout != node.layout:
                continue
            if parent.children != 1 or parent.views:
                continue
            use.arena, use.start = parent.arena, parent.start
            parent.owned = False
            self._free_rest(node, source, use)
            return True
        return False

    def _free_rest(self, node: Node, whole: Node, use: _Use) -> None:
        arena = self.arenas[use.arena]
        kept = arena.padded(self._size(node, use.arena))
        had = arena.padded(self._size(whole, use.arena))
        if had > kept:
            arena.give(use.start + kept, had - kept)

    def _release(self, node: Node) -> None:
        use = self._use(node)
        use.children -= 1
        if use.children or use.views:
            return
        if node.root is None:
            if use.owned:
                self._free(node, use)
            return
        root = self._use(node.root)
        root.views -= 1
        if not root.views and not root.children and root.owned:
            self._free(node.root, root)

    def _free(self, node: Node, use: _Use) -> None:
        if node.is_output:
            return
        self.arenas[use.arena].give(use.start, self._size(node, use.arena))
        use.owned = False

    def _size(self, node: Node, backend: int) -> int:
        return node.bytes + (node.extra if backend != self.host else 0)

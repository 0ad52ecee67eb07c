"""A walk over the tree in the order of paths, which is not the order of the tree.

``/a-b`` lies between ``/a`` and ``/a/b``, because ``-`` comes before ``/``. So the walk keeps a
frontier: a heap of the paths that were listed and not yet read. The smallest path is next, because
every unknown path lies below a path in the heap.

The walk reads ahead: it reads nodes and lists their children, always the smallest path first. The
results wait in the *window*, in order, until all earlier ones have been returned. A path is read
only while few in the window come before it, so memory is bounded by some nodes for each level of
the tree, and by the names of directories that have been begun.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

from ....ops.paths import hidden, parent
from ....ops.results import Range
from ..wire.errors import NO_AUTH, NO_NODE
from ..wire.jute import EXISTS, GET_CHILDREN, GET_DATA, ZNode
from .readahead import Read, ReadAhead

__all__ = ["TreeWalk"]

# The nodes read ahead: at most this many, or as many as have this many bytes, but at least a few.
_WINDOW: Final = 2048
_WINDOW_BYTES: Final = 8 << 20
_WINDOW_LEAST: Final = 16
# The limit of names held for directories listed ahead.
_NAMES: Final = 1 << 17


class _Frontier:
    """Paths that were listed and not yet taken. It returns the smallest one."""

    def __init__(self) -> None:
        # For each directory: its next path, the beginning of all its paths, and its other names in
        # falling order. These are names, not paths, because there may be millions.
        self._heap: list[tuple[str, str, list[str]]] = []
        self.names = 0

    @property
    def first(self) -> str | None:
        return self._heap[0][0] if self._heap else None

    def push(self, stem: str, names: list[str]) -> None:
        if names:
            self.names += len(names)
            names.sort(reverse=True)
            heappush(self._heap, (stem + names.pop(), stem, names))

    def pop(self) -> str:
        path, stem, names = self._heap[0]
        if names:
            heapreplace(self._heap, (stem + names.pop(), stem, names))
        else:
            heappop(self._heap)
        self.names -= 1
        return path


class TreeWalk:
    """One walk over the nodes under a prefix and within a range. For one thread.

    Args:
        ahead: the reads of the walk.
        prefix: the path where it begins; ``/`` for everything.
        within: the range. Paths outside it are left out, and subtrees wholly outside are not read.
        values: whether the values are wanted.
        hides: says, for a path and a name below it, whether the walk leaves out that node and
            everything below it.
        forgiving: whether nodes below the prefix that may not be read are left out, with all below
            them, instead of ending the walk.

    Attributes:
        unreadable: the nodes that were left out since it was last emptied, in the range or above
            its start.
        kept: paths with something below them that is hidden from callers, as far as the walk has
            come.
    """

    def __init__(
        self,
        ahead: ReadAhead,
        prefix: str,
        within: Range,
        *,
        values: bool,
        hides: Callable[[str, str], bool] = hidden,
        forgiving: bool = False,
    ) -> None:
        self.kept: set[str] = set()
        self.unreadable: list[str] = []
        self._hides = hides
        self._prefix = prefix
        self._forgiving = forgiving
        self._ahead = ahead
        self._within = within
        self._opcode = GET_DATA if values else EXISTS
        self._frontier = _Frontier()
        self._frontier.push(prefix, [""])
        # The paths that were requested and not yet returned, in order.
        self._window: list[str] = []
        # The nodes of the ready ones; None for a node that has vanished.
        self._ready: dict[str, ZNode | None] = {}
        self._value_bytes = 0
        # Nodes that were read, but whose children are not listed yet. `_unlisted` is a heap of
        # those whose children were not requested yet.
        self._parents: dict[str, ZNode] = {}
        self._unlisted: list[str] = []
        self._names_asked = 0

    def pages(self) -> Iterator[list[tuple[str, ZNode]]]:
        """Yield paths with their nodes in order, including nodes without a value.

        Raises:
            MetadataStoreError: a request failed, or a node may not be read.
        """
        ahead = self._ahead
        ahead.fill(self._next_read)
        while ahead.under_way:
            for read, found in ahead.collect():
                if isinstance(found, int) and found != NO_NODE:
                    left_out = found == NO_AUTH and read.path != self._prefix
                    if not (self._forgiving and left_out):
                        raise ahead.refused(found, read.path)
                    start = self._within.start
                    if read.path in self._within or (start or "").startswith(f"{read.path}/"):
                        self.unreadable.append(read.path)
                if read.opcode == GET_CHILDREN:
                    self._names_asked -= read.children
                    self._list(read.path, found if isinstance(found, list) else [])
                else:
                    self._note(read.path, found if isinstance(found, ZNode) else None)
            page = self._page()
            ahead.fill(self._next_read)
            if page or self.unreadable:
                yield page

    def _next_read(self) -> Read | None:
        """Return the read of the smallest path that waits for one, if it should be made now."""
        frontier, unlisted, window = self._frontier, self._unlisted, self._window
        path = frontier.first
        if unlisted and (path is None or unlisted[0] < path):
            children = self._parents[unlisted[0]].children
            held = frontier.names + self._names_asked
            if held + children <= _NAMES or unlisted[0] == window[0]:
                self._names_asked += children
                return Read(GET_CHILDREN, heappop(unlisted), children)
        if path is None:
            return None
        place = len(window) if not window or path > window[-1] else bisect_left(window, path)
        room = (_WINDOW_BYTES - self._value_bytes) // self._ahead.expected(self._opcode)
        if place >= max(_WINDOW_LEAST, min(_WINDOW, room)):
            return None
        window.insert(place, frontier.pop())
        return Read(self._opcode, path)

    def _note(self, path: str, node: ZNode | None) -> None:
        if node is not None:
            self._value_bytes += len(node.value or b"")
            if node.children and self._reaches_below(path):
                self._parents[path] = node
                heappush(self._unlisted, path)
                return
        self._ready[path] = node

    def _list(self, path: str, names: list[str]) -> None:
        stem = path if path == "/" else path + "/"
        # Few names are hidden, so removing these is faster than copying all others.
        for name in [name for name in names if self._hides(path, name)]:
            names.remove(name)
            self._keep(path)
        start, end = self._within
        if start is not None and start > stem:
            # Directories above the start come before it, but are needed.
            names = [name for name in names if stem + name + "0" > start]
        if end is not None:
            names = [name for name in names if stem + name < end]
        self._frontier.push(stem, names)
        self._ready[path] = self._parents.pop(path)

    def _keep(self, path: str) -> None:
        while path not in self.kept:
            self.kept.add(path)
            path = parent(path)

    def _reaches_below(self, path: str) -> bool:
        """Say whether something below ``path`` may lie in the range."""
        start, end = self._within
        if path == "/":
            return True
        # Everything below lies between these two, because "0" follows "/".
        return (start is None or path + "0" > start) and (end is None or path + "/" < end)

    def _page(self) -> list[tuple[str, ZNode]]:
        """Remove the nodes that can be returned now from the window, and return them."""
        window, ready, first = self._window, self._ready, self._frontier.first
        page = []
        count = 0
        for path in window:
            if path not in ready or (first is not None and first < path):
                break
            node = ready.pop(path)
            count += 1
            if node is not None:
                self._value_bytes -= len(node.value or b"")
                page.append((path, node))
        del window[:count]
        return page

"""Decides where to cut the tree so that the parts have about equally many values.

ZooKeeper does not count the nodes of a subtree; a node only shows the number of its children. So
the split reads a sample of each level of the tree. A node in the sample counts for itself. Any
other node counts as the average of its siblings in the sample, or of its level if there are none.
Directories are listed, the largest first, because cuts can only be made between names. A directory
that is not listed counts with the number of its children.

The numbers of nodes read and of names listed are bounded, whatever the shape of the tree. The list
of one directory always comes as a whole, as in a scan.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ....ops.paths import hidden
from ....ops.results import Range
from ..wire.errors import NO_AUTH, NO_NODE
from ..wire.jute import EXISTS, GET_CHILDREN, ZNode
from ..wire.nodes import NULL
from .readahead import Read, ReadAhead

__all__ = ["Bounds", "split"]

_LEVELS: Final = 1000
# The part of a range from which a directory is large, and the fineness of the places for a cut.
_LARGE: Final = 4
_GRAIN: Final = 64


class Bounds(NamedTuple):
    """The bounds of a split's cost.

    Attributes:
        level_nodes: the most nodes that are read of a level.
        nodes: the most nodes that are read in all.
        names: the most names that are listed of a level's large directories, and of its others.
    """

    level_nodes: int = 1 << 16
    nodes: int = 1 << 17
    names: int = 1 << 19


_BOUNDS: Final = Bounds()


class _Directory:
    """A node that has children."""

    __slots__ = ("children", "holds", "known", "mean", "names", "path", "weight")

    def __init__(self, path: str, holds: float, children: int) -> None:
        self.path = path
        #: 1 if it holds a value itself, otherwise 0.
        self.holds = holds
        self.children = children
        #: The names of its children in order; ``None`` if it was not listed.
        self.names: list[str] | None = None
        #: The children in the sample: the values at leaves, 0 or 1, and directories.
        self.known: dict[str, _Directory | float] = {}
        #: The values at and below a child outside the sample, and at and below this directory.
        self.mean = 1.0
        self.weight = 0.0

    @property
    def stem(self) -> str:
        return self.path if self.path == "/" else self.path + "/"


def split(ahead: ReadAhead, prefix: str, n: int, bounds: Bounds = _BOUNDS) -> list[Range]:
    """Return up to ``n`` ranges with about equally many of the values under ``prefix``.

    Raises:
        MetadataStoreError: a request failed, or the prefix may not be read. Nodes below it that may
            not be read count as empty.
    """
    points = _Sample(ahead, n, bounds).points(prefix) if n > 1 else []
    total = sum(weight for _, weight in points)
    cuts: list[str] = []
    before = 0.0
    for path, weight in sorted(points):
        if len(cuts) < n - 1 and before * n >= total * (len(cuts) + 1):
            cuts.append(path)
        before += weight
    return [Range(start, end) for start, end in pairwise([None, *cuts, None])]


class _Sample:
    """A sample of a tree."""

    def __init__(self, ahead: ReadAhead, n: int, bounds: Bounds) -> None:
        self._ahead = ahead
        self._n = n
        self._bounds = bounds
        # A fixed seed, so that the same tree is cut at the same places.
        self._random = random.Random(0)  # noqa: S311  (a sample)
        self._room = bounds.nodes
        self._prefix = "/"

    def points(self, prefix: str) -> list[tuple[str, float]]:
        """Return paths, and about how many values lie at and shortly before each."""
        self._prefix = prefix
        # The parent of everything in the sample, of which only this one child counts.
        top = _Directory(prefix, 0, 0)
        levels: list[list[_Directory]] = []
        directories = self._read_directories([(top, prefix, prefix)])
        while directories:
            levels.append(directories)
            if self._room <= 0 or len(levels) >= _LEVELS:
                break
            self._list(directories)
            directories = self._read_directories(self._pick(directories))
        _weigh(levels)
        root = top.known[prefix]
        if not isinstance(root, _Directory):
            return [(prefix, root)] if root else []
        grain = root.weight / (self._n * _GRAIN)
        return [point for level in levels for each in level for point in _points(each, grain)]

    def _read_directories(self, nodes: Sequence[tuple[_Directory, str, str]]) -> list[_Directory]:
        """Read nodes, given as parent, name and path; return the directories among them."""
        self._room -= len(nodes)
        places = {path: (parent, name) for parent, name, path in nodes}
        directories = []
        for read, found in self._ahead.fetch(Read(EXISTS, path) for _, _, path in nodes):
            path = read.path
            parent, name = places[path]
            if isinstance(found, ZNode):
                holds = float(found.size != NULL and path != "/")
                if found.children:
                    directory = _Directory(path, holds, found.children)
                    directories.append(directory)
                    parent.known[name] = directory
                else:
                    parent.known[name] = holds
            elif found == NO_NODE or (found == NO_AUTH and path != self._prefix):
                parent.known[name] = 0.0
            else:
                raise self._ahead.refused(found if isinstance(found, int) else NO_NODE, path)
        return directories

    def _list(self, directories: Sequence[_Directory]) -> None:
        """List directories: the large ones, and some of the others."""
        total = sum(each.children for each in directories)
        large_from = total / (self._n * _LARGE)
        large = [each for each in directories if each.children >= large_from]
        large.sort(key=lambda each: each.children, reverse=True)
        small = [each for each in directories if each.children < large_from]
        self._random.shuffle(small)
        most = self._bounds.names
        chosen = {each.path: each for group in (large, small) for each in _within(group, most)}
        reads = (Read(GET_CHILDREN, each.path, each.children) for each in chosen.values())
        for read, found in self._ahead.fetch(reads):
            path = read.path
            if (
                isinstance(found, int)
                and found != NO_NODE
                and not (found == NO_AUTH and path != self._prefix)
            ):
                raise self._ahead.refused(found, path)
            names = found if isinstance(found, list) else []
            chosen[path].names = sorted(name for name in names if not hidden(path, name))

    def _pick(self, directories: Sequence[_Directory]) -> list[tuple[_Directory, str, str]]:
        """Choose children to read: one at random of every ``stride`` in a row."""
        listed = [each for each in directories if each.names]
        total = sum(len(each.names or ()) for each in listed)
        count = min(total, self._bounds.level_nodes, self._room)
        stride = total / count if count else 1.0
        picked = []
        k, before = 0, 0
        for each in listed:
            assert each.names is not None
            end = before + len(each.names)
            while k < count:
                shift = self._random.random() if count < total else 0.0
                place = max(before, min(int((k + shift) * stride), total - 1))
                if place >= end:
                    break
                name = each.names[place - before]
                picked.append((each, name, each.stem + name))
                k += 1
            before = end
        return picked


def _within(directories: Iterable[_Directory], most: int) -> list[_Directory]:
    """Return as many directories as may be listed by their numbers of names, but at least one."""
    taken: list[_Directory] = []
    names = 0
    for each in directories:
        names += each.children
        if taken and names > most:
            break
        taken.append(each)
    return taken


def _weigh(levels: Sequence[Sequence[_Directory]]) -> None:
    """Estimate how many values lie at and below each directory, from the bottom up."""
    usual = 1.0
    for level in reversed(levels):
        seen = [_weight(child) for each in level for child in each.known.values()]
        if seen:
            usual = sum(seen) / len(seen)
        for each in level:
            known = sum(map(_weight, each.known.values()))
            each.mean = known / len(each.known) if each.known else usual
            children = each.children if each.names is None else len(each.names)
            each.weight = each.holds + known + (children - len(each.known)) * each.mean


def _weight(child: _Directory | float) -> float:
    return child.weight if isinstance(child, _Directory) else child


def _points(directory: _Directory, grain: float) -> Iterable[tuple[str, float]]:
    if directory.names is None:
        yield directory.path, directory.weight
        return
    if directory.holds:
        yield directory.path, directory.holds
    known, mean, stem = directory.known, directory.mean, directory.stem
    gathered = 0.0
    for name in directory.names:
        child = known.get(name, mean)
        if isinstance(child, _Directory):
            continue  # It has points of its own.
        gathered += child
        if gathered >= grain:
            yield stem + name, gathered
            gathered = 0.0
    if gathered and directory.names:
        yield stem + directory.names[-1], gathered

"""Scans, recursive deletes and the revision: the calls that cover many nodes of the tree."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from ...ops.errors import InvalidPathError, MetadataStoreError
from ...ops.paths import all_reachable, hidden, own, reachable
from ...ops.results import Range, ScanPage, ScanResult, Stat, StatPage, printable
from ...ops.steps import step_of
from ..backend import Answer
from ..keys import own as own_key
from .reads.readahead import ReadAhead
from .reads.reader import BY_MULTI, Reader
from .reads.removal import Doomed, Removal
from .reads.splitting import split
from .reads.walk import TreeWalk
from .session.connection import ZooKeeperConnection
from .session.sizes import Sizes
from .wire.jute import ZNode
from .wire.nodes import NULL
from .writes.forms import refusal
from .writes.writer import Writer

__all__ = ["Scanner"]


class Scanner:
    """Walks over the tree below a chroot. Used by several threads at once."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        reader: Reader,
        writer: Writer,
        sizes: Sizes,
        chroot: str,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._sizes = sizes
        self._chroot = chroot
        # Below a chroot, another client may own a node with the name of the server's own tree.
        self._hides = own if chroot else hidden

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values of the tree in pages; see ``stores.backend.Scans``.

        Each node is shown as it was at some time after the request for the first page.
        """
        self._connection.check_process()
        return self._scan(prefix, within, timeout)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the results of :meth:`scan`.

        Small values are read along, because separate requests for stats cost the server more. Empty
        values are read, too, to distinguish them from null.
        """
        self._connection.check_process()
        return self._scan_stats(prefix, within, timeout)

    def _scan(
        self, prefix: str, within: Range, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        for nodes, foreign in self._nodes(prefix, within, timeout, values=True):
            found = [
                ScanResult(path, node.value or b"", self._stat(path, node)) for path, node in nodes
            ]
            yield ScanPage.of(found, foreign) if foreign else found

    def _scan_stats(
        self, prefix: str, within: Range, timeout: float
    ) -> Generator[StatPage, None, None]:
        for nodes, foreign in self._nodes(prefix, within, timeout, values=False):
            yield StatPage.of([self._stat(path, node) for path, node in nodes], foreign)

    def _nodes(
        self, prefix: str, within: Range, timeout: float, *, values: bool
    ) -> Iterator[tuple[list[tuple[str, ZNode]], Sequence[bytes]]]:
        """Yield the nodes that hold a value, in pages, with the paths that are left out."""
        all_of_them = within == Range()
        walk = TreeWalk(
            self._reads(timeout), prefix, within, values=values, hides=self._hides, forgiving=True
        )
        for nodes in walk.pages():
            page = [
                (path, node)
                for path, node in nodes
                if node.size != NULL and path != "/" and (all_of_them or path in within)
            ]
            foreign = [path.encode() for path in walk.unreadable]
            walk.unreadable.clear()
            if not all_reachable([path for path, _ in page]):
                foreign += [path.encode() for path, _ in page if not reachable(path)]
                page = [(path, node) for path, node in page if reachable(path)]
            if page or foreign:
                yield page, foreign

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges of about equally many values, from a sample of the tree."""
        self._connection.check_process()
        return split(self._reads(timeout), prefix, n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the tree with its parents without values; return the number of values removed.

        Nodes hidden from callers stay, and so do the parents that they need.
        """
        self._connection.check_process()
        return Removal(
            self._writer,
            lambda: TreeWalk(self._reads(timeout), path, Range(), values=False),
            self._connection.pause,
            timeout,
        ).run(path)

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        """Remove a foreign node. See ``stores.keys.ForeignRemoval``."""
        self._connection.check_process()
        # ZooKeeper has no node with this character.
        path = key.decode(errors="replace")
        if not path.startswith("/") or own_key(key) or self._hides("/", path.split("/")[1]):
            raise InvalidPathError(f"'{printable(key)}' is reserved, or not below the chroot")
        deadline = time.monotonic() + timeout
        doomed = Doomed(path, held=True)
        answer: Answer
        if dry_run:
            (node,) = self._reader.read_nodes([self._chroot + path], deadline, after=BY_MULTI)
            answer = refusal(step_of(doomed), node if isinstance(node, ZNode) else None)
        else:
            (answer,) = self._writer.write([doomed], deadline)
        if isinstance(answer, MetadataStoreError):
            raise answer

    def revision(self, timeout: float) -> int:
        """Return the zxid of the newest change that the leader knew at the time of the request."""
        self._connection.check_process()
        deadline = time.monotonic() + timeout
        while True:
            session = self._connection.sessions
            self._reader.sync(deadline)
            zxid = self._connection.zxid
            # After a change of the session, the zxid proves nothing.
            if session == self._connection.sessions and zxid > 0:
                return zxid

    def _reads(self, timeout: float) -> ReadAhead:
        return ReadAhead(
            self._connection,
            self._sizes,
            self._reader.sync,
            self._chroot,
            timeout,
        )

    def _stat(self, path: str, node: ZNode) -> Stat:
        _, _, _, revision, created, modified, version, owner, _ = node
        owned = self._reader.owned_here(owner)
        return Stat(path, version, revision, created, modified, owner != 0, owned)

"""The requests behind watches: the server's own watches, and reads of the nodes that they cover."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ....ops.errors import AuthenticationError, MetadataStoreError, UnsupportedError
from ....ops.log import get_logger
from ....ops.paths import hidden, own
from ....ops.results import ForeignKeys, Range
from ..reads.readahead import ReadAhead
from ..reads.reader import Reader
from ..reads.walk import TreeWalk
from ..session.connection import ZooKeeperConnection
from ..session.sizes import Sizes
from ..wire.errors import CONNECTION_LOSS, NO_AUTH, NO_NODE, UNIMPLEMENTED
from ..wire.exchanges import Reply, parse_reply
from ..wire.jute import (
    ADD_WATCH,
    GET_CHILDREN,
    GET_DATA,
    REMOVE_WATCHES,
    ZNode,
    add_watch,
    parse_single,
    remove_watch,
    single_read,
    watching_read,
)
from ..wire.nodes import NULL

__all__ = ["Placing"]

log = get_logger(__name__)


class Placing:
    """Places watches on the server, and reads what they cover. Used by several threads at once.

    Paths are the caller's, without the chroot.

    Args:
        connection: the session.
        reader: reads nodes.
        sizes: the limits of requests.
        chroot: precedes all paths.
    """

    def __init__(
        self, connection: ZooKeeperConnection, reader: Reader, sizes: Sizes, chroot: str
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._sizes = sizes
        self._chroot = chroot
        self._placed = False  # whether a watch was ever placed, so that the server knows them
        # Below a chroot, another client may own a node with the name of the server's own tree.
        self._hides: Final[Callable[[str, str], bool]] = own if chroot else hidden

    def begin(self, prefix: str, deadline: float) -> dict[str, int] | None:
        """Place a watch of a prefix, and read its node in the same round trip.

        Returns:
            what :meth:`bare` does, or ``None`` if there may be nodes below the prefix.

        Raises:
            AuthenticationError: the prefix may not be read.
            MetadataStoreError: the watch was not placed.
        """
        (reply,) = self.place([prefix], deadline, self._reading(prefix))
        try:
            return self._alone(prefix, reply)
        except AuthenticationError:
            self.remove(prefix, deadline)
            raise

    def place(
        self, prefixes: Sequence[str], deadline: float, *reads: tuple[int, bytes]
    ) -> list[Reply]:
        """Place a watch of each prefix; return the replies to reads that were sent behind that.

        Raises:
            MetadataStoreError: one of them was not placed.
        """
        found: list[Reply] = [CONNECTION_LOSS] * len(reads)
        while prefixes:
            requests = [(ADD_WATCH, add_watch(self._full(prefix))) for prefix in prefixes]
            replies = self._connection.exchange([*requests, *reads], deadline, repeat=True)
            found[: len(reads)] = replies[len(prefixes) :]
            again = []
            for prefix, reply in zip(prefixes, replies, strict=False):
                if isinstance(reply, MetadataStoreError):
                    raise reply
                if reply == UNIMPLEMENTED or (
                    # Sent twice, and the connection was lost each time, but only for a moment.
                    # With reads, the size of their answers may be the reason.
                    reply == CONNECTION_LOSS
                    and self._connection.came_at_once
                    and not (reads or self._placed)
                ):
                    raise UnsupportedError(
                        f"watches need ZooKeeper 3.6 or newer: the server at "
                        f"{self._connection.addresses} does not support addWatch"
                    )
                if reply == CONNECTION_LOSS:
                    again.append(prefix)
                elif isinstance(reply, int):
                    raise self._connection.refused(reply, prefix)
                else:
                    self._placed = True
            prefixes, reads = again, ()
        return found

    def place_once(self, path: str, deadline: float) -> bool:
        """Place a watch that fires once, at the deletion of a node; return whether there is a node.

        Raises:
            AuthenticationError: the node may not be read.
            MetadataStoreError: the watch was not placed.
        """
        request = GET_CHILDREN, watching_read(self._full(path))
        while True:
            (reply,) = self._connection.exchange([request], deadline, repeat=True)
            found = parse_reply(reply, partial(parse_single, GET_CHILDREN))
            if isinstance(found, MetadataStoreError):
                raise found
            if not isinstance(found, int) or found == NO_NODE:
                return found != NO_NODE
            if found != CONNECTION_LOSS:
                raise self._connection.refused(found, path)

    def remove(self, prefix: str, deadline: float, *, of_children: bool = False) -> None:
        """Remove the watches of a prefix, or those of its children, which ``place_once`` places.

        If this fails, the server sends events that nobody needs, as long as it is connected.
        """
        body = remove_watch(self._full(prefix), of_children=of_children)
        self._connection.exchange([(REMOVE_WATCHES, body)], deadline, repeat=True)

    def bare(self, prefix: str, timeout: float, deadline: float) -> dict[str, int]:
        """Read all nodes under a prefix; return the versions of those without a value.

        Nodes below the prefix that may not be read are left out, and the log has a warning.

        Args:
            prefix: the path where the tree begins.
            timeout: seconds for each request.
            deadline: by ``time.monotonic()``, for all of them.

        Raises:
            AuthenticationError: the prefix may not be read.
            MetadataStoreError: a request failed, or the deadline has passed.
        """
        (reply,) = self._connection.exchange([self._reading(prefix)], deadline, repeat=True)
        bare = self._alone(prefix, reply)
        if bare is not None:
            return bare
        # There is no need to catch up with the leader: what this server does not know yet comes as
        # events, after the watch was placed.
        ahead = ReadAhead(self._connection, self._sizes, lambda _: None, self._chroot, timeout)
        walk = TreeWalk(ahead, prefix, Range(), values=False, hides=self._hides, forgiving=True)
        bare = {}
        unreadable = ForeignKeys()
        for page in walk.pages():
            unreadable.add([path.encode() for path in walk.unreadable])
            walk.unreadable.clear()
            for path, node in page:
                if node.size == NULL:
                    bare[path] = node.version
            if time.monotonic() >= deadline:
                raise self._connection.late("the tree below the watch was not read from")
        if unreadable.count:
            log.warning(
                "a watch does not report changes of nodes that may not be read",
                prefix=prefix,
                count=unreadable.count,
                first=unreadable.names(),
            )
        return bare

    def read_nodes(self, paths: Sequence[str], deadline: float) -> Sequence[object]:
        """Return the node at each path; anything else means that there is none to be had.

        Raises:
            MetadataStoreError: one of them got no answer.
        """
        full = [self._chroot + path for path in paths]
        return self._reader.read_nodes(full, deadline, after=None)

    def _reading(self, prefix: str) -> tuple[int, bytes]:
        return GET_DATA, single_read(self._full(prefix))

    def _alone(self, prefix: str, reply: Reply) -> dict[str, int] | None:
        """Return the nodes without a value under a prefix, if its node is alone, or is missing.

        Raises:
            AuthenticationError: the node may not be read.
        """
        node = parse_reply(reply, partial(parse_single, GET_DATA))
        if node == NO_AUTH:
            raise self._connection.refused(NO_AUTH, prefix)
        if node == NO_NODE:
            return {}
        if isinstance(node, ZNode) and not node.children:
            return {prefix: node.version} if node.size == NULL else {}
        return None

    def _full(self, prefix: str) -> bytes:
        return (self._chroot + prefix if prefix != "/" else self._chroot or "/").encode()

"""The requests behind watches: the server's own watches, and reads of the nodes that they cover."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ...ops.errors import MetadataStoreError, UnsupportedError
from ...ops.paths import hidden, own
from ...ops.results import Range
from .connection import ZooKeeperConnection
from .errors import CONNECTION_LOSS, NO_AUTH, UNIMPLEMENTED, refused
from .jute import (
    ADD_WATCH,
    GET_CHILDREN,
    REMOVE_WATCHES,
    add_watch,
    remove_watch,
    single_read,
)
from .nodes import NULL
from .readahead import ReadAhead
from .reads import Reader
from .sizes import Sizes
from .walk import TreeWalk

__all__ = ["Placing"]


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
        # Below a chroot, another client may own a node with the name of the server's own tree.
        self._hides: Final[Callable[[str, str], bool]] = own if chroot else hidden

    def place(self, prefixes: Sequence[str], deadline: float) -> None:
        """Place a watch of each prefix.

        Raises:
            MetadataStoreError: one of them was not placed.
        """
        while prefixes:
            requests = [(ADD_WATCH, add_watch(self._full(prefix))) for prefix in prefixes]
            replies = self._connection.exchange(requests, deadline, repeat=True)
            again = []
            for prefix, reply in zip(prefixes, replies, strict=True):
                if isinstance(reply, MetadataStoreError):
                    raise reply
                if reply == UNIMPLEMENTED or (
                    # Sent twice, and the connection was lost each time, but only for a moment.
                    reply == CONNECTION_LOSS and self._connection.came_at_once
                ):
                    raise UnsupportedError(
                        f"watches need ZooKeeper 3.6 or newer: the server at "
                        f"{self._connection.addresses} does not support addWatch"
                    )
                if reply == CONNECTION_LOSS:
                    again.append(prefix)
                elif isinstance(reply, int):
                    raise refused(reply, prefix)
            prefixes = again

    def remove(self, prefix: str, deadline: float) -> None:
        """Remove the watch of a prefix.

        If this fails, the server sends events that nobody needs, as long as it is connected.
        """
        body = remove_watch(self._full(prefix))
        self._connection.exchange([(REMOVE_WATCHES, body)], deadline, repeat=True)

    def bare(self, prefix: str, timeout: float, deadline: float) -> dict[str, int]:
        """Read all nodes under a prefix; return the versions of those without a value.

        Nodes below the prefix that may not be read are left out.

        Args:
            prefix: the path where the tree begins.
            timeout: seconds for each request.
            deadline: by ``time.monotonic()``, for all of them.

        Raises:
            AuthenticationError: the prefix may not be read.
            MetadataStoreError: a request failed, or the deadline has passed.
        """
        # There is no need to catch up with the leader: what this server does not know yet comes as
        # events, after the watch was placed.
        ahead = ReadAhead(self._connection, self._sizes, lambda _: None, self._chroot, timeout)
        walk = TreeWalk(ahead, prefix, Range(), values=False, hides=self._hides, forgiving=True)
        bare = {}
        is_leaf = False
        for page in walk.pages():
            is_leaf = is_leaf or (page[0][0] == prefix and not page[0][1].children)
            for path, node in page:
                if node.size == NULL:
                    bare[path] = node.version
            if time.monotonic() >= deadline:
                raise self._connection.late("the tree below the watch was not read from")
        if is_leaf:
            # The walk needs no permission to look at a node, but to list what is below it.
            (reply,) = self._connection.exchange(
                [(GET_CHILDREN, single_read(self._full(prefix)))], deadline, repeat=True
            )
            if reply == NO_AUTH:
                raise refused(NO_AUTH, prefix)
        return bare

    def look(self, paths: Sequence[str], deadline: float) -> Sequence[object]:
        """Return the node at each path; anything else means that there is none to be had.

        Raises:
            MetadataStoreError: one of them got no answer.
        """
        full = [self._chroot + path for path in paths]
        return self._reader.look(full, deadline, fresh=False)

    def _full(self, prefix: str) -> bytes:
        return (self._chroot + prefix if prefix != "/" else self._chroot or "/").encode()

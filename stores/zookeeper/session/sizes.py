"""Finds the longest request that a server accepts, if that is shorter than assumed.

If a request is longer than its ``jute.maxbuffer``, a server drops the connection without a reason
(``NIOServerCnxn.readLength`` in ZooKeeper 3.9). That looks like an outage. To distinguish the two,
the client sends a read of exactly the same length, which changes nothing: an ``exists`` of a long
path. Length is the reason if the server drops this read twice, accepts a new connection at once
each time, and answers a short one, and if it then drops one more read beyond the limit that was
found. After an outage, a new connection does not come at once, and the lost request is sent again.

To know which request caused a loss, the client calls a request *unproven* if it is longer than any
that was answered over the present connection, and sends only one such request at a time. The limit
applies to the whole request. Answers have no limit: with a limit of 64 kB, a multi-read of 180 kB
is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ....ops.errors import MetadataStoreError
from ....ops.log import get_logger
from ..wire.errors import CONNECTION_LOSS
from ..wire.exchanges import Reply
from ..wire.jute import EXISTS, single_read
from .connection import ZooKeeperConnection

__all__ = ["ENVELOPE", "Sizes"]

log = get_logger(__name__)

#: The bytes around the body of a request that count: xid and opcode.
ENVELOPE: Final = 8

# No server has a smaller limit.
_FLOOR: Final = 1024
# Length of the path and watch flag of a read.
_PROBE_OVERHEAD: Final = 5
# Seconds that a probe waits for its answer.
_PATIENCE: Final = 5.0


class Sizes:
    """The lengths that the server accepts, and calls that detect them. For several threads.

    Attributes:
        usual: requests of several operations are filled up to this many bytes.
        most: the longest request that may be accepted; no longer one is sent.
    """

    def __init__(self, connection: ZooKeeperConnection, most: int) -> None:
        self.usual = most
        self.most = most
        self._connection = connection
        # The number of the connection, and the longest request that was answered over it. The tuple
        # is replaced as a whole, without a lock: a length that a race loses is proven again.
        self._proven = (0, _FLOOR)
        self._probing = threading.Lock()  # held by the thread that has sent an unproven request

    def exchange(
        self,
        requests: Sequence[tuple[int, bytes]],
        deadline: float,
        *,
        repeat: bool,
        session: int | None = None,
    ) -> list[Reply]:
        """Do the work of the connection's ``exchange``; send unproven requests one by one."""
        exchange = self._connection.exchange
        if all(self._is_proven(ENVELOPE + len(body)) for _, body in requests):
            return exchange(requests, deadline, repeat=repeat, session=session)
        replies: list[Reply] = []
        waiting = list(requests)
        while waiting:
            sizes = [ENVELOPE + len(body) for _, body in waiting]
            end = next((k for k, size in enumerate(sizes) if not self._is_proven(size)), None)
            if end is None:
                replies += exchange(waiting, deadline, repeat=repeat, session=session)
                break
            if not self._probing.acquire(timeout=max(0.0, deadline - time.monotonic())):
                late = self._connection.late("the request could not be sent to")
                return [*replies, *[late] * len(waiting)]
            try:
                before = self._connection.number
                some = exchange(waiting[: end + 1], deadline, repeat=repeat, session=session)
                self._note(sizes[end], some[-1], before)
            finally:
                self._probing.release()
            replies += some
            del waiting[: end + 1]
        return replies

    def begin(
        self,
        requests: Sequence[tuple[int, bytes]],
        deadline: float,
        *,
        repeat: bool,
        session: int | None = None,
    ) -> Callable[[float], list[Reply]]:
        """Do the work of the connection's ``begin``; wait for unproven requests at once."""
        if all(self._is_proven(ENVELOPE + len(body)) for _, body in requests):
            return self._connection.begin(requests, deadline, repeat=repeat, session=session)
        replies = self.exchange(requests, deadline, repeat=repeat, session=session)
        return lambda _: replies

    def drops(self, size: int, deadline: float) -> bool:
        """Say whether the server drops requests of this size, after one has lost its connection.

        Raises:
            MetadataStoreError: the store was closed, or the client has stopped.
        """
        if size > self.most:
            return True
        if self._is_proven(size) or not self._probing.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            return False
        try:
            if size > self.most:
                return True
            # This waits for a connection, and then shows whether the first attempt succeeded.
            if not self._passes(0) or not self._connection.came_at_once:
                return False
            if self._passes(size) is not False:
                return False
            usual, most = self.usual, self.most
            self._search(size)
            if self._passes(self.most + 1) is not False:
                # The server drops every request that is too long, so the network was the reason, or
                # may have been.
                self.usual, self.most = usual, most
                return False
        finally:
            self._probing.release()
        log.warning("zookeeper accepts no longer requests", bytes=self.usual)
        return True

    def _search(self, too_large: int) -> None:
        """Find the limit, below a size that is too large. Each wrong guess costs a connection."""
        usual = self.usual
        # These hold until the limit is found.
        self.usual, self.most = min(usual, too_large // 2), too_large - 1
        fits, size = 0, 1 << (too_large - 1).bit_length() - 1
        # Most limits are a power of two, or one less, so these are tried first.
        while not fits:
            passed = size <= _FLOOR or self._passes(size)
            if passed is None:
                return
            if passed:
                fits = size
            else:
                too_large, size = size, size // 2
        for guess in (fits + 1, too_large - 1):
            if fits < guess < too_large:
                passed = self._passes(guess)
                if passed is None:
                    break
                fits, too_large = (guess, too_large) if passed else (fits, guess)
        while too_large - fits > 1:
            size = (fits + too_large) // 2
            passed = self._passes(size)
            if passed is None:
                break
            fits, too_large = (size, too_large) if passed else (fits, size)
        self.usual, self.most = min(usual, fits), too_large - 1

    def _passes(self, size: int) -> bool | None:
        """Say whether a read of this size is answered; ``None`` if the outcome is unclear."""
        connection = self._connection
        until = time.monotonic() + _PATIENCE
        before, delayed = connection.number, connection.delayed
        path = b"/" + b"-" * (size - ENVELOPE - _PROBE_OVERHEAD - 1)
        (reply,) = connection.exchange([(EXISTS, single_read(path))], until, repeat=True)
        if isinstance(reply, MetadataStoreError):
            if reply.retriable:
                return None
            raise reply
        if reply != CONNECTION_LOSS:
            self._note(size, reply, before)
            return True
        # Lost twice. Size is the reason if short requests pass, and the server was never away.
        (reply,) = connection.exchange([(EXISTS, single_read(b"/"))], until, repeat=True)
        answered = not isinstance(reply, MetadataStoreError) and reply != CONNECTION_LOSS
        return False if answered and connection.delayed == delayed else None

    def _is_proven(self, size: int) -> bool:
        number, proven = self._proven
        return size <= (proven if number == self._connection.number else _FLOOR)

    def _note(self, size: int, reply: Reply, number: int) -> None:
        """Note an answer to a request that was sent over this connection, or a later one."""
        if isinstance(reply, MetadataStoreError) or reply == CONNECTION_LOSS:
            return
        if number == self._connection.number and not self._is_proven(size):
            self._proven = (number, size)

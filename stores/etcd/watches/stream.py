"""The stream that carries all watches of a client, at one member."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Protocol

from ....ops.errors import StoreClosedError
from ..wire.cancelling import cancel
from ..wire.members import REQUIRE_LEADER, Link, tells_progress

__all__ = ["ASK_EVERY", "WatchStream"]

#: Seconds between requests for progress. A compaction that is more recent may leave a gap.
ASK_EVERY: Final = 10.0


class _Watches(Protocol):
    """What a stream needs of the watches."""

    def next_request(self, stream: WatchStream) -> bytes | None: ...
    def finish(self, stream: WatchStream) -> None: ...


class WatchStream:
    """One stream at one member.

    Args:
        watches: the watches, which provide the requests.
        link: the member.

    Attributes:
        queue: requests to be sent, under the lock of the watches, like the other fields.
        ask_at: when to ask for progress.
        closed: whether it is closed.
        interrupted: whether it was ended because the connection was lost elsewhere.
        logged_in: whether the stream has a login.
        tells_progress: whether the member answers requests for progress.
        keeps_ids: whether the peer takes the ids that are proposed for watches, as etcd does;
            ``False`` before the first answer.
    """

    def __init__(self, watches: _Watches, link: Link) -> None:
        self.queue: deque[bytes] = deque()
        self.ask_at = time.monotonic() + ASK_EVERY
        self.closed = False
        self.interrupted = False
        self.logged_in = bool(link.metadata)
        self.tells_progress = tells_progress(link.version)
        self.keeps_ids = False
        self._watches = watches
        self._link = link
        self._process = os.getpid()
        self._call: Any = None

    def open(self) -> Any:
        """Open the stream; return an iterator of its responses."""
        try:
            self._call = self._link.calls.watch(
                self._requests(), metadata=(*self._link.metadata, REQUIRE_LEADER)
            )
        except ValueError as error:  # from gRPC, for a call on a closed channel
            raise StoreClosedError("the store is closed") from error
        if self.closed:
            self._call.cancel()
        return self._call

    def close(self) -> None:
        """End the stream."""
        self._watches.finish(self)
        if self._call is not None:
            cancel(self._call, self._process)

    def _requests(self) -> Iterator[bytes]:
        while (request := self._watches.next_request(self)) is not None:
            yield request

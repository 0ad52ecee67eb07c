"""A stream of keep-alives for one lease at one member."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from ...ops.errors import StoreClosedError
from .calls import cancel
from .members import REQUIRE_LEADER, Link
from .protos import messages

__all__ = ["KeepAlives"]

# A member that does not answer a keep-alive for so long, or for a third of the timeout, is given
# up. gRPC gives a connection without a sign of life as much time.
_PATIENCE: Final = 5.0
# If a wait ends this much too late, this process was paused, and has not yet read its answers.
_PAUSED: Final = 0.5


class KeepAlives:
    """A stream of keep-alives, which yields when each was sent and what it granted.

    Args:
        link: the member.
        lease: the lease.
        timeout: its TTL in seconds. One request is sent in each third of it, and never before the
            last one was answered.

    Attributes:
        silent: whether the stream was ended because the member did not answer.
        closed_early: whether ``close`` was called while the stream was in order.
    """

    def __init__(self, link: Link, lease: int, timeout: float) -> None:
        self.silent = False
        self.closed_early = False
        self._request = messages.LeaseKeepAliveRequest(ID=lease)
        self._period = timeout / 3
        self._patience = min(self._period, _PATIENCE)
        self._process = os.getpid()
        self._changed = threading.Condition()  # guards the fields below
        self._closed = False
        self._answered = True
        self._sent = 0.0
        self._call: Any = None
        try:
            self._call = link.keep_alive(
                self._requests(), metadata=(*link.metadata, REQUIRE_LEADER)
            )
        except ValueError as error:  # from gRPC, for a call on a closed channel
            raise StoreClosedError("the store is closed") from error

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Yield the time when each request was sent, and the TTL that its answer grants.

        Raises:
            grpc.RpcError: the stream broke, or was closed.
        """
        try:
            for answer in self._call:
                with self._changed:
                    sent = self._sent
                    self._answered = True
                    self._changed.notify()
                yield sent, answer.TTL
        finally:
            with self._changed:
                self.closed_early = self._closed

    def close(self) -> None:
        """End the stream."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        cancel(self._call, self._process)

    def _requests(self) -> Iterator[Any]:
        """Yield the requests, in a thread of gRPC, until the stream is closed."""
        while True:
            with self._changed:
                if self._closed:
                    return
                self._answered = False
                # Before the request leaves: etcd cannot count from an earlier time.
                self._sent = time.monotonic()
            yield self._request
            if not self._wait_for_answer():
                if self._call is not None:
                    self._call.cancel()
                return
            with self._changed:
                rest = self._sent + self._period - time.monotonic()
                self._changed.wait_for(lambda: self._closed, rest)

    def _wait_for_answer(self) -> bool:
        """Wait for the answer to the last request; return ``False`` if the stream is over."""
        with self._changed:
            until = self._sent + self._patience
            while not (self._answered or self._closed):
                now = time.monotonic()
                if now - until > _PAUSED:
                    until = now + self._patience
                elif now >= until:
                    self.silent = True
                    return False
                self._changed.wait(until - now)
            return not self._closed

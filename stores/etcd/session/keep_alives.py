"""A stream of keep-alives for one lease at one member."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from ....ops.errors import StoreClosedError
from ..wire.cancelling import cancel
from ..wire.members import REQUIRE_LEADER, Link
from ..wire.protos import messages

__all__ = ["KeepAlives"]

# A member that does not answer a keep-alive for so long, or for a third of the timeout, is given
# up. gRPC gives a connection without a sign of life as much time.
_PATIENCE: Final = 5.0
# ``etcd grpc-proxy`` answers when it keeps the lease alive itself, in each third of the timeout. A
# member that is silent, but answers another request within this time, gets as much, and this time.
_ANOTHER: Final = 1.0
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
        self._link = link
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
            self._call = link.calls.keep_alive(
                self._requests(), metadata=(*link.metadata, REQUIRE_LEADER)
            )
        except ValueError as error:  # from gRPC, for a call on a closed channel
            raise StoreClosedError("the store is closed") from error
        if self.silent:  # already, and the thread of the requests had no call to cancel
            self._call.cancel()

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
            if not (
                self._wait_for_answer(self._patience)
                or (self._answers() and self._wait_for_answer(self._period + _ANOTHER))
            ):
                self.silent = not self._closed
                if self._call is not None:
                    self._call.cancel()
                return
            with self._changed:
                rest = self._sent + self._period - time.monotonic()
                self._changed.wait_for(lambda: self._closed, rest)

    def _wait_for_answer(self, patience: float) -> bool:
        """Wait for the answer to the last request; return ``False`` if there is none."""
        with self._changed:
            until = self._sent + patience
            while not (self._answered or self._closed):
                now = time.monotonic()
                if now - until > _PAUSED:
                    until = now + patience
                elif now >= until:
                    return False
                self._changed.wait(until - now)
            return not self._closed

    def _answers(self) -> bool:
        """Say whether the member answers a question about the lease."""
        request = messages.LeaseTimeToLiveRequest(ID=self._request.ID)
        patience = min(_ANOTHER, self._patience / 2)
        try:
            self._link.calls.time_to_live(request, timeout=patience, metadata=self._link.metadata)
        except (grpc.RpcError, ValueError):  # ValueError: from gRPC, for a closed channel
            return False
        return True

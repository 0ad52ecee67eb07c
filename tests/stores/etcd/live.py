"""What the tests of sessions and watches on etcd share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Self

import grpc

from batchkeeper.ops import MetadataStoreError, WatchEvent
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages

from ...waiting import soon, until

#: Seconds: the shortest session that etcd grants with its own settings.
SHORT = 2.0
#: For tests that look at all events: a member that is silent for a third of it counts as lost.
STEADY = 6.0


@contextmanager
def opened(url: str, session_timeout: float = STEADY, **options: Any) -> Iterator[EtcdBackend]:
    """Open a back end as callers do."""
    with closing(connect(url, ConnectOptions(session_timeout=session_timeout, **options))) as made:
        assert isinstance(made, EtcdBackend)
        yield made


class Told:
    """The events of a session or a watch, in order, beside each other if they share one."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.threads: set[str] = set()

    def __call__(self, event: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.all.append(event)

    def events(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            self(event)

    def fail(self, error: MetadataStoreError) -> None:
        self(error)

    def wait(self, *expected: Any) -> None:
        """Wait for as much as is expected; it must be just that."""
        until(
            lambda: len(self.all) >= len(expected), f"waited for {expected}, but found {self.all}"
        )
        assert self.all == list(expected)

    def brief(self) -> list[tuple[str, str, int | None]]:
        """Return the events without their revisions."""
        return [(event.kind, event.path, event.version) for event in self.all]


class Other:
    """Another client of the same server, which goes directly to its API."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.connection = EtcdConnection([address], credentials or Credentials())

    def call(self, method: Any, request: Any, *, write: bool = True) -> Any:
        return self.connection.call(method, request, soon(), write=write)

    def revoke(self, lease: int) -> None:
        self.call("revoke", messages.LeaseRevokeRequest(ID=lease))

    def there(self, key: bytes) -> bool:
        """Say whether a key exists."""
        request = messages.RangeRequest(key=key, count_only=True)
        return bool(self.call("range", request, write=False).count)

    def put(self, key: bytes, value: bytes = b"", lease: int = 0) -> int:
        """Put a key, and return the revision."""
        request = messages.TxnRequest()
        put = request.success.add().request_put
        put.key, put.value, put.lease = key, value, lease
        answer = messages.TxnResponse.FromString(self.call("txn", request.SerializeToString()))
        return int(answer.header.revision)

    def delete(self, key: bytes, stop: bytes = b"") -> int:
        """Delete a key, or a range, and return the revision."""
        request = messages.DeleteRangeRequest(key=key, range_end=stop)
        return int(self.call("delete_range", request).header.revision)

    def compact(self, revision: int) -> None:
        """Remove the history before a revision, and return when it is gone."""
        link = self.connection.open(soon())
        stub = grpc_stubs.KVStub(grpc.insecure_channel(link.address))
        request = messages.CompactionRequest(revision=revision, physical=True)
        stub.Compact(request, metadata=link.metadata)

    def leases(self) -> list[int]:
        """Return all leases of the server."""
        address = self.connection.open(soon()).address
        stub = grpc_stubs.LeaseStub(grpc.insecure_channel(address))
        while True:
            self.there(b"-")  # It renews a login that has expired.
            link = self.connection.open(soon())
            try:
                found = stub.LeaseLeases(messages.LeaseLeasesRequest(), metadata=link.metadata)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
            else:
                return [status.ID for status in found.leases]

    def granted(self, lease: int) -> int:
        """Return the TTL with which a lease was granted; 0 if there is none."""
        request = messages.LeaseTimeToLiveRequest(ID=lease)
        return int(self.call("time_to_live", request, write=False).grantedTTL)


@contextmanager
def other_client(address: str, credentials: Credentials | None = None) -> Iterator[Other]:
    """Open another client, directly."""
    other = Other(address, credentials)
    with closing(other.connection):
        yield other


class Claims:
    """Compares what a session claims with what its server does, from a thread of its own.

    Args:
        claim: returns the time until which the session is valid.
        there: says whether the session's key exists, seen over an undisturbed connection.

    Attributes:
        gone: when the key was first found missing, infinite if it never was.
    """

    def __init__(self, claim: Callable[[], float], there: Callable[[], bool]) -> None:
        self.latest = -float("inf")
        self.gone = float("inf")
        self._claim = claim
        self._there = there
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(step,)) for step in (self._ask, self._look)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self.latest <= self.gone, "the session was claimed beyond its end"

    def _run(self, step: Callable[[], None]) -> None:
        while not self._over.wait(0.005):
            step()

    def _ask(self) -> None:
        claim = self._claim()
        if self.gone == float("inf"):
            self.latest = max(self.latest, claim)

    def _look(self) -> None:
        if self.gone == float("inf") and not self._there():
            self.gone = time.monotonic()

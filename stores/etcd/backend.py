"""The etcd back end: a batch of writes is one transaction, a batch of reads another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from ...ops.errors import (
    OperationTimeoutError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from ...ops.log import get_logger
from ..backend import Answer, Limits, ReadRequest, Request, WriteRequest
from ..urls import ConnectOptions, StoreURL
from .reads.reader import Reader
from .reads.scans import Scans
from .session.guard import Guard
from .session.session import EtcdSession
from .sizes.limits import Capacity
from .sizes.requests import Requests
from .watches.changes import History
from .watches.watches import EtcdWatches
from .wire.batches import Call, halves, in_parts, packed, paths_of
from .wire.connection import EtcdConnection
from .wire.errors import EtcdRefusedError, Reason
from .wire.lineage import Lineage
from .wire.members import Credentials, Link, may_lose_writes
from .writes.forms import operations_of
from .writes.pending import Terms, parts_of
from .writes.settling import TxnSettler
from .writes.write_ids import WriteIds
from .writes.writer import Writer

__all__ = ["EtcdBackend", "connect"]

_R = TypeVar("_R", bound=Request)

_log = get_logger(__name__)
# The servers whose version was warned of. A process may open a store again and again.
_warned: set[tuple[str, str | None]] = set()

_DEFAULT_PORT: Final = 2379
_TLS_OPTIONS: Final = ("ca", "cert", "key")

# Seconds for revoking the lease when the store is closed. Without an answer, it ends by itself.
_LAST_WORDS: Final = 0.25


class EtcdBackend:
    """A cluster with a key prefix, as the engine sees it.

    Args:
        connection: the calls to the cluster; closed with the back end.
        prefix: precedes every path in the keys.
        deadline: the time until which to look for a member that answers, by ``time.monotonic()``.
        session_timeout: see :class:`EtcdSession`.
        flat_only: never nest transactions, as with a login on an etcd that would not check it.

    Raises:
        StoreUnavailableError: no member answered by the deadline.
        AuthenticationError: the login was refused, or etcd requires one and none is given.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        prefix: str,
        deadline: float,
        *,
        session_timeout: float = 30.0,
        flat_only: bool = False,
    ) -> None:
        self.tally = connection.tally
        self._connection = connection
        self._capacity = Capacity(connection, prefix, deadline, operations_of, flat_only=flat_only)
        self.tally.advisory = _advisory(connection.open(deadline))
        lineage = Lineage(connection)
        self._write_ids = WriteIds(connection, prefix, lineage, permitted=self._capacity.write_ids)
        self.watches = EtcdWatches(connection, prefix, lineage)
        self.session = EtcdSession(connection, prefix, session_timeout, self.watches, lineage)
        self.watches.when_back = self.session.watches_are_back
        guard = Guard(connection, prefix, deadline)
        owns = self.watches.owns = partial(_owns, guard, self.session)
        self._requests = requests = Requests(connection, self._capacity)
        self._reader = Reader(requests, prefix, owns, lineage)
        terms = Terms(prefix, owns)
        self._writer = Writer(
            connection,
            self._capacity,
            TxnSettler(connection, requests, self._write_ids, terms, self._capacity),
            self.session,
            guard,
            terms,
        )
        self.scans = Scans(connection, prefix, owns, lineage)
        self.history = History(connection, prefix)
        self.acls = None

    @property
    def limits(self) -> Limits:
        """The limits of one call. See :class:`Backend`."""
        return self._capacity.limits

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a member. See :class:`Backend`."""
        return self._connection.connected

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes in one transaction, or in as many as they need. See :class:`Backend`."""
        if len(requests) > self._most_writes(requests):
            parts = _pieces(requests, self._most_writes)
            return in_parts(self.write, parts, deadline)
        return self._execute(self._writer.write, self.write, self._write_size, requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        """Execute reads in one transaction, or in as many as their answers need.

        Further calls read the other names of a long get_children. See :class:`Backend`.
        """
        reader = self._reader
        if len(requests) > reader.most(requests):
            parts = _pieces(requests, reader.most)
            return in_parts(self.read, parts, deadline)
        return self._execute(reader.read, self.read, reader.size, requests, deadline)

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        """Close the connections. See :class:`Backend`."""
        self.watches.close()
        self.session.close(time.monotonic() + _LAST_WORDS)
        self._write_ids.close(time.monotonic() + _LAST_WORDS)
        self._connection.close()
        self.watches.join()
        self.session.join()

    # Splitting requests

    def _most_writes(self, requests: Sequence[WriteRequest]) -> int:
        """Return the number of requests for the next transaction."""
        most = self._requests.most_writes
        values = self._requests.most_overwrites
        if len(requests) > values:
            plain = sum(map(self._writer.returns_old_value, requests))
            if plain > values:
                most = min(most, values)
        return most

    def _execute(
        self,
        once: Call[_R, Answer],
        again: Call[_R, Answer],
        size: Callable[[Sequence[_R]], int],
        requests: Sequence[_R],
        deadline: float,
    ) -> Sequence[Answer]:
        """Execute requests ``once``; if their ``size`` is too large, in parts with ``again``."""
        limits = self.limits
        try:
            return once(requests, deadline)
        except EtcdRefusedError as refusal:
            error = refusal.at(*paths_of(requests[0]))
            too_many = refusal.reason is Reason.TOO_MANY_OPS
            if len(requests) > 1 and not (too_many or isinstance(error, ValueTooLargeError)):
                raise
        if too_many:
            self._capacity.learn_max_txn_ops(limits, deadline)
            self._write_ids.permitted &= self._capacity.write_ids
            if self.limits is not limits:
                return in_parts(again, [requests], deadline)
            error = UnsupportedError(
                f"the batch has more operations than etcd accepts in one transaction "
                f"(--max-txn-ops {self._capacity.max_txn_ops})"
            )
        if len(requests) == 1:
            return [error.for_path(requests[0].path)]
        self.tally.add("split")
        return in_parts(again, self._smaller_parts(requests, size), deadline)

    def _smaller_parts(
        self, requests: Sequence[_R], size: Callable[[Sequence[_R]], int]
    ) -> Sequence[Sequence[_R]]:
        """Return parts that probably fit into a request; at least two."""
        room = min(self.limits.request_bytes, size(requests) * 2 // 3)
        parts = packed(requests, room, lambda request: size([request]))
        return parts if len(parts) > 1 else halves(requests)

    def _write_size(self, requests: Sequence[WriteRequest]) -> int:
        """Return about as many bytes as the requests take up."""
        around = self.limits.op_bytes
        size = 0
        for request in requests:
            for part in parts_of(request):
                size += around + 3 * len(part.path.encode()) + len(part.value or b"")
        return size


def connect(url: StoreURL, options: ConnectOptions) -> EtcdBackend:
    """Open the cluster at a URL: ``etcd://host:port[,host:port...][/prefix]``.

    ``etcds`` uses TLS, with the options ``ca``, ``cert`` and ``key`` (names of PEM files).

    Raises:
        InvalidSettingError: an option, a host or a file is invalid, or half of a login is missing.
        StoreUnavailableError: no member answered within ``connect_timeout``, or none executed
            requests, for example without a leader. The message names the addresses.
        AuthenticationError: the login was refused, or etcd requires one and none is given.
    """
    tls = url.scheme == "etcds"
    url.check_options(_TLS_OPTIONS if tls else ())
    prefix = url.prefix()
    addresses = url.addresses(_DEFAULT_PORT)
    credentials = Credentials(
        username=options.username,
        password=options.password,
        password_now=options.password_now,
        tls=tls,
        **url.options,
    )
    connection = EtcdConnection(addresses, credentials)
    options.abandonment.ends_with(connection.close)
    try:
        return EtcdBackend(
            connection,
            prefix,
            time.monotonic() + options.connect_timeout,
            session_timeout=options.session_timeout,
        )
    except OperationTimeoutError as error:
        connection.close()
        # A member without a leader answers, but executes nothing.
        raise StoreUnavailableError(
            f"etcd at {', '.join(addresses)} executed no request within "
            f"{options.connect_timeout:g} s; it may lack a leader"
        ) from error
    except BaseException:
        connection.close()
        raise


def _owns(guard: Guard, session: EtcdSession, lease: int) -> bool:
    """Say whether a key with a lease belongs to the session of this client."""
    if guard.free:
        guard.met_lease()
    return session.owns(lease)


def _advisory(link: Link) -> str | None:
    if not may_lose_writes(link.version):
        return None
    advisory = (
        f"etcd {link.version} may lose writes that it has acknowledged when it is killed (etcd "
        f"#13766, #14370); upgrade it to 3.5.5 or newer"
    )
    if (link.address, link.version) not in _warned:
        _warned.add((link.address, link.version))
        _log.warning(
            "etcd may lose acknowledged writes", address=link.address, version=link.version
        )
    return advisory


def _pieces(requests: Sequence[_R], most: Callable[[Sequence[_R]], int]) -> Iterator[Sequence[_R]]:
    """Yield the requests in pieces. The size of each is computed when it is requested."""
    while requests:
        size = most(requests)
        yield requests[:size]
        requests = requests[size:]

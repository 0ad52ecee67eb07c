"""The etcd back end: a batch of writes is one transaction, a batch of reads another."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from ...ops.errors import (
    MetadataStoreError,
    OperationTimeoutError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from ...ops.paths import RESERVED
from ..backend import Answer, Limits, Request, RequestRefusedError
from ..registry import ConnectOptions, StoreURL
from .connection import Connection, Credentials, FlatOnlyError
from .errors import COMPACTED, NO_SPACE, TOO_MANY_OPS
from .listing import Listing
from .protos import messages
from .settling import Settler
from .tokens import Tokens
from .txn import (
    FIRST_PAGE,
    below_of,
    flat_write,
    grouped,
    nested_write,
    parse_flat_failure,
    parse_flat_success,
    parse_nested,
    parse_read,
    read_request,
    weight,
)

__all__ = ["EtcdBackend", "connect"]

_DEFAULT_PORT: Final = 2379
_TLS_OPTIONS: Final = ("ca", "cert", "key")

# etcd's --max-request-bytes bounds the entry proposed to raft, which is the request with an id
# and the user's name in front.
_MAX_REQUEST: Final = 1536 * 1024 - 1024
# What a put with a path of ordinary length needs beside its value.
_SPARE: Final = 15 * 1024

# etcd's --max-txn-ops. It counts along a path into nested transactions: the largest of compares,
# operations on success and operations on failure of a level, added up over the levels.
_MAX_TXN_OPS: Final = 128
# The most operations of a level in a batch's transaction. 64 would still be accepted, but such a
# transaction takes 30 to 60 ms, in which etcd serves nobody else.
_GROUP: Final = 32
# The levels below the groups: an operation's own transaction has two compares at most.
_INNERMOST: Final = 2
# The token's condition, change or look, before those of the batch.
_TOKEN: Final = 1
# Its bytes, beside the prefix that is in its key, which it names three times.
_TOKEN_SIZE: Final = 512

# Seconds for giving up the lease when the store is closed.
_LAST_WORDS: Final = 0.5

# Two requests in flight keep an etcd on the same machine busy; the third covers the time that a
# client needs to make the next one. Beyond that transactions wait for each other in etcd.
_IN_FLIGHT: Final = 3
# Single puts share etcd's fsyncs with each other: their number a second still grows up to here.
_SINGLES: Final = 64


class EtcdBackend:
    """A cluster with a key prefix, as the engine sees it.

    Args:
        connection: the calls to the cluster; closed with the back end.
        prefix: stands before every path in the keys.
        deadline: until when to find a member that answers, by ``time.monotonic()``.
        flat_only: never nest transactions, as with a login on an etcd that would not check it.

    Raises:
        StoreUnavailableError: no member has answered by the deadline.
        AuthenticationError: the login is refused, or there is none and one is asked for.
    """

    def __init__(
        self, connection: Connection, prefix: str, deadline: float, *, flat_only: bool = False
    ) -> None:
        self.tally = connection.tally
        self._connection = connection
        self._prefix = prefix
        link = connection.open(deadline)
        self._tokens = Tokens(connection, prefix)
        self._max_txn_ops = self._probe_max_txn_ops(deadline)
        self._settler = Settler(connection, self._tokens, prefix, self._max_txn_ops)
        # How many operations there are in a group of a nested transaction; 0 says not to nest.
        # Written by any thread, to 0 only, and read once a call.
        self._group = 0
        group = min(_GROUP, (self._max_txn_ops - _TOKEN - _INNERMOST) // 2)
        if group > 0 and link.nesting and not flat_only:
            empty = b"\x12\x0a\x22\x08" + b"\x1a\x02\x22\x00" * _INNERMOST
            if self._accepts(grouped([empty] * group**2, group), deadline):
                self._group = group

    @property
    def _direct(self) -> int:  # operations in a transaction without groups, beside its token
        return self._max_txn_ops - _TOKEN - (_INNERMOST if self._group else 0)

    @property
    def limits(self) -> Limits:
        """What one call takes; one transaction each, whatever is in it."""
        return Limits(
            write_ops=max(self._group**2, self._direct),
            read_ops=self._max_txn_ops,
            request_bytes=_MAX_REQUEST - _TOKEN_SIZE - 3 * len(self._prefix.encode()),
            # A conditional put names its key three times, with some 45 bytes between them.
            op_bytes=128 + 3 * len(self._prefix.encode()),
            value_bytes=_MAX_REQUEST - _SPARE,
            in_flight=_IN_FLIGHT,
            singles=_SINGLES,
        )

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        """Execute writes in one transaction. See :class:`Backend`."""
        try:
            if self._group:
                try:
                    return self._write_nested(requests, deadline)
                except FlatOnlyError:
                    self._group = 0
            return self._write_flat(requests, deadline)
        except RequestRefusedError as refusal:
            if len(requests) > 1:
                raise
            return [refusal.error.for_path(requests[0].path)]

    def read(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        """Execute reads in one transaction, long get_childrens in further calls.

        See :class:`Backend`.
        """
        body = read_request(requests, self._prefix)
        try:
            response = self._txn(body, len(requests), deadline, write=False)
        except RequestRefusedError as refusal:
            if NO_SPACE in str(refusal):
                response = self._read_one_by_one(body, deadline)
            elif len(requests) > 1:
                raise
            else:
                return [refusal.error.for_path(requests[0].path)]
        answers, listings = parse_read(requests, response)
        for index, page in listings:
            request = requests[index]
            try:
                answers[index] = self._children(request.path, page, deadline)
            except RequestRefusedError as refusal:
                answers[index] = refusal.error.for_path(request.path)
            except MetadataStoreError as error:
                answers[index] = error.for_path(request.path)
        return answers

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        """Close the connections. See :class:`Backend`."""
        self._tokens.close(time.monotonic() + _LAST_WORDS)
        self._connection.close()

    def _write_nested(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        fields = nested_write(requests, self._prefix)
        in_groups = len(fields) > self._direct
        # The group may have been set to 0 meanwhile; then the call refuses to send this.
        body = grouped(fields, self._group or _GROUP) if in_groups else b"".join(fields)
        response = self._write_txn(requests, body, deadline, nested=True)
        if isinstance(response, list):
            return response
        return parse_nested(requests, response, in_groups)

    def _write_flat(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Execute writes in flat transactions, one unless there are many deletes."""
        chunks = self._chunks(requests)
        if len(chunks) == 1:
            return self._flat_chunk(requests, deadline)
        return [answer for chunk in chunks for answer in self._flat_rest(chunk, deadline)]

    def _flat_chunk(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Execute writes in one flat transaction, which is applied as a whole or not at all.

        One that is not applied tells, from one and the same moment, which of its writes cannot
        hold: at least one. These are answered, and the rest is sent again.
        """
        response = self._write_txn(requests, flat_write(requests, self._prefix), deadline)
        if isinstance(response, list):
            return response
        if response.succeeded:
            return parse_flat_success(requests, response)
        self.tally.add("conflict")
        reasons = parse_flat_failure(requests, response)
        rest = [
            request for request, reason in zip(requests, reasons, strict=True) if reason is None
        ]
        settled = iter(self._flat_rest(rest, deadline))
        return [next(settled) if reason is None else reason for reason in reasons]

    def _flat_rest(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Execute writes beside others that have their answers: errors are answers, too."""
        if not requests:
            return []
        try:
            return self._flat_chunk(requests, deadline)
        except RequestRefusedError as refusal:
            error = refusal.error
            if half := len(requests) // 2:
                first, second = requests[:half], requests[half:]
                return [*self._flat_rest(first, deadline), *self._flat_rest(second, deadline)]
        except MetadataStoreError as failure:
            error = failure
        return [error.for_path(request.path) for request in requests]

    def _chunks(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Return the requests in as many lists as flat transactions are needed."""
        chunks: list[list[Request]] = [[]]
        room = self._direct
        for request in requests:
            room -= weight(request)
            if room < 0:
                chunks.append([])
                room = self._direct - weight(request)
            chunks[-1].append(request)
        return chunks

    def _write_txn(
        self, requests: Sequence[Request], body: bytes, deadline: float, *, nested: bool = False
    ) -> Any:
        """Execute a transaction that writes, once and for certain, whatever happens on the way.

        Returns its response, or the answers themselves where they had to be read back.
        """

        def send(fields: bytes, until: float) -> Any:
            return self._txn(fields + body, len(requests), until, nested=nested)

        return self._settler.run(requests, send, deadline, whole=not nested)

    def _txn(
        self,
        body: bytes,
        operations: int,
        deadline: float,
        *,
        write: bool = True,
        nested: bool = False,
    ) -> Any:
        if len(body) > _MAX_REQUEST and operations > 1:
            raise RequestRefusedError(
                ValueTooLargeError(
                    f"{len(body):,} bytes are more than the {_MAX_REQUEST:,} that etcd takes in "
                    f"one request"
                )
            )
        return self._connection.call("txn", body, deadline, write=write, nested=nested)

    def _read_one_by_one(self, body: bytes, deadline: float) -> Any:
        """Execute the ranges of a transaction as single calls.

        An etcd that is beyond its quota refuses every transaction, reading ones too.
        """
        response = messages.TxnResponse()
        for operation in messages.TxnRequest.FromString(body).success:
            found = self._range(operation.request_range, deadline)
            response.responses.add().response_range.CopyFrom(found)
        return response

    def _children(self, path: str, page: Any, deadline: float) -> list[str]:
        below, stop = below_of(path, self._prefix)
        while True:
            listing = Listing(below, stop, FIRST_PAGE)
            # All pages show the same moment: the one of the first.
            revision = page.header.revision
            try:
                listing.take([kv.key for kv in page.kvs], page.count)
                while not listing.done:
                    page = self._range(_page_request(listing, revision), deadline)
                    listing.take([kv.key for kv in page.kvs], page.count)
                break
            except RequestRefusedError as refusal:
                if COMPACTED not in str(refusal):
                    raise
                page = self._range(_page_request(Listing(below, stop, FIRST_PAGE), 0), deadline)
        names = listing.names()
        return [name for name in names if name not in RESERVED] if path == "/" else names

    def _range(self, request: Any, deadline: float) -> Any:
        return self._connection.call("range", request, deadline, write=False)

    def _probe_max_txn_ops(self, deadline: float) -> int:
        """Return how many operations the server takes in a flat transaction, up to 128.

        Reads, and no permission is needed: etcd counts before it looks at anything else.
        """
        key = (self._prefix + "/").encode()
        field = messages.TxnRequest(
            success=[
                messages.RequestOp(
                    request_range=messages.RangeRequest(key=key, count_only=True),
                )
            ]
        ).SerializeToString()
        if self._accepts(field * _MAX_TXN_OPS, deadline):
            return _MAX_TXN_OPS
        # The numbers from 1 on that are accepted come first; their count is the limit.
        return bisect_right(
            range(1, _MAX_TXN_OPS), False, key=lambda n: not self._accepts(field * n, deadline)
        )

    def _accepts(self, body: bytes, deadline: float) -> bool:
        """Whether a transaction that changes nothing has no more operations than are taken."""
        try:
            self._connection.call("txn", body, deadline, write=False)
        except RequestRefusedError as refusal:
            return TOO_MANY_OPS not in str(refusal)
        return True


def connect(url: StoreURL, options: ConnectOptions) -> EtcdBackend:
    """Open the cluster at a URL: ``etcd://host:port[,host:port...][/prefix]``.

    ``etcds`` encrypts, with the options ``ca``, ``cert`` and ``key`` (names of PEM files).

    Raises:
        InvalidSettingError: an option, a host, a file or half a login that cannot be used.
        StoreUnavailableError: nobody has answered within ``connect_timeout``, or not to requests,
            as without a leader; with the addresses.
        AuthenticationError: the login is refused, or there is none and one is asked for.
    """
    tls = url.scheme == "etcds"
    url.check_options(_TLS_OPTIONS if tls else ())
    prefix = url.prefix()
    addresses = url.addresses(_DEFAULT_PORT)
    credentials = Credentials(
        username=options.username, password=options.password, tls=tls, **url.options
    )
    connection = Connection(addresses, credentials)
    try:
        return EtcdBackend(connection, prefix, time.monotonic() + options.connect_timeout)
    except OperationTimeoutError as error:
        connection.close()
        if isinstance(error, StoreUnavailableError):
            raise
        # A member that answers and has no leader executes nothing.
        raise StoreUnavailableError(
            f"etcd at {', '.join(addresses)} has executed no request within "
            f"{options.connect_timeout:g} s; it may lack a leader"
        ) from error
    except BaseException:
        connection.close()
        raise


def _page_request(listing: Listing, revision: int) -> Any:
    return messages.RangeRequest(
        key=listing.start,
        range_end=listing.end,
        limit=listing.limit,
        revision=revision,
        keys_only=True,
    )

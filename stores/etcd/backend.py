"""The etcd back end: a batch of writes is one transaction, a batch of reads another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from ...ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from ...ops.kinds import BRINGS_VALUES
from ...ops.paths import children_of
from ..backend import Answer, Limits, ReadRequest, Request, WriteRequest
from ..urls import ConnectOptions, StoreURL
from .changes import History
from .codecs import FIRST_PAGE, WRITES, below_of
from .connection import EtcdConnection, FlatOnlyError
from .errors import EtcdRefusedError, Reason
from .estimates import AnswerBytes, Pace
from .limits import Capacity
from .listing import Listing
from .members import Credentials
from .protos import messages
from .scans import Scans
from .txn import (
    flat_write,
    grouped,
    nested_write,
    parse_flat_failure,
    parse_flat_success,
    parse_nested,
    parse_read,
    read_request,
)
from .txn_settling import TxnSettler
from .write_ids import WriteIds

__all__ = ["EtcdBackend", "connect"]

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Request)
_Call: TypeAlias = Callable[[Sequence[_R], float], Sequence[Answer]]

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
        flat_only: never nest transactions, as with a login on an etcd that would not check it.

    Raises:
        StoreUnavailableError: no member answered by the deadline.
        AuthenticationError: the login was refused, or etcd requires one and none is given.
    """

    def __init__(
        self, connection: EtcdConnection, prefix: str, deadline: float, *, flat_only: bool = False
    ) -> None:
        self.tally = connection.tally
        self._connection = connection
        self._prefix = prefix
        self._capacity = Capacity(connection, prefix, deadline, flat_only=flat_only)
        self._write_ids = WriteIds(connection, prefix, permitted=self._capacity.write_ids)
        self._settler = TxnSettler(connection, self._write_ids, prefix, self._capacity)
        self._pace = Pace(self.limits.write_ops)
        self._read_values = AnswerBytes()
        self._overwritten = AnswerBytes()
        self.scans = Scans(connection, prefix)
        self.history = History(connection, prefix)

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
            return self._in_parts(self.write, parts, deadline)
        return self._execute(self._write, self.write, self._write_size, requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        """Execute reads in one transaction, or in as many as their answers need.

        Further calls read the other names of a long get_children. See :class:`Backend`.
        """
        if len(requests) > self._most_reads(requests):
            parts = _pieces(requests, self._most_reads)
            return self._in_parts(self.read, parts, deadline)
        return self._execute(self._read, self.read, self._read_size, requests, deadline)

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        """Close the connections. See :class:`Backend`."""
        self._write_ids.close(time.monotonic() + _LAST_WORDS)
        self._connection.close()

    # Splitting requests

    def _most_writes(self, requests: Sequence[WriteRequest]) -> int:
        """Return the number of requests for the next transaction."""
        most = min(self._pace.writes, self.limits.write_ops)
        values = self._overwritten.values
        if len(requests) > values:
            # etcd answers a plain put with the value that it overwrites.
            plain = sum(WRITES[request.kind].unconditional(request) for request in requests)
            if plain > values:
                most = min(most, values)
        return most

    def _most_reads(self, requests: Sequence[ReadRequest]) -> int:
        """Return the number of requests for the next transaction."""
        most = self.limits.read_ops
        values = self._read_values.values
        return min(most, values) if len(requests) > values and _gets(requests) > values else most

    def _execute(
        self,
        once: _Call[_R],
        again: _Call[_R],
        size: Callable[[Sequence[_R]], int],
        requests: Sequence[_R],
        deadline: float,
    ) -> Sequence[Answer]:
        """Execute requests ``once``; if their ``size`` is too large, in parts with ``again``."""
        limits = self.limits
        try:
            return once(requests, deadline)
        except EtcdRefusedError as refusal:
            error = refusal.error
            too_many = refusal.reason is Reason.TOO_MANY_OPS
            if len(requests) > 1 and not (too_many or isinstance(error, ValueTooLargeError)):
                raise
        if too_many:
            self._capacity.learn_max_txn_ops(limits, deadline)
            self._write_ids.permitted &= self._capacity.write_ids
            if self.limits is not limits:
                return self._in_parts(again, [requests], deadline)
            error = UnsupportedError(
                f"the batch has more operations than etcd accepts in one transaction "
                f"(--max-txn-ops {self._capacity.max_txn_ops})"
            )
        if len(requests) == 1:
            return [error.for_path(requests[0].path)]
        self.tally.add("split")
        return self._in_parts(again, self._smaller_parts(requests, size), deadline)

    def _in_parts(
        self, call: _Call[_R], parts: Iterable[Sequence[_R]], deadline: float
    ) -> list[Answer]:
        """Execute parts one after the other. An error of one becomes the answers of that part."""
        return [answer for part in parts for answer in self._beside(call, part, deadline)]

    def _beside(self, call: _Call[_R], requests: Sequence[_R], deadline: float) -> Sequence[Answer]:
        """Execute requests, and return errors as answers, because other parts have theirs."""
        try:
            return call(requests, deadline)
        except EtcdRefusedError as refusal:
            error = refusal.error
            if len(requests) > 1:
                return self._in_parts(call, _halves(requests), deadline)
        except MetadataStoreError as failure:
            error = failure
        return [error.for_path(request.path) for request in requests]

    def _smaller_parts(
        self, requests: Sequence[_R], size: Callable[[Sequence[_R]], int]
    ) -> Sequence[Sequence[_R]]:
        """Return parts that probably fit into a request; at least two."""
        room = min(self.limits.request_bytes, size(requests) * 2 // 3)
        parts: list[list[_R]] = []
        left = 0
        for request in requests:
            left -= (needed := size([request]))
            if left < 0 or not parts:
                parts.append([])
                left = room - needed
            parts[-1].append(request)
        return parts if len(parts) > 1 else _halves(requests)

    def _write_size(self, requests: Sequence[WriteRequest]) -> int:
        if self._capacity.group:
            return sum(map(len, nested_write(requests, self._prefix)))
        return len(flat_write(requests, self._prefix))

    def _read_size(self, requests: Sequence[ReadRequest]) -> int:
        return len(read_request(requests, self._prefix))

    # Reads

    def _read(self, requests: Sequence[ReadRequest], deadline: float) -> list[Answer]:
        body = read_request(requests, self._prefix)
        try:
            answer = self._txn(body, deadline, write=False)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.ANSWER_TOO_LARGE:
                self._read_values.refused(len(requests))
            if refusal.reason is not Reason.NO_SPACE:
                raise
            answer = self._read_one_by_one(body, deadline)
        if gets := _gets(requests):
            self._read_values.saw(gets, len(answer))
        answers, listings = _understood(lambda: parse_read(requests, _parsed(answer)), write=False)
        for index, page in listings:
            request = requests[index]
            try:
                answers[index] = self._children(request.path, page, deadline)
            except EtcdRefusedError as refusal:
                answers[index] = refusal.error.for_path(request.path)
            except MetadataStoreError as error:
                answers[index] = error.for_path(request.path)
        return answers

    # Writes

    def _write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        if self._capacity.group:
            try:
                return self._write_nested(requests, deadline)
            except FlatOnlyError:
                self._capacity.stop_nesting()
        return self._write_flat(requests, deadline)

    def _write_nested(self, requests: Sequence[WriteRequest], deadline: float) -> list[Answer]:
        fields = nested_write(requests, self._prefix)
        in_groups = len(fields) > self._capacity.direct
        # The group may have become 0 meanwhile. The connection then refuses to send this.
        body = grouped(fields, self._capacity.group or 1) if in_groups else b"".join(fields)
        response = self._write_txn(requests, body, deadline, nested=True)
        if isinstance(response, list):
            return response
        return _understood(lambda: parse_nested(requests, response, in_groups), write=True)

    def _write_flat(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes in flat transactions: in one, unless there are too many deletes."""
        chunks = self._chunks(requests)
        if len(chunks) == 1:
            return self._flat_chunk(requests, deadline)
        return self._in_parts(self._flat_chunk, chunks, deadline)

    def _flat_chunk(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes in one flat transaction, which is applied as a whole or not at all.

        If it is not applied, its answer shows, at a single revision, which writes cannot be
        applied: at least one. These are answered, and the others are sent again.
        """
        response = self._write_txn(requests, flat_write(requests, self._prefix), deadline)
        if isinstance(response, list):
            return response
        if response.succeeded:
            return _understood(lambda: parse_flat_success(requests, response), write=True)
        reasons = _understood(lambda: parse_flat_failure(requests, response), write=False)
        rest = [
            request for request, reason in zip(requests, reasons, strict=True) if reason is None
        ]
        if not rest:
            return reasons
        self.tally.add("conflict")
        answers = iter(self._beside(self._flat_chunk, rest, deadline))
        return [next(answers) if reason is None else reason for reason in reasons]

    def _chunks(self, requests: Sequence[WriteRequest]) -> list[list[WriteRequest]]:
        """Return the requests in lists, one for each flat transaction."""
        chunks: list[list[WriteRequest]] = [[]]
        room = self._capacity.direct
        for request in requests:
            room -= (weight := WRITES[request.kind].weight)
            if room < 0 and chunks[-1]:
                chunks.append([])
                room = self._capacity.direct - weight
            chunks[-1].append(request)
        return chunks

    def _write_txn(
        self,
        requests: Sequence[WriteRequest],
        body: bytes,
        deadline: float,
        *,
        nested: bool = False,
    ) -> Any:
        """Execute a transaction that writes, exactly once, even if its answer is lost.

        Returns its response, or the list of answers if they had to be read back.
        """

        def send(fields: bytes, until: float) -> Any:
            answer = self._txn(fields + body, until, nested=nested)
            # The values just written predict the next ones as well as the overwritten ones do.
            self._overwritten.saw(len(requests), max(len(body), len(answer)))
            return _understood(lambda: _parsed(answer), write=True)

        sent = time.monotonic()
        response = self._settler.run(requests, send, deadline, whole=not nested)
        if not isinstance(response, list):
            self._pace.took(len(requests), time.monotonic() - sent)
        return response

    # Calls

    def _txn(
        self, body: bytes, deadline: float, *, write: bool = True, nested: bool = False
    ) -> bytes:
        if len(body) > self._capacity.request_bytes.most:
            raise self._capacity.too_large(len(body))
        try:
            answer = self._connection.call("txn", body, deadline, write=write, nested=nested)
        except EtcdRefusedError as refusal:
            if refusal.reason is not Reason.REQUEST_TOO_LARGE:
                raise
            self._capacity.learn_request_bytes(len(body), refusal, deadline)
            raise self._capacity.too_large(len(body)) from refusal
        if write:
            self._capacity.request_bytes.accepted(len(body))
        return bytes(answer)

    def _read_one_by_one(self, body: bytes, deadline: float) -> bytes:
        """Execute the ranges of a transaction as single calls.

        An etcd beyond its quota refuses every transaction, even one that only reads.
        """
        response = messages.TxnResponse()
        for operation in messages.TxnRequest.FromString(body).success:
            found = self._range(operation.request_range, deadline)
            response.header.CopyFrom(found.header)
            response.responses.add().response_range.CopyFrom(found)
        return bytes(response.SerializeToString())

    def _children(self, path: str, page: Any, deadline: float) -> list[str]:
        below, stop = below_of(path, self._prefix)
        while True:
            listing = Listing(below, stop, FIRST_PAGE)
            # All pages show the revision of the first.
            revision = page.header.revision
            try:
                listing.take([kv.key for kv in page.kvs], page.count)
                while not listing.done:
                    page = self._page(listing, revision, deadline)
                    listing.take([kv.key for kv in page.kvs], page.count)
                break
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.COMPACTED:
                    raise
                page = self._range(_page_request(Listing(below, stop, FIRST_PAGE), 0), deadline)
        return children_of(path, listing.names())

    def _page(self, listing: Listing, revision: int, deadline: float) -> Any:
        while True:
            try:
                return self._range(_page_request(listing, revision), deadline)
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.ANSWER_TOO_LARGE or listing.limit == 1:
                    raise
                listing.limit = max(1, listing.limit // 4)

    def _range(self, request: Any, deadline: float) -> Any:
        return self._connection.call("range", request, deadline, write=False)


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
        username=options.username, password=options.password, tls=tls, **url.options
    )
    connection = EtcdConnection(addresses, credentials)
    try:
        return EtcdBackend(connection, prefix, time.monotonic() + options.connect_timeout)
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


def _page_request(listing: Listing, revision: int) -> Any:
    return messages.RangeRequest(
        key=listing.start,
        range_end=listing.end,
        limit=listing.limit,
        revision=revision,
        keys_only=True,
    )


def _parsed(answer: bytes) -> Any:
    response = messages.TxnResponse.FromString(answer)
    if response.header.revision <= 0:
        raise ValueError(f"an answer of {len(answer)} bytes has no revision")
    return response


def _understood(parse: Callable[[], _T], *, write: bool) -> _T:
    """Return the result of ``parse``, which reads an answer of the server.

    Raises:
        IndeterminateError: the answer to a write does not fit its request.
        MetadataStoreError: the answer to a read does not fit its request.
    """
    try:
        return parse()
    except (DecodeError, LookupError, StopIteration, ValueError) as error:
        kind = IndeterminateError if write else MetadataStoreError
        raise kind(f"the answer from etcd cannot be read: {error!r}") from error


def _pieces(requests: Sequence[_R], most: Callable[[Sequence[_R]], int]) -> Iterator[Sequence[_R]]:
    """Yield the requests in pieces. The size of each is computed when it is requested."""
    while requests:
        size = most(requests)
        yield requests[:size]
        requests = requests[size:]


def _halves(requests: Sequence[_R]) -> tuple[Sequence[_R], Sequence[_R]]:
    half = len(requests) // 2
    return requests[:half], requests[half:]


def _gets(requests: Sequence[ReadRequest]) -> int:
    """Return how many of the requests return values."""
    return sum([request.kind in BRINGS_VALUES for request in requests])

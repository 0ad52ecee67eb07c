"""Walks over etcd's keys: all pages show one revision, and the next page is always under way."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from typing import Any, Final, TypeVar

import grpc

from ....ops.errors import (
    IndeterminateError,
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    NotFoundError,
    RevisionCompactedError,
    StoreClosedError,
    ValueTooLargeError,
)
from ....ops.results import Range, ScanPage, StatPage, printable
from ...backend import in_steps
from ...keys import Sorted, own, path_of, sort_keys
from ...refusals import partly_removed
from ...spans import ranges, spans, with_outside
from ..sizes.estimates import AnswerBytes
from ..wire.cancelling import cancel
from ..wire.connection import EtcdConnection, Method
from ..wire.errors import EtcdRefusedError, Reason, UnansweredError
from ..wire.lineage import Lineage
from ..wire.members import tells_leases
from ..wire.protos import messages
from .page_ranges import AHEAD, PageRanges
from .pages import LAST_TRY, Page, PendingPage, parse_page
from .splitting import Bucket, cuts

__all__ = ["Scans"]

# As many keys as a range contains. With smaller pages, etcd counts each range more than once.
_LARGEST_PAGE: Final = AHEAD
# The keys that one transaction removes. etcd serves no other client meanwhile.
_DELETED_AT_ONCE: Final = 1_000
# The number of keys to request without their values before their lengths are known: an answer of
# this many is small even if the keys are long.
_FIRST_KEYS: Final = 1_000
# The number of keys in a page's sample, which determines the end of the next range.
_SAMPLE: Final = 64
_GOLDEN: Final = 0.618033988749895
# etcd's limit for the first chunk of a stream; it adapts the next ones to their bytes.
_FIRST_CHUNK: Final = 10
# The ranges that one transaction counts: below etcd's default for --max-txn-ops.
_COUNTED_AT_ONCE: Final = 120

# The stop of a stretch without an end, for guesses of page ranges. In a request, etcd's own form of
# it takes its place.
_LAST: Final = b"\xff" * 8
_NO_END: Final = b"\0"

_Made = TypeVar("_Made", ScanPage, StatPage)


class Scans:
    """Reads and removes the values under a path, for any number of threads.

    Args:
        connection: the calls to the cluster.
        prefix: precedes every path in the keys.
        owns: says whether a lease is that of the client's session.
        lineage: the history that the client has seen.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        prefix: str,
        owns: Callable[[int], bool],
        lineage: Lineage,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._owns = owns
        self._lineage = lineage
        # Two estimates, because a page of keys says nothing about the sizes of values.
        self._values = AnswerBytes()
        self._keys_alone = AnswerBytes(_FIRST_KEYS)

    def revision(self, timeout: float) -> int:
        """Return the newest revision of the cluster."""
        key = (self._prefix + "/").encode()
        request = messages.RangeRequest(key=key, count_only=True)
        return int(self._call(request, timeout).header.revision)

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[ScanPage, None, None]:
        """Yield the values under ``prefix``, in pages. See ``stores.backend.Scans``."""
        pages = self._pages(prefix, within, revision, timeout, self._results, without_values=False)
        return in_steps(pages)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the values under ``prefix``. See ``stores.backend.Scans``."""
        pages = self._pages(prefix, within, revision, timeout, self._stats, without_values=True)
        return in_steps(pages)

    def _pages(
        self,
        prefix: str,
        within: Range,
        revision: int | None,
        timeout: float,
        made_of: Callable[[Page, Sorted], _Made],
        *,
        without_values: bool,
    ) -> Generator[_Made, None, None]:
        """Yield pages that ``made_of`` builds from etcd's, and from their keys as sorted."""
        if revision == 0:
            raise InvalidSettingError("etcd's revisions begin at 1; there is no revision 0")
        asked = revision or 0  # to etcd, 0 means the newest
        for start, end in self._stretches(prefix, within):
            outside = not start.startswith(b"/")
            keys_only = without_values or outside
            try:
                with closing(self._read(start, end, asked, timeout, keys_only)) as pages:
                    for page in pages:
                        asked = asked or page.revision
                        results = made_of(page, self._sorted(page.keys))
                        if results or results.foreign:
                            yield results
            except EtcdRefusedError as refusal:
                if outside and refusal.reason is Reason.NOT_PERMITTED:
                    continue  # Keys that the login may not read are not part of its store.
                raise self._explained(refusal, asked, timeout) from refusal

    def _read(
        self, start: bytes, end: bytes, revision: int, timeout: float, keys_only: bool
    ) -> Generator[Page, None, None]:
        """Yield the entries of a stretch. The next page is under way while the caller works on one.

        Raises:
            EtcdRefusedError: as for ``EtcdConnection.call``.
        """
        windows = PageRanges(start, end)
        pending = self._begin(windows, revision, timeout, keys_only)
        try:
            while True:
                page = self._finished(pending, windows)
                revision = revision or page.revision
                left = page.total - len(page.keys)
                self._saw(page, keys_only)
                windows.took(_sample(page.keys), len(page.keys), left)
                if windows.done:
                    yield page
                    return
                stream = None
                usual = self._values.values
                if not keys_only and usual >= _FIRST_CHUNK and not 0 < left <= usual:
                    request = _range(windows.start, end, revision=revision)
                    stream = self._connection.stream(request, timeout)
                if stream is None:
                    pending = self._begin(windows, revision, timeout, keys_only)
                    yield page
                    continue
                windows = PageRanges(windows.start, end)
                remaining = yield from self._streamed(stream, page, windows, timeout)
                if remaining is None:
                    return
                pending = self._begin(windows, revision, remaining, keys_only)
        finally:
            pending.give_up()

    def _streamed(
        self, stream: Any, page: Page, windows: PageRanges, timeout: float
    ) -> Generator[Page, None, float | None]:
        """Yield the page before a stream, and the stream's chunks.

        A stream that breaks is followed by a page, so that retries, failover, and errors are those
        of pages. ``timeout`` is for the whole stream: one with a slow caller breaks, too.

        Returns:
            ``None`` if the stream was complete; otherwise the timeout of the page that follows.
            ``windows`` then begins at its first key.
        """
        process = os.getpid()
        try:
            yield page
            asked = time.monotonic()
            for answer in stream:
                page = parse_page(answer, True)
                self._saw(page, keys_only=False)
                if page.keys:
                    windows.start = page.keys[-1] + b"\0"
                yield page
                asked = time.monotonic()
        except grpc.RpcError as error:
            self._connection.stream_broke(error)
            # The timeout counts only while the caller waits.
            return max(timeout - (time.monotonic() - asked), LAST_TRY)
        else:
            return None
        finally:
            cancel(stream, process)

    def _stretches(self, prefix: str, within: Range) -> list[tuple[bytes, bytes]]:
        """Return a scan's stretches of keys; without a prefix, also those without a slash."""
        if self._prefix:
            inside = spans(prefix, within)
            return [((self._prefix + a).encode(), (self._prefix + b).encode()) for a, b in inside]
        # etcd has no empty key; the first possible one is a zero byte.
        return [
            (start.encode() or b"\0", _LAST if end is None else end.encode())
            for start, end in with_outside(prefix, within)
        ]

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges with about equally many values. See ``stores.backend.Scans``."""
        start, end = spans(prefix)[-1]
        stretch = (self._prefix + start).encode(), (self._prefix + end).encode()

        def count(edges: Sequence[bytes]) -> Sequence[Bucket]:
            return self._count(prefix, edges, timeout)

        def keys(bucket: Bucket, limit: int) -> Sequence[bytes]:
            return [kv.key for kv in self._keys(bucket.start, bucket.end, limit, timeout).kvs]

        (bucket,) = count(stretch)
        starts: list[str] = []
        for cut in cuts(bucket, n, count, keys) if n > 1 else ():
            path = self._path(cut)
            if path is None:
                # A foreign key can begin no range, so take the next path.
                near = self._keys(cut, stretch[1], _DELETED_AT_ONCE, timeout).kvs
                path = next(filter(None, (self._path(kv.key) for kv in near)), None)
            if path is not None and (not starts or path > starts[-1]):
                starts.append(path)
        return ranges(starts)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the values under ``path``, and return their number.

        Only keys that a page has shown are removed, so hidden keys stay, even those put at this
        moment. If an answer is lost, the request is repeated; the keys that it removed the first
        time are then not counted.
        """
        removed = 0
        try:
            # The path itself last: who follows the changes can only remove it when it is empty.
            for start, end in reversed(spans(path)):
                windows = PageRanges((self._prefix + start).encode(), (self._prefix + end).encode())
                while not windows.done:
                    page = self._keys(windows.start, windows.end, _DELETED_AT_ONCE, timeout)
                    keys = [kv.key for kv in page.kvs]
                    windows.took(_sample(keys), len(keys), page.count - len(keys))
                    for visible, run in groupby(keys, lambda key: self._path(key) is not None):
                        if visible:
                            for count in self._remove([*run], page.header.revision, timeout):
                                removed += count
        except EtcdRefusedError as refusal:
            raise partly_removed(removed, path, refusal.at(path)) from refusal
        except MetadataStoreError as error:
            raise partly_removed(removed, path, error) from error
        return removed

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        """Remove a foreign key. See ``stores.keys.ForeignRemoval``."""
        name = f"'{printable(key)}'"
        if own(key) or (self._prefix and not key.startswith(b"/")):
            raise InvalidPathError(f"{name} is reserved, or outside the prefix of the store's URL")
        whole = self._prefix.encode() + key
        try:
            # If the answer of a removal is lost, the count of its repetition says nothing.
            found = self._range(messages.RangeRequest(key=whole, count_only=True), timeout)
            if not found.count:
                raise NotFoundError(f"nothing to delete at {name}")
            if not dry_run:
                list(self._remove([whole], found.header.revision, timeout))
        except EtcdRefusedError as refusal:
            raise refusal.at(printable(key)) from refusal

    def _remove(self, keys: Sequence[bytes], revision: int, timeout: float) -> Iterator[int]:
        """Remove successive keys, but nothing between them that is newer than ``revision``.

        A single key that is newer is removed as it is then. Yields the number of removed keys of
        each request.
        """
        stretch = {"key": keys[0]}
        if len(keys) > 1:
            stretch["range_end"] = keys[-1] + b"\0"
        delete = messages.DeleteRangeRequest(**stretch)
        txn = messages.TxnRequest(success=[messages.RequestOp(request_delete_range=delete)])
        # The condition must hold for every existing key of the range. It also refuses a copy of the
        # request that comes late, after somebody has put the key again.
        txn.compare.add(
            result=messages.Compare.LESS,
            target=messages.Compare.MOD,
            mod_revision=revision + 1,
            **stretch,
        )
        deadline = time.monotonic() + timeout
        try:
            answer = self._repeated("txn", txn.SerializeToString(), deadline)
        except EtcdRefusedError as refusal:
            if len(keys) > 1 and isinstance(refusal.error, ValueTooLargeError):
                answer = b""  # It names four very long keys; for a single key, it names two.
            elif refusal.reason is Reason.NO_SPACE or isinstance(refusal.error, ValueTooLargeError):
                # An etcd beyond its quota refuses every transaction, but accepts this, and it names
                # a single key once.
                found = self._repeated("delete_range", delete, deadline)
                yield int(found.deleted)
                return
            else:
                raise
        response = messages.TxnResponse.FromString(answer)
        if response.succeeded:
            yield int(response.responses[0].response_delete_range.deleted)
            return
        if len(keys) == 1:  # Somebody has put it since.
            yield from self._remove(keys, response.header.revision, timeout)
            return
        half = len(keys) // 2
        yield from self._remove(keys[:half], revision, timeout)
        yield from self._remove(keys[half:], revision, timeout)

    def _repeated(self, method: Method, request: Any, deadline: float) -> Any:
        """Make a call that removes, until it is answered: to remove twice does no harm."""
        try:
            return self._connection.call(method, request, deadline, write=True)
        except UnansweredError:
            pass
        try:
            return self._connection.call(method, request, deadline, write=False)
        except MetadataStoreError as error:
            if not (error.retriable or isinstance(error, StoreClosedError)):
                raise
            raise IndeterminateError(
                f"the request was sent and may have been executed: {error}"
            ) from error

    def _count(self, prefix: str, edges: Sequence[bytes], timeout: float) -> list[Bucket]:
        """Count the keys between edges, and find the first key of each stretch."""
        buckets: list[Bucket] = []
        stretches = [*pairwise(edges)]
        for place in range(0, len(stretches), _COUNTED_AT_ONCE):
            some = stretches[place : place + _COUNTED_AT_ONCE]
            requests = [
                messages.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
                for start, end in some
            ]
            answers = self._ranges(prefix, requests, timeout)
            for (start, end), found in zip(some, answers, strict=True):
                first = found.kvs[0].key if found.kvs else b""
                buckets.append(Bucket(start, end, found.count, first))
        return buckets

    def _ranges(self, prefix: str, requests: Sequence[Any], timeout: float) -> list[Any]:
        """Execute ranges in one transaction, or singly if etcd refuses that."""
        operations = [messages.RequestOp(request_range=request) for request in requests]
        body = messages.TxnRequest(success=operations).SerializeToString()
        deadline = time.monotonic() + timeout
        try:
            answer = self._connection.call("txn", body, deadline, write=False)
        except EtcdRefusedError as refusal:
            for_its_size = isinstance(refusal.error, ValueTooLargeError)
            if not for_its_size and refusal.reason not in (Reason.TOO_MANY_OPS, Reason.NO_SPACE):
                raise refusal.at(prefix) from refusal
            return [self._call(request, timeout) for request in requests]
        responses = messages.TxnResponse.FromString(answer).responses
        return [response.response_range for response in responses]

    def _keys(self, start: bytes, end: bytes, limit: int, timeout: float) -> Any:
        """Read the first keys of a range: ``limit``, or fewer if they are very long."""
        while True:
            request = messages.RangeRequest(key=start, range_end=end, limit=limit, keys_only=True)
            try:
                return self._range(request, timeout)
            except EtcdRefusedError as refusal:
                if limit == 1 or refusal.reason is not Reason.ANSWER_TOO_LARGE:
                    raise refusal.error from refusal
            limit = max(1, limit // 4)

    def _path(self, key: bytes) -> str | None:
        """Return the path of a key, or ``None`` if callers cannot reach it."""
        return path_of(key[len(self._prefix.encode()) :])

    def _saw(self, page: Page, keys_only: bool) -> None:
        """Learn from a page."""
        if not page.keys:
            return
        self._learned(keys_only).saw(len(page.keys), page.size)
        if self._lineage.watched:
            newest = max(page.revisions)
            place = page.revisions.index(newest)
            value = None if keys_only else page.values[place]
            self._lineage.saw(page.keys[place], newest, value)

    def _learned(self, keys_only: bool) -> AnswerBytes:
        return self._keys_alone if keys_only else self._values

    def _begin(
        self, windows: PageRanges, revision: int, timeout: float, keys_only: bool
    ) -> PendingPage:
        limit = min(self._learned(keys_only).values, _LARGEST_PAGE)
        request = _range(
            windows.start, windows.end, limit=limit, revision=revision, keys_only=keys_only
        )
        return PendingPage(self._connection, request, timeout)

    def _finished(self, pending: PendingPage, windows: PageRanges) -> Page:
        """Return a page, with fewer entries than requested if their values were too large.

        Raises:
            EtcdRefusedError: as for ``EtcdConnection.call``.
        """
        while True:
            asked = pending.request
            try:
                page = pending.result()
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.ANSWER_TOO_LARGE or asked.limit == 1:
                    raise
                self._learned(asked.keys_only).refused(asked.limit)
                pending = self._begin(windows, asked.revision, pending.timeout, asked.keys_only)
                continue
            if asked.keys_only:
                page = self._with_leases(page, asked.revision or page.revision, pending.timeout)
            return page

    def _with_leases(self, page: Page, revision: int, timeout: float) -> Page:
        """Return a page of keys at a revision, each with its lease.

        From 3.7 on, keys without values come from etcd's index, which knows no leases, unless the
        request sorts them by value. A sorted request with a limit would lose keys from the middle.
        So only a page whose ends are known can be requested in this way.
        """
        version = self._connection.open(time.monotonic() + timeout).version
        if not page.keys or tells_leases(version):
            return page
        request = messages.RangeRequest(
            key=page.keys[0],
            range_end=page.keys[-1] + b"\0",
            revision=revision,
            keys_only=True,
            sort_target=messages.RangeRequest.VALUE,
        )
        pending = PendingPage(self._connection, request, timeout)
        try:
            found = pending.result()
        except EtcdRefusedError as refusal:
            raise self._explained(refusal, revision, timeout) from refusal
        finally:
            pending.give_up()
        leases = dict(zip(found.keys, found.leases, strict=True))
        return page._replace(leases=[leases[key] for key in page.keys])

    def _results(self, page: Page, found: Sorted) -> ScanPage:
        # Each column is built in one go. Tuples that live on as whole pages would cost the garbage
        # collector more time than all the rest.
        values = found.of(page.values)
        return ScanPage(found.paths, values, *self._stats_of(page, found), foreign=found.foreign)

    def _stats(self, page: Page, found: Sorted) -> StatPage:
        return StatPage(found.paths, *self._stats_of(page, found), foreign=found.foreign)

    def _stats_of(
        self, page: Page, found: Sorted
    ) -> tuple[Sequence[int], Sequence[int], list[bool], None, None, list[bool] | None]:
        """Return versions, revisions, whether the values are ephemeral, no times, and the owned."""
        leases = found.of(page.leases)
        owned = [lease != 0 and self._owns(lease) for lease in leases] if any(leases) else None
        return (
            found.of(page.versions),
            found.of(page.revisions),
            [lease != 0 for lease in leases],
            None,
            None,
            owned if owned and any(owned) else None,
        )

    def _sorted(self, keys: Sequence[bytes]) -> Sorted:
        """Separate keys into paths and foreign keys."""
        skip = len(self._prefix.encode())
        return sort_keys([key[skip:] for key in keys])

    def _call(self, request: Any, timeout: float) -> Any:
        try:
            return self._range(request, timeout)
        except EtcdRefusedError as refusal:
            raise refusal.error from refusal

    def _range(self, request: Any, timeout: float) -> Any:
        return self._connection.call("range", request, time.monotonic() + timeout, write=False)

    def _explained(
        self, refusal: EtcdRefusedError, asked: int, timeout: float
    ) -> MetadataStoreError:
        """Return the caller's error for a range at a revision that was refused."""
        if refusal.reason is Reason.FUTURE:
            newest = self.revision(timeout)
            return InvalidSettingError(
                f"revision {asked:,} does not exist yet; etcd's newest is {newest:,}"
            )
        if refusal.reason is Reason.COMPACTED:
            oldest = self._oldest(asked, timeout)
            return RevisionCompactedError(
                f"etcd no longer keeps revision {asked:,}: it was compacted, and the oldest "
                f"readable revision is {oldest:,}. Scan a newer revision, or the newest by passing "
                f"none. If this happens during a scan, compact less often "
                f"(--auto-compaction-retention), or scan more and smaller parts in parallel",
                oldest=oldest,
            )
        return refusal.error

    def _oldest(self, compacted: int, timeout: float) -> int:
        """Return the oldest readable revision, by bisection, because etcd does not name it."""
        key = (self._prefix + "/").encode()

        def readable(revision: int) -> bool:
            request = messages.RangeRequest(key=key, count_only=True, revision=revision)
            try:
                self._range(request, timeout)
            except EtcdRefusedError as refusal:
                if refusal.reason is Reason.COMPACTED:
                    return False
                raise refusal.error from refusal
            return True

        newest = self.revision(timeout)
        return compacted + 1 + bisect_left(range(compacted + 1, newest), True, key=readable)


def _range(start: bytes, end: bytes, **asked: Any) -> Any:
    """Return the request for the keys from ``start`` to ``end``."""
    return messages.RangeRequest(key=start, range_end=_NO_END if end == _LAST else end, **asked)


def _sample(keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return a sample of the keys, with the first and the last one in place."""
    size = len(keys)
    if size <= _SAMPLE:
        return keys
    # Not at even distances, because numbers there could all end in the same digits. Multiples of
    # the golden ratio spread over any size.
    places = [0, *(int(place * _GOLDEN % 1 * size) for place in range(1, _SAMPLE)), size - 1]
    return [keys[place] for place in places]

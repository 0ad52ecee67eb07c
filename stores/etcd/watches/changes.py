"""Reads the changes to a range of keys between two revisions from etcd's history, with a watch.

A watch reports changes, but does not report their end. To end for certain, a call needs to know
when all changes up to its last revision have arrived. There are three ways:

- A change of a greater revision arrives. The changes of one watch arrive in order.
- The member answers a progress request. Only from 3.4.31 and 3.5.13 on, that answer is in order
  with the changes (etcd #15220), and arrives even if there is no change (etcd #17507).
- On an older etcd, and behind ``etcd grpc-proxy``, the watch covers all keys, and the call skips
  the others. Every revision but the first has changed some key, so the last revision has a change
  of its own.

Changes of one revision are returned together. A watch that breaks continues after the last complete
revision.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import grpc

from ....ops.errors import (
    AuthenticationError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    RevisionCompactedError,
    StoreClosedError,
)
from ....ops.log import get_logger
from ....ops.results import Change, ChangePage
from ...backend import in_steps
from ...keys import own, path_of
from ..wire.cancelling import cancel
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason, not_permitted, read_text, short, too_large
from ..wire.fields import below_of
from ..wire.members import Link, tells_progress
from ..wire.protos import messages
from .messages import ALL_KEYS, ASK_PROGRESS, PUT, create_request, is_fragment

__all__ = ["FIRST_REVISION", "History", "check_revision"]

_log = get_logger(__name__)

# Seconds between progress requests. etcd looks every 100 ms for watches that lag behind.
_ASK_EVERY: Final = 0.03

# The id that is proposed for a watch. A peer that chooses ids itself chooses no such one.
_WATCH_ID: Final = 2**32

#: The revision of an empty store, the only one without a change.
FIRST_REVISION: Final = 1


class _Span(NamedTuple):
    """The keys of a call: one key, and those from ``below`` to before ``stop``.

    With ``everything``, it also contains keys without a leading slash, which are foreign.
    """

    prefix: int
    own: bytes
    below: bytes
    stop: bytes
    everything: bool

    def __contains__(self, key: object) -> bool:
        if self.everything or key == self.own:
            return True
        return isinstance(key, bytes) and self.below <= key < self.stop


class History:
    """Yields past changes, for any number of threads. See ``stores.backend.History``.

    Args:
        connection: the calls to the cluster.
        prefix: precedes every path in the keys.
    """

    def __init__(self, connection: EtcdConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    def revision(self, path: str, timeout: float) -> int:
        """Return the newest revision, for a login that may read ``path``."""
        below, _ = below_of(path, self._prefix)
        try:
            return _newest(self._connection, below if path == "/" else below[:-1], 0, timeout)
        except EtcdRefusedError as refusal:
            raise refusal.error from refusal

    def changes(
        self, prefix: str, after: int, until: int, timeout: float
    ) -> Generator[Sequence[Change], None, None]:
        """Yield each change under ``prefix`` between two revisions once, in pages."""
        return in_steps(_changes(self._connection, self._prefix, prefix, after, until, timeout))


def _changes(
    connection: EtcdConnection, prefix: str, path: str, after: int, until: int, timeout: float
) -> Generator[Sequence[Change], None, None]:
    below, stop = below_of(path, prefix)
    own = below if path == "/" else below[:-1]
    span = _Span(len(prefix.encode()), own, below, stop, everything=False)
    after = max(after, FIRST_REVISION)
    last = check_revision(connection, span.below, after, timeout)
    if until > last:
        raise InvalidSettingError(f"revision {until} does not exist yet; the newest is {last}")
    if own == below and not prefix and after < until:
        span = span._replace(everything=_may_read_all(connection, timeout))
    failures = 0
    divided = chosen = False
    deadline = time.monotonic() + timeout
    while after < until:
        link = connection.open(deadline)
        progress = tells_progress(link.version) and not chosen
        watch = _HistoryWatch(connection.user, link, span, after, until, timeout, divided, progress)
        cause: grpc.RpcError | None = None
        try:
            with closing(watch):
                yield from watch.pages()
        except grpc.RpcError as error:
            if watch.stalled:
                raise OperationTimeoutError(
                    f"the watch received nothing from etcd at {link.address} for {timeout:g} s"
                ) from error
            cause = error
        if watch.after == until:
            return
        if watch.heard:
            failures, deadline, after = 0, time.monotonic() + timeout, watch.after
        if watch.chosen and not chosen:
            chosen = True
            continue
        # Divided answers cost etcd far more, so they are requested only where they are needed.
        divided = too_large(cause) and not divided
        if divided:
            continue
        connection.broken(link, cause, failures, deadline)
        failures += 1
        _log.debug("etcd watch opened again", after=after)


def check_revision(connection: EtcdConnection, key: bytes, after: int, timeout: float) -> int:
    """Return the newest revision, if the changes after a revision are all kept.

    etcd also refuses a watch after a compaction, but not if its first revision is the compacted one
    itself. Deletes may be missing then (etcd #18089).

    Args:
        connection: the calls to the cluster.
        key: a key that the login may read.
        after: the revision.
        timeout: seconds for each request.

    Raises:
        InvalidSettingError: the revision does not exist yet.
        RevisionCompactedError: the changes after it are incomplete.
        MetadataStoreError: as for a read.
    """

    def readable(revision: int) -> bool:
        try:
            _newest(connection, key, revision, timeout)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.COMPACTED:
                return False
            raise
        return True

    try:
        try:
            return _newest(connection, key, after, timeout)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.FUTURE:
                raise InvalidSettingError(f"revision {after} does not exist yet") from refusal
            if refusal.reason is not Reason.COMPACTED:
                raise
            later = range(after + 1, _newest(connection, key, 0, timeout))
            kept = after + 1 + bisect_left(later, True, key=readable)
            raise _compacted(after, kept) from refusal
    except EtcdRefusedError as refusal:
        raise refusal.error from refusal


def _newest(connection: EtcdConnection, key: bytes, revision: int, timeout: float) -> int:
    """Return the newest revision, by a read of a key at a revision; 0 for the newest one."""
    request = messages.RangeRequest(key=key, revision=revision, limit=1, count_only=True)
    deadline = time.monotonic() + timeout
    return int(connection.call("range", request, deadline, write=False).header.revision)


def _may_read_all(connection: EtcdConnection, timeout: float) -> bool:
    """Say whether the login may read all keys. Others see at most the keys below the slash."""
    request = messages.RangeRequest(key=ALL_KEYS, range_end=ALL_KEYS, limit=1, count_only=True)
    try:
        connection.call("range", request, time.monotonic() + timeout, write=False)
    except EtcdRefusedError as refusal:
        if refusal.reason is Reason.NOT_PERMITTED:
            return False
        raise refusal.error from refusal
    return True


def _compacted(after: int, kept: int) -> RevisionCompactedError:
    return RevisionCompactedError(
        f"the changes after revision {after} are incomplete: the store was compacted at revision "
        f"{kept} and keeps only later changes",
        oldest=kept,
    )


class _HistoryWatch:
    """One watch at one member, until all changes between two revisions have arrived.

    Attributes:
        after: the last revision whose changes have all been returned.
        heard: whether the member has sent anything that makes progress.
        stalled: whether the watch was ended because it made no progress for too long.
        chosen: whether the peer has chosen the id of the watch itself, as ``etcd grpc-proxy`` does,
            which reports no progress.
    """

    def __init__(
        self,
        user: str,
        link: Link,
        span: _Span,
        after: int,
        until: int,
        timeout: float,
        divided: bool,
        progress: bool,
    ) -> None:
        self.after = after
        self.heard = False
        self.stalled = False
        self.chosen = False
        self._user = user
        self._span = span
        self._until = until
        self._timeout = timeout
        self._divided = divided
        self._progress = progress
        self._newest = after
        # The changes of the newest revision, which may be incomplete, and its foreign keys.
        self._held: list[Change] = []
        self._foreign: list[bytes] = []
        # Not an Event: the garbage collector closes a dropped watch in any thread, even one that
        # waits for the Event and holds its lock.
        self._closed = False
        # The time of the last progress, None while no caller waits. Read by gRPC's request thread.
        self._since: float | None = time.monotonic()
        self._process = os.getpid()
        self._call: Any = None
        try:
            self._call = link.calls.watch(self._requests(), metadata=link.metadata)
        except ValueError as error:  # from gRPC, for a call on a closed channel
            raise StoreClosedError("the store is closed") from error

    def pages(self) -> Generator[ChangePage, None, None]:
        """Yield the changes; those of one revision always together.

        It ends early if etcd no longer accepts the login, if the member ends the watch, or if the
        peer reports no progress.

        Raises:
            grpc.RpcError: the stream broke.
            MetadataStoreError: etcd refuses the watch.
        """
        for response in self._call:
            if response.canceled:
                self._refused(response)
                return
            if response.created and self._progress and response.watch_id != _WATCH_ID:
                self.chosen = True
                return
            before = self.after
            page = self._take(response)
            if self.after > before or response.events:
                self.heard = True
                self._since = None
                if page or page.foreign:
                    yield page
                if self.after == self._until:
                    return
                self._since = time.monotonic()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        cancel(self._call, self._process)

    def _requests(self) -> Iterator[bytes]:
        """Yield the requests of the stream, in a thread of gRPC, until the watch is closed."""
        # Without progress reports, the watch covers all keys, from the first one on without an end.
        narrow = self._progress and not self._span.everything
        first, stop = (self._span.own, self._span.stop) if narrow else (ALL_KEYS, ALL_KEYS)
        # At the last known revision, so that etcd refuses the watch if the next one is compacted:
        # older ones leave out a delete there (etcd #18089). 0 would be etcd's newest revision.
        start = max(self.after, 1)
        yield create_request(first, stop, start, watch=_WATCH_ID, fragment=self._divided)
        while True:
            time.sleep(_ASK_EVERY)
            if self._closed:
                return
            since = self._since
            if since is None:
                continue
            if time.monotonic() - since > self._timeout and self._call is not None:
                self.stalled = True
                self._call.cancel()
                return
            if self._progress:
                yield ASK_PROGRESS

    def _take(self, response: Any) -> ChangePage:
        """Process a response; return the changes of all complete revisions."""
        page = ChangePage([], [])
        for event in response.events:
            revision = event.kv.mod_revision
            if revision > self._newest:
                self._complete(page)
                self._newest = revision
            if self.after < revision <= self._until:
                self._hold(event)
        if not is_fragment(response):
            if self._progress and not response.events and not response.created:
                self._newest = max(self._newest, response.header.revision)
            self._complete(page)
        return page

    def _complete(self, page: ChangePage) -> None:
        """Move the held changes to a page."""
        page += self._held
        page.foreign += self._foreign
        self._held, self._foreign = [], []
        self.after = min(self._newest, self._until)

    def _hold(self, event: Any) -> None:
        """Hold the change of a path, or a foreign key."""
        kv = event.kv
        if kv.key not in self._span:
            return
        key = kv.key[self._span.prefix :]
        if (path := path_of(key)) is None:
            if not own(key):
                self._foreign.append(key)
        elif event.type == PUT:
            self._held.append(
                Change(
                    path, "put", kv.value, kv.version - 1, kv.mod_revision, ephemeral=kv.lease != 0
                )
            )
        else:
            self._held.append(Change(path, "delete", None, None, kv.mod_revision))

    def _refused(self, response: Any) -> None:
        """Raise the reason why etcd ended the watch; return if it may be opened again."""
        if response.compact_revision:
            raise _compacted(self.after, response.compact_revision)
        text = response.cancel_reason
        reason = read_text(text)
        if reason is Reason.LOGIN_EXPIRED:
            return
        if reason is Reason.NOT_PERMITTED:
            whole = "; before 3.5.13, and behind a proxy, the watch must cover all keys"
            whole = "" if self._progress else whole
            where = f"the changes at {self._span.own.decode()!r}"
            raise AuthenticationError(not_permitted(self._user, where, text) + whole)
        raise MetadataStoreError(f"etcd ended the watch: {short(text)}")

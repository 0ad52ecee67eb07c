"""Watches on etcd: all watches of a client share one stream, and survive its end.

A thread holds the stream and delivers the events. If the stream ends, the thread opens another one
at any member, and places all watches again, each where it was.

A watch covers the range from its own path to the end of what lies below, as one watch of etcd, so
that etcd itself keeps the order, and what one transaction changes arrives together. The keys in
between, such as ``/a-b`` for ``/a``, are left out here.

Where a watch goes on:

- ``after`` is the last revision of which everything has been delivered. Events move it, and so does
  the progress that etcd reports, so that an idle watch does not fall behind a compaction.
- After an outage, a watch begins at the revision ``after`` itself, and what comes again is left
  out. One revision later could be the revision of a compaction, and there etcd may leave out a
  delete without a word (etcd #18089). A watch that begins before a compaction, it cancels.
- Where etcd cannot give what was missed, the watch starts over, and then a gap is delivered: when
  the history was compacted, or when etcd has another one (see ``lineage``).

Which watch an answer belongs to:

- The answer to a request has the id of the watch, and so have its events and reports. The client
  proposes an id. etcd takes it, and answers in the order of the requests, so that many can be under
  way. A refusal finds its watch by that order alone: 3.5.1 names the watch that it refuses, but
  3.5.35, 3.6 and 3.7 do not.
- ``etcd grpc-proxy`` chooses ids itself, answers in any order, and reports no progress on request.
  The first answer of a stream shows that. From then on, one request is under way at a time.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from ....ops.backoff import Backoff
from ....ops.errors import (
    AuthenticationError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ....ops.log import get_logger
from ....ops.paths import OWN
from ....ops.results import WatchEvent
from ...backend import start_thread
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason, not_permitted, read_text, short, too_large
from ..wire.fields import below_of
from ..wire.lineage import Lineage
from ..wire.members import Link
from ..wire.protos import messages
from .changes import FIRST_REVISION, check_revision
from .messages import ASK_PROGRESS, PUT, cancel_request, create_request, is_fragment
from .stream import ASK_EVERY, WatchStream
from .watch import EtcdWatch, Keys

__all__ = ["EtcdWatches"]

_log = get_logger(__name__)

# Seconds. A search for a member, or a request, is given up and begun again after this time.
_ATTEMPT: Final = 5.0
# Seconds for a read before watches are placed again. A member that answers no read for so long is
# given up: it may be cut off from the others.
_LOOK: Final = 2.5
# A watch fails if etcd ends it this many times in a row, without a known reason and an event.
_ENDINGS: Final = 5
# Pauses after etcd has refused something without a known reason.
_REFUSED: Final = Backoff(first=0.1, longest=10.0)
# Seconds for which closing waits for the thread.
_JOIN: Final = 1.0
# Proposed ids are larger than this: a peer that chooses ids itself chooses no such one by accident.
_BEFORE_FIRST: Final = 2**32


class _ExpiredError(Exception):
    """etcd no longer accepts the login of a stream."""


class _EndedError(Exception):
    """etcd has ended a watch for a reason that is not known."""


class EtcdWatches:
    """The watches of one client. See :class:`stores.backend.Watches`.

    Args:
        connection: the calls to the cluster.
        prefix: precedes every path in the keys.
        lineage: the history that the client has seen.

    Attributes:
        when_back: called, without a lock, whenever all watches are in place.
        owns: says whether a lease is that of the client's session.
    """

    def __init__(self, connection: EtcdConnection, prefix: str, lineage: Lineage) -> None:
        self.when_back: Callable[[], None] = _nothing
        self.owns: Callable[[int], bool] = _owns_none
        self._connection = connection
        self._lineage = lineage
        self._prefix = prefix
        self._skip = len(prefix.encode())
        self._hidden = f"{prefix}/{OWN}/".encode()
        self._process = os.getpid()
        self._changed = threading.Condition()  # guards the fields below
        self._watches: dict[EtcdWatch, None] = {}  # in the order of their creation
        self._stream: WatchStream | None = None
        self._by_id: dict[int, EtcdWatch] = {}  # those in place in the present stream
        self._waiting: deque[EtcdWatch] = deque()  # those to request in it
        # Those requested in it, without an answer, with the proposed ids.
        self._placing: deque[tuple[EtcdWatch, int]] = deque()
        self._last_id = _BEFORE_FIRST
        # The last ids that were placed before the last request for progress, and before the one
        # before that. etcd answers such a request only if it is up to date with all watches.
        self._settled = _BEFORE_FIRST
        self._covered = _BEFORE_FIRST
        self._thread: threading.Thread | None = None
        self._closed = False
        # Only the thread uses the fields below.
        self._history = 0  # the number of the history in which watches were placed
        self._fragment = False  # whether etcd is to divide large answers

    @property
    def forked(self) -> bool:
        """Whether this is a child that was forked after the store had been opened."""
        return os.getpid() != self._process

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> EtcdWatch:
        """Report each change under ``prefix`` once, in order. See ``stores.backend.Watches``."""
        return self._begin_watch(prefix, after, deliver, fail, deadline, None)

    def watch_values(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> EtcdWatch:
        """Report changes with their values. See ``stores.backend.ValueWatches``."""
        return self._begin_watch(prefix, after, deliver, fail, deadline, self.owns)

    def _begin_watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
        owns: Callable[[int], bool] | None,
    ) -> EtcdWatch:
        below, stop = below_of(prefix, self._prefix)
        first = below if prefix == "/" else below[:-1]
        keys = Keys(first, below, stop, self._hidden, self._skip)
        watch = EtcdWatch(self, prefix, keys, deliver, fail, owns=owns)
        self._lineage.watched = True
        newest = self._newest(first, deadline)
        if after is None:
            # A compaction of the very next revision, before the watch is placed, does not happen:
            # so it may begin there, and etcd need not look back.
            watch.after = newest
            watch.fresh = True
        else:
            watch.after = max(after, FIRST_REVISION)
            left = deadline - time.monotonic()
            check_revision(self._connection, first, watch.after, left)
        self._await(watch, deadline)
        return watch

    def watch_deletion(
        self,
        path: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> EtcdWatch:
        """Report the deletion of a path; see ``stores.backend.DeletionWatches``.

        The member chooses where the watch begins. If the client did, by a read before, every write
        until then would put the beginning into the past, and etcd lets such watches catch up only
        every 100 ms. A read afterwards shows what the watch does not.
        """
        below, _ = below_of(path, self._prefix)
        keys = Keys(below[:-1], below, b"", self._hidden, self._skip)
        watch = EtcdWatch(self, path, keys, deliver, fail)
        self._lineage.watched = True
        self._await(watch, deadline)
        request = messages.RangeRequest(key=keys.first, limit=1, count_only=True)
        try:
            there = self._connection.call("range", request, deadline, write=False).count
        except BaseException as error:
            watch.close()
            if isinstance(error, EtcdRefusedError):
                raise error.error from error
            raise
        if not there:
            watch.take([WatchEvent("deleted", path)])
        return watch

    def _await(self, watch: EtcdWatch, deadline: float) -> None:
        """Place a watch, and wait until it is in place.

        Raises:
            MetadataStoreError: it is not in place.
        """
        with self._changed:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._watches[watch] = None
            if self._stream is not None:
                self._place(watch)
            self._begin()
            placed = self._changed.wait_for(
                lambda: watch.answered or watch.error or self._closed, deadline - time.monotonic()
            )
            if watch.error is not None:
                raise watch.error
            if self._closed:
                raise StoreClosedError("the store is closed")
            watch.answered = True  # From now on, errors go to `fail`.
        if not placed:
            watch.close()
            raise self._connection.late("the watch is not in place yet")

    def remove(self, watch: EtcdWatch) -> None:
        """Forget a watch, and end it at the server."""
        with self._changed:
            if self._watches.pop(watch, self) is self:
                return
            # One that is not in place yet is cancelled by its answer, which has its id.
            if watch.placed and self._stream is not None:
                self._by_id.pop(watch.watch_id, None)
                self._stream.queue.append(cancel_request(watch.watch_id))
                self._changed.notify_all()

    def interrupt(self) -> None:
        """Place all watches again, because the connection was lost for another stream."""
        with self._changed:
            stream = self._stream
            if stream is None:
                return
            stream.interrupted = True
            self._displace()
        stream.close()

    def back(self) -> bool:
        """Say whether all watches are in place, and their gaps delivered."""
        with self._changed:
            return all(watch.placed for watch in self._watches)

    def close(self) -> None:
        """End all watches. No delivery begins after the call has returned."""
        if self.forked:
            return
        with self._changed:
            self._closed = True
            watches, stream = list(self._watches), self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.close()
        # Outside the lock: closing a watch waits for the end of a delivery.
        for watch in watches:
            watch.close()

    def join(self) -> None:
        """Wait until the thread has ended, after everything was closed, but not for long."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self.forked:
            thread.join(_JOIN)

    def _newest(self, key: bytes, deadline: float) -> int:
        """Return the newest revision, by a linearizable read of a key that the login may read.

        Raises:
            MetadataStoreError: as for a read.
        """
        try:
            return int(self._lineage.header(key, deadline).revision)
        except EtcdRefusedError as refusal:
            raise refusal.error from refusal

    def _readable(self, key: bytes, revision: int) -> bool:
        """Say whether a revision has not been compacted."""
        request = messages.RangeRequest(key=key, revision=revision, limit=1, count_only=True)
        try:
            self._connection.call("range", request, time.monotonic() + _LOOK, write=False)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.FUTURE:
                return True
            if refusal.reason is not Reason.COMPACTED:
                raise refusal.error from refusal
            return False
        return True

    # The thread

    def _begin(self) -> None:
        """Start the thread, or wake it. The caller holds the lock."""
        self._changed.notify_all()
        if self._thread is None:
            self._thread = start_thread(self._run, "batchkeeper-etcd-watches")

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watches or self._closed)
                if self._closed:
                    return
            try:
                if self._check_resumable():
                    link = self._connection.open(time.monotonic() + _ATTEMPT)
                    failures = 0 if self._follow(link, failures) else failures + 1
            except StoreClosedError:
                return
            except (AuthenticationError, UnsupportedError) as error:
                # The login was refused, or the server is not etcd: waiting does not help.
                for watch in list(self._watches):
                    self._give_up(watch, error)
            except (StoreUnavailableError, OperationTimeoutError):
                failures += 1  # The connection has paused between its attempts.
            except Exception as error:
                # Whatever it is: a thread that ended here would leave all watches silent for ever.
                known = isinstance(error, MetadataStoreError)
                _log.warning("etcd watches interrupted", reason=str(error), exc_info=not known)
                failures += 1
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _REFUSED.pause(failures))

    def _check_resumable(self) -> bool:
        """Find out whether the watches that were in place can go on where they were.

        Returns:
            Whether to open a stream. Otherwise, a watch has failed instead.

        Raises:
            MetadataStoreError: no member answers, or the login was refused.
        """
        with self._changed:
            known = [watch for watch in self._watches if watch.answered]
        if not known:
            return True
        key = known[0].keys.first
        try:
            newest = self._newest(key, time.monotonic() + _LOOK)
            self._lineage.check(time.monotonic() + _LOOK)
            afters = sorted({watch.after for watch in known})
            compacted = bisect_left(afters, True, key=lambda after: self._readable(key, after))
        except AuthenticationError as error:
            if not isinstance(error.__cause__, EtcdRefusedError):
                raise
            self._give_up(known[0], error)  # Perhaps this path alone is forbidden.
            return False
        # A linearizable read is never behind what a member has sent.
        other = self._lineage.number != self._history or afters[-1] > newest
        self._history = self._lineage.number
        gone = set(afters[:compacted])
        for watch in known:
            watch.fresh = False
            if other or watch.after in gone:
                watch.lost = True
        return True

    def _follow(self, link: Link, failures: int) -> bool:
        """Deliver the events of one stream until it ends; return whether it was of use.

        Raises:
            MetadataStoreError: there is no use in another attempt now.
        """
        stream = WatchStream(self, link)
        heard = False
        cause: grpc.RpcError | None = None
        said: str | None = None
        with self._changed:
            if self._closed:
                return True
            self._stream = stream
            for watch in self._watches:
                self._place(watch)
        try:
            for response in stream.open():
                self._take(stream, response)
                heard = True
        except grpc.RpcError as error:
            cause = error
        except _EndedError as ended:
            said = str(ended)
        except _ExpiredError:
            pass
        finally:
            with self._changed:
                self._stream = None
                self._displace()
            stream.close()
        if stream.interrupted or self._closed:
            return True
        # Divided answers cost etcd far more, so only the next stream requests them.
        self._fragment = too_large(cause) and not self._fragment
        if self._fragment:
            _log.info("etcd watches request divided answers")
            return True
        until = time.monotonic() + _ATTEMPT
        self._connection.broken(link, cause, 0 if heard else failures, until, said=said)
        return heard

    def _displace(self) -> None:
        """Forget the stream's watches. The caller holds the lock."""
        self._by_id.clear()
        self._waiting.clear()
        self._placing.clear()
        self._settled = self._covered = _BEFORE_FIRST
        for watch in self._watches:
            watch.displace()

    def _place(self, watch: EtcdWatch) -> None:
        """Request a watch in the present stream, in its turn. The caller holds the lock."""
        watch.held = []
        self._waiting.append(watch)
        self._request()

    def _request(self) -> None:
        """Send the requests whose turn it is. The caller holds the lock."""
        stream = self._stream
        assert stream is not None
        while self._waiting and (stream.keeps_ids or not self._placing):
            watch = self._waiting.popleft()
            if watch not in self._watches:
                continue
            self._last_id += 1
            self._placing.append((watch, self._last_id))
            stream.queue.append(
                create_request(
                    watch.keys.first,
                    watch.keys.stop,
                    0 if watch.lost else watch.after + watch.fresh,
                    watch=self._last_id,
                    progress_notify=not (stream.keeps_ids and stream.tells_progress),
                    fragment=self._fragment,
                )
            )
        self._changed.notify_all()

    def _take(self, stream: WatchStream, response: Any) -> None:
        """Process one response."""
        if response.created:
            self._created(stream, response)
        elif response.canceled:
            with self._changed:
                watch = self._by_id.get(response.watch_id)
            if watch is not None:
                self._canceled(stream, watch, response)
        elif response.events:
            watch = self._by_id.get(response.watch_id)
            if watch is not None:
                last = response.events[-1]
                kv, there = last.kv, last.type == PUT
                self._lineage.saw(kv.key, kv.mod_revision, kv.value if there else None, there=there)
                watch.change(response.events, fragment=is_fragment(response))
        else:
            self._progress(stream, response)

    def _created(self, stream: WatchStream, response: Any) -> None:
        """Process the answer to a request for a watch."""
        with self._changed:
            if stream.interrupted or not self._placing:
                return
            watch, proposed = self._placing.popleft()
            if not response.canceled:
                stream.keeps_ids = response.watch_id == proposed
            self._request()
        if response.canceled:
            self._canceled(stream, watch, response)
        else:
            self._in_place(stream, watch, response)
        if not self._placing and self.back():
            self.when_back()

    def _in_place(self, stream: WatchStream, watch: EtcdWatch, response: Any) -> None:
        if watch.lost:
            watch.gap(response.header.revision)
        watch.doubted = False
        with self._changed:
            if stream.interrupted:
                return
            if watch in self._watches:
                self._by_id[response.watch_id] = watch
                watch.after = watch.after or response.header.revision
                watch.watch_id = response.watch_id
                watch.placed = watch.answered = True
            else:  # It was closed meanwhile.
                stream.queue.append(cancel_request(response.watch_id))
            self._changed.notify_all()

    def _canceled(self, stream: WatchStream, watch: EtcdWatch, response: Any) -> None:
        """Process the end of a watch by etcd."""
        if watch not in self._watches:
            return
        text = response.cancel_reason
        if response.compact_revision:
            _log.info(
                "etcd watch continues after a compaction",
                prefix=watch.prefix,
                after=watch.after,
                compacted=response.compact_revision,
            )
            with self._changed:
                if watch in self._watches and not stream.interrupted:
                    if watch.placed:
                        self._by_id.pop(watch.watch_id, None)
                    watch.displace()
                    watch.lost = True
                    self._place(watch)
            return
        reason = read_text(text)
        if reason is Reason.LOGIN_EXPIRED:
            raise _ExpiredError
        if reason is Reason.NOT_PERMITTED:
            # An old etcd, such as 3.5.1, says the same of a login that has expired.
            if stream.logged_in and not watch.doubted:
                watch.doubted = True
                raise _ExpiredError
            denied = not_permitted(self._connection.user, f"a watch of {watch.prefix!r}", text)
            self._give_up(watch, AuthenticationError(denied, path=watch.prefix))
            return
        watch.endings += 1
        message = f"etcd ended the watch of {watch.prefix!r}: {short(text) or 'no reason is given'}"
        if watch.endings >= _ENDINGS:
            self._give_up(watch, MetadataStoreError(message, path=watch.prefix))
            return
        raise _EndedError(message)

    def _give_up(self, watch: EtcdWatch, error: MetadataStoreError) -> None:
        """End a watch with an error."""
        self.remove(watch)
        with self._changed:
            waiting = not watch.answered
            if waiting:
                watch.error = copy.copy(error)
                self._changed.notify_all()
        if not waiting:
            watch.end(copy.copy(error))

    def _progress(self, stream: WatchStream, response: Any) -> None:
        """Note up to which revision everything has been delivered."""
        revision = response.header.revision
        with self._changed:
            if response.watch_id >= 0:
                named = self._by_id.get(response.watch_id)
                covered = [] if named is None else [named]
            elif not stream.keeps_ids:
                return  # Such a peer was not asked.
            else:
                # The answer to a request for a watch can overtake a report of progress. So the
                # report counts only for watches that were in place long before.
                covered = [watch for name, watch in self._by_id.items() if name <= self._covered]
        for watch in covered:
            if not watch.held:
                watch.after = max(watch.after, revision)

    # Called by streams

    def next_request(self, stream: WatchStream) -> bytes | None:
        """Wait for the next request of a stream; return ``None`` when it is over."""
        with self._changed:
            while not stream.closed:
                if stream.queue:
                    return stream.queue.popleft()
                now = time.monotonic()
                if now >= stream.ask_at:
                    stream.ask_at = now + ASK_EVERY
                    if stream.tells_progress and stream.keeps_ids and not self._placing:
                        self._covered, self._settled = self._settled, self._last_id
                        return ASK_PROGRESS
                self._changed.wait(stream.ask_at - now)
        return None

    def finish(self, stream: WatchStream) -> None:
        """Note that a stream is over, and end its thread of gRPC."""
        with self._changed:
            stream.closed = True
            self._changed.notify_all()


def _nothing() -> None:
    """Do nothing."""


def _owns_none(_: int) -> bool:
    return False

"""Watches: one persistent recursive watch of the server for each watched prefix.

The server keeps such a watch (ZooKeeper 3.6 and newer) until it is removed or the connection ends.
If several watches of a connection cover a node, the server sends one event. ``events`` describes
how an event of a node becomes one of a value, for which the client knows the nodes without a value:
when a watch begins, it reads the tree below its prefix once.

After the loss of a connection, the watches are placed again and the trees are read again, and then
each watch gets a gap. So a caller that reads the tree again after the gap misses nothing: later
changes follow as events.

Threads: kazoo's thread appends the packets of events and the changes of the connection to one
queue. One thread takes them out, in order, reads new nodes, and delivers events. It also places and
removes the server's watches, so that these requests keep their order. It begins with the first
watch and ends with the store. ``watch`` runs on the caller's thread, where it reads the tree.
Waits for deletions do without that thread: kazoo's ends them.

``_lock`` guards the queue, the watches and the waiting calls. It is never held during a request or
a call of ``deliver``.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from ....ops.errors import (
    AuthenticationError,
    MetadataStoreError,
    StoreClosedError,
    UnsupportedError,
)
from ....ops.log import get_logger
from ....ops.paths import parent
from ....ops.results import WatchEvent
from ...backend import start_thread
from ..session.connection import Moment, ZooKeeperConnection
from ..wire.jute import CREATED
from ..wire.nodes import MARKS
from .deletions import Deletions
from .events import NodeEvent, Translator, decode
from .placing import Placing
from .watch import ZooKeeperWatch

__all__ = ["ZooKeeperWatches"]

log = get_logger(__name__)

# The most events that wait. Beyond them, a gap is due: a queue without bounds helps nobody.
_MOST_EVENTS: Final = 1 << 18
# The limit of events handled together, so that their new nodes are read together.
_MOST_AT_ONCE: Final = 4096
# Seconds for one attempt to read new nodes or to place the watches again; it is repeated.
_ATTEMPT: Final = 10.0
# After a fault, the number of attempts that the pause is as long as after.
_FAULTS: Final = 7
# The most directories whose watches are remembered.
_MOST_DIRECTORIES: Final = 10_000


class _Packets(list[bytes]):
    """Packets with events, in the queue."""


_Command: TypeAlias = Callable[[], None]
#: A task of a call. It returns the next one, if any, which comes behind the events until then.
_Task: TypeAlias = "Callable[[_Call], _Task | None]"


class _Call:
    """A task of a call of ``watch`` that the thread of the watches does."""

    __slots__ = ("done", "epoch", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: MetadataStoreError | None = None
        #: The epoch in which the watch was placed; 0 if it has to be placed again.
        self.epoch = 0


class ZooKeeperWatches:
    """The watches of one client; see ``stores.backend.Watches``.

    Args:
        connection: the session.
        placing: makes the requests.
        chroot: precedes all paths.
        restored: called when all watches are back after a change of the connection, and when there
            are none. It must not block.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        placing: Placing,
        chroot: str,
        restored: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._placing = placing
        self._chroot_bytes = len(chroot.encode())
        self._restored = restored
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        # The following are guarded by the lock: what waits for the thread, in order; the number of
        # events in it, and of all events until now; whether events were dropped since the last
        # command to place the watches again.
        self._queue: deque[_Packets | _Command] = deque()
        self._waiting = 0
        self._received = 0
        self._overflown = False
        self._watches: dict[str, tuple[ZooKeeperWatch, ...]] = {}  # by prefix
        self._calls: set[_Call] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        # The following belong to the thread: the prefixes on the server, with the number of their
        # users; the connection on which they are in place, 0 for none; the number of times at which
        # events may have been missed; the paths of all events since a walk has begun, for each walk
        # under way; events that are decoded.
        self._placed: Counter[str] = Counter()
        self._standing = 0
        self._epoch = 0
        self._walks: list[set[str]] = []
        self._events: list[NodeEvent] = []
        self._translator = Translator()
        # For a directory, its watches, and whether events below it count. Cleared with each change.
        self._directories: dict[str, tuple[bool, tuple[ZooKeeperWatch, ...]]] = {}
        self._deletions = Deletions(placing, chroot, self._later, lambda: self.forked)
        connection.receive_events(self._receive)
        # Guarded by the lock: the last change, and since when watches have not been in place, or 0.
        self._last = connection.attach(self._note)
        self._cut_at = 0.0

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, where the locks may be held for ever."""
        return self._connection.forked

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> ZooKeeperWatch:
        """Report each change under ``prefix``; see ``stores.backend.Watches``.

        The call reads all nodes under ``prefix`` once. If there is none below it, that takes one
        round trip, together with the placing.
        """
        self._connection.check_process()
        if after is not None:
            raise UnsupportedError(
                "ZooKeeper keeps no history, so a watch cannot begin in the past (capability "
                "'history')"
            )
        watch = ZooKeeperWatch(self, prefix, deliver, fail)
        walked: set[str] = set()
        try:
            while True:
                placed = self._do(partial(self._place, watch, walked, deadline), deadline)
                if not watch.begun and placed.epoch:
                    timeout = max(0.0, deadline - time.monotonic())
                    bare = self._placing.bare(prefix, timeout, deadline)
                    begin = partial(self._begin, watch, bare, walked, placed.epoch)
                    self._do(begin, deadline)
                if watch.begun:
                    return watch
                walked = set()
        except BaseException:
            self._enqueue(partial(self._withdraw, watch, walked))
            raise

    def watch_deletion(
        self,
        path: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> ZooKeeperWatch:
        """Report the deletion of a path; see ``stores.backend.DeletionWatches``."""
        self._connection.check_process()
        with self._lock:
            self._start()
        return self._deletions.begin(path, deliver, fail, deadline)

    def leave(self, watch: ZooKeeperWatch) -> None:
        """Forget a watch. Any thread may call this."""
        with self._lock:
            others = tuple(w for w in self._watches.get(watch.prefix, ()) if w is not watch)
            if others:
                self._watches[watch.prefix] = others
            else:
                self._watches.pop(watch.prefix, None)
        self._enqueue(partial(self._release, watch.prefix))

    def close(self) -> None:
        """End all watches. No event is delivered afterwards."""
        if self.forked:
            return
        with self._lock:
            self._closed = True
            watches = [watch for same in self._watches.values() for watch in same]
            calls, self._calls = self._calls, set()
            self._filled.notify_all()
        for watch in watches:
            watch.close()
        self._deletions.close()
        for call in calls:
            call.error = StoreClosedError("the store is closed")
            call.done.set()

    def _receive(self, packets: list[bytes]) -> None:
        self._deletions.take(packets)
        with self._lock:
            if self._overflown or self._thread is None or self._closed:
                return
            if not (self._placed or self._calls):
                return  # Only waits for deletions were concerned.
            if self._waiting + len(packets) > _MOST_EVENTS:
                self._overflown = True
                self._queue.append(self._overflow)
            else:
                self._waiting += len(packets)
                self._received += len(packets)
                self._queue.append(_Packets(packets))
            self._filled.notify()

    def _note(self, moment: Moment) -> None:
        if moment.state != "connected":
            self._deletions.lose_all()
        with self._lock:
            self._last = moment
            self._cut_at = self._cut_at or time.monotonic()
            if self._thread is not None and not self._closed:
                self._queue.append(partial(self._handle, moment))
                self._filled.notify()
                return
        if moment.state == "connected":
            self._restored()

    def _do(self, task: _Task, deadline: float) -> _Call:
        """Let the thread do a task of a call and those that follow it, and wait for the end.

        Raises:
            MetadataStoreError: it failed, or did not end by the deadline.
        """
        call = _Call()
        with self._lock:
            self._start()
            self._calls.add(call)
        self._enqueue(partial(self._perform, call, task, deadline))
        call.done.wait(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._calls.discard(call)
        if not call.done.is_set():
            raise self._late()
        if call.error is not None:
            raise call.error
        return call

    def _start(self) -> None:
        """Start the thread, with the lock, if it does not run yet.

        Raises:
            StoreClosedError: the store is closed.
        """
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._thread is None:
            self._thread = start_thread(self._run, "zookeeper-watches")
            self._queue.append(partial(self._handle, self._last))

    def _later(self, command: _Command) -> None:
        self._enqueue(lambda: command() if self._is_current(self._standing) else None)

    def _perform(self, call: _Call, task: _Task, deadline: float) -> None:
        following: _Task | None = None
        try:
            if time.monotonic() >= deadline:
                raise self._late()
            following = task(call)
        except MetadataStoreError as error:
            call.error = error
        except Exception as error:
            call.error = MetadataStoreError(f"the watch failed: {error!r}")
            raise
        finally:
            if following is None:
                call.done.set()
        if following is not None:
            self._enqueue(partial(self._perform, call, following, deadline))

    def _late(self) -> MetadataStoreError:
        return self._connection.end() or self._connection.late("the watch was not placed at")

    def _enqueue(self, command: _Command) -> None:
        with self._lock:
            if self._thread is not None:
                self._queue.append(command)
                self._filled.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._filled.wait()
                if self._closed:
                    return
                command: _Command = self._take_events
                if not isinstance(self._queue[0], _Packets):
                    command = self._queue.popleft()  # type: ignore[assignment]
            try:
                command()
            except Exception:
                # A fault of this package must not end the watches in silence.
                log.exception("zookeeper watches failed")
                self._events.clear()
                self._enqueue(partial(self._handle, self._last))
                self._connection.pause(_FAULTS, math.inf)

    def _handle(self, moment: Moment) -> None:
        self._standing = 0
        self._epoch += 1
        if moment.state == "connected":
            self._restore(moment.connection)
        elif moment.state == "over" and (error := self._connection.end()) is not None:
            self._fail(self._all(), error)

    def _overflow(self) -> None:
        with self._lock:
            self._overflown = False
        log.warning("zookeeper watches are too slow: events were dropped", prefixes=[*self._placed])
        self._handle(self._last)

    def _place(
        self, watch: ZooKeeperWatch, walked: set[str], deadline: float, call: _Call
    ) -> _Task | None:
        """Place the server's watch of a prefix; note the paths of all events from now on.

        If nothing is below the prefix, the next task lets the watch begin. That comes behind the
        events that the read of the prefix has seen.
        """
        prefix = watch.prefix
        bare = None
        if prefix not in self._placed or not self._is_current(self._standing):
            bare = self._placing.begin(prefix, deadline)
        self._placed[prefix] += 1
        self._directories.clear()
        self._walks.append(walked)
        call.epoch = self._epoch
        return None if bare is None else partial(self._begin, watch, bare, walked, self._epoch)

    def _begin(
        self, watch: ZooKeeperWatch, bare: dict[str, int], walked: set[str], epoch: int, call: _Call
    ) -> None:
        """Let a watch begin, unless events may have been missed since it was placed."""
        self._end_walk(walked)
        if epoch != self._epoch or not self._is_current(self._standing):
            self._release(watch.prefix)
            call.epoch = 0
            return
        for path in walked:
            bare.pop(path, None)  # The events know better.
        self._translator.bare.update(bare)
        with self._lock:
            if self._closed:
                return
            watch.begins = self._received
            watch.begun = True
            self._watches[watch.prefix] = (*self._watches.get(watch.prefix, ()), watch)
        self._directories.clear()

    def _withdraw(self, watch: ZooKeeperWatch, walked: set[str]) -> None:
        """Undo what a call of ``watch`` has done that has failed since."""
        if watch.begun:
            watch.close()
        elif self._end_walk(walked):
            self._release(watch.prefix)

    def _end_walk(self, walked: set[str]) -> bool:
        """Stop noting paths for a walk; say whether it was under way."""
        before = len(self._walks)
        self._walks = [other for other in self._walks if other is not walked]
        return len(self._walks) < before

    def _release(self, prefix: str) -> None:
        """Let go of the server's watch of a prefix, and remove it if nobody else needs it."""
        self._placed[prefix] -= 1
        self._directories.clear()
        if self._placed[prefix] > 0:
            return
        del self._placed[prefix]
        bare = self._translator.bare
        for path in [path for path in bare if not self._takers(path)[0]]:
            del bare[path]
        if self._is_current(self._standing):
            self._placing.remove(prefix, time.monotonic() + _ATTEMPT)
            self._deletions.lose(prefix)

    def _restore(self, connection: int) -> None:
        """Place all watches again, and deliver a gap to each.

        If the connection is lost meanwhile, the next one does the same.
        """
        while self._is_current(connection):
            try:
                self._placing.place([*self._placed], time.monotonic() + _ATTEMPT)
                bare: dict[str, int] = {}
                for prefix in [*self._placed]:
                    if not self._is_below_another(prefix):
                        bare |= self._walk_again(prefix)
            except (AuthenticationError, UnsupportedError) as error:
                self._fail(self._all(), error)
                bare = {}
            except MetadataStoreError as error:
                if self._connection.stopped:
                    return
                log.debug("zookeeper watches are not placed yet", reason=str(error))
                self._connection.pause(1, math.inf)
                continue
            if not self._is_current(connection):
                return
            self._translator.bare = bare
            with self._lock:
                watches = [watch for same in self._watches.values() for watch in same]
                for watch in watches:
                    watch.begins = self._received
            self._standing = connection
            for watch in watches:
                watch.take([WatchEvent("gap", watch.prefix)])
            self._note_restored(connection)
            return

    def _note_restored(self, connection: int) -> None:
        with self._lock:
            if self._last.connection == connection:
                self._cut_at = 0.0
        self._restored()

    @property
    def lag(self) -> float:
        """The seconds for which no watch has been in place; else 0.0."""
        since = self._cut_at
        return time.monotonic() - since if since else 0.0

    def _walk_again(self, prefix: str) -> dict[str, int]:
        try:
            return self._placing.bare(prefix, _ATTEMPT, math.inf)
        except AuthenticationError as error:
            # These watches end, and others go on.
            self._fail([watch for watch in self._all() if watch.prefix == prefix], error)
            return {}

    def _fail(self, watches: Sequence[ZooKeeperWatch], error: MetadataStoreError) -> None:
        for watch in watches:
            watch.fail(error.for_path(watch.prefix))

    def _all(self) -> list[ZooKeeperWatch]:
        with self._lock:
            return [watch for same in self._watches.values() for watch in same]

    def _is_current(self, connection: int) -> bool:
        return self._connection.number == connection and self._connection.connected

    def _is_below_another(self, prefix: str) -> bool:
        while prefix != "/":
            prefix = parent(prefix)
            if prefix in self._placed:
                return True
        return False

    def _take_events(self) -> None:
        """Handle the next events, up to the next command in the queue."""
        self._decode_next()
        if not self._standing:
            # Events are missing, and a gap follows. No later event may come before it.
            self._events.clear()
            return
        while self._events:
            events = self._events[:_MOST_AT_ONCE]
            takers = [self._takers(event.path)[1] for event in events]
            for walked in self._walks:
                walked.update(event.path for event in events)
            found = self._read_nodes(events)
            after = None
            if found is not None:
                # What the nodes show, the server has reported before.
                self._decode_next()
                after = self._after(len(events))
                if after is not None and after.zxid <= 0 and events[-1].kind == CREATED:
                    # Without zxids, only its node shows which multi has created it.
                    more = self._read_nodes([after])
                    found = None if more is None else {**found, **more}
            if found is None:
                # The connection is lost, and with it these events.
                self._standing = 0
                self._events.clear()
                return
            following = self._events[len(events) :] or ([] if after is None else [after])
            results = self._translator.translate(events, found, following)
            del self._events[: len(events)]
            self._deliver(events, results, takers)

    def _decode_next(self) -> None:
        packets: list[bytes] = []
        with self._lock:
            first = self._received - self._waiting
            while self._queue and len(self._events) + len(packets) < _MOST_AT_ONCE:
                item = self._queue[0]
                if not isinstance(item, _Packets):
                    break
                packets += item
                self._queue.popleft()
            self._waiting -= len(packets)
        if packets:
            events = decode(packets, first, self._chroot_bytes)
            # The last ones of a watch that was removed may still arrive.
            self._events += [event for event in events if self._takers(event.path)[0]]

    def _after(self, count: int) -> NodeEvent | None:
        """Return the event after the next ``count`` ones, if it has come."""
        if len(self._events) > count:
            return self._events[count]
        with self._lock:
            # Commands may stand between.
            lists = [item for item in self._queue if isinstance(item, _Packets)]
        for packets in lists:
            if events := decode(packets[:1], 0, self._chroot_bytes):
                return events[0]
        return None

    def _read_nodes(self, events: Sequence[NodeEvent]) -> Mapping[str, object] | None:
        """Read the nodes that were created; return ``None`` if the connection is lost meanwhile."""
        paths = list(
            dict.fromkeys(
                path for kind, path, _, _ in events if kind == CREATED and not path.endswith(MARKS)
            )
        )
        if not paths:
            return {}
        while self._is_current(self._standing):
            try:
                nodes = self._placing.read_nodes(paths, time.monotonic() + _ATTEMPT)
            except MetadataStoreError as error:
                log.debug("zookeeper watches cannot read new nodes yet", reason=str(error))
                self._connection.pause(1, math.inf)
                continue
            # They may have been read over the next connection. Then later events of the same multi
            # may be missing, without which these are not understood.
            if self._is_current(self._standing):
                return dict(zip(paths, nodes, strict=True))
        return None

    def _deliver(
        self,
        events: Sequence[NodeEvent],
        results: Sequence[WatchEvent | None],
        takers: Sequence[tuple[ZooKeeperWatch, ...]],
    ) -> None:
        taken: dict[ZooKeeperWatch, list[WatchEvent]] = {}
        last: tuple[ZooKeeperWatch, ...] = ()
        lists: list[tuple[int, list[WatchEvent]]] = []
        for event, result, watches in zip(events, results, takers, strict=True):
            if result is None:
                continue
            if watches is not last:
                last = watches
                lists = [(watch.begins, taken.setdefault(watch, [])) for watch in watches]
            for begins, some in lists:
                if event.number >= begins:
                    some.append(result)
        for watch, some in taken.items():
            if some:
                watch.take(some)

    def _takers(self, path: str) -> tuple[bool, tuple[ZooKeeperWatch, ...]]:
        """Return whether events of a path count, and the watches that get them."""
        directory = parent(path)
        known = self._directories.get(directory)
        if known is None:
            if len(self._directories) >= _MOST_DIRECTORIES:
                self._directories.clear()
            known = self._directories[directory] = self._above(directory)
        if path in self._placed:
            return True, (*known[1], *self._watches.get(path, ()))
        return known

    def _above(self, path: str) -> tuple[bool, tuple[ZooKeeperWatch, ...]]:
        covered = False
        watches: tuple[ZooKeeperWatch, ...] = ()
        while True:
            if path in self._placed:
                covered = True
                watches = (*watches, *self._watches.get(path, ()))
            if path == "/":
                return covered, watches
            path = parent(path)

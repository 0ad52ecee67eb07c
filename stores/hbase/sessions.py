"""Sessions: how a client shows others that it lives, without a common clock.

A session is a row among the client's own. Its client changes that row every quarter of the timeout.
Others look at all sessions every quarter of the shortest timeout. Who has seen no change of a row
for a whole timeout, by its own clock, removes the row: that ends the session, because its client
can change it no more. So the client may rely on its session for a timeout after it has sent the
last change that was confirmed.

An ephemeral value names its session. Readers look whether that stands, and take the value for
missing otherwise; so it does not matter when it is removed. Before it is put, another row names it
below the session, so that whoever ends the session finds it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    NotFoundError,
    StoreClosedError,
    StoreUnavailableError,
)
from ...ops.log import get_logger
from ...ops.operations import ABSENT
from ...ops.sessions import SessionEvent, SessionState
from ...ops.steps import At, PutValue, Step
from ..backend import start_thread
from ..session import SessionMachine
from .cluster import Cluster
from .forms import STATES, STATES_AND_VALUES
from .layout import FOREIGN, OWNED, SESSIONS, Row, session_key
from .requests import Requests
from .scans import Walk
from .writes import Writer

__all__ = ["HBaseSession"]

log = get_logger(__name__)

# The part of the timeout between two changes of the row, and between two looks at it.
_PERIOD: Final = 0.25
# Seconds from one look at other sessions to the next, however short their timeouts are.
_LEAST: Final = 0.05
# Seconds that the end of a session may take when its store is closed.
_CLOSING: Final = 2.0
# Beside the timeout of another session: what its client needs to send a change.
_MARGIN: Final = 1.25
_SEQUENTIAL: Final = b"s"
_PAGE: Final = 1_000


class HBaseSession:
    """The session of one client, and its view of the others; see ``stores.backend.Session``.

    One thread keeps it, from the first ephemeral value or listener on; before that, it runs while
    there are sessions of others, whose values this client has seen. ``_order`` is held from a
    change of the state until the listener has its events.
    """

    def __init__(
        self, cluster: Cluster, requests: Requests, writer: Writer, timeout: float
    ) -> None:
        self._cluster = cluster
        self._requests = requests
        self._writer = writer
        self._process = os.getpid()
        self._asked = timeout
        self._order = threading.Lock()
        self._changed = threading.Condition(threading.RLock())  # guards the following fields
        self._machine = SessionMachine(timeout)
        self._closed = False
        self._wanted = False  # whether this client needs a session of its own
        self._failed: Exception | None = None  # the last attempt to begin or keep it
        self._refused = False  # whether that was over before its time: HBase refuses it
        self._row: Row | None = None
        self._keeper: threading.Thread | None = None
        self._listener: Callable[[SessionEvent], None] | None = None
        # Of the keeper alone: for each other session, what it last had, and since when.
        self._others: dict[int, tuple[bytes, float]] = {}
        self._pause = _PERIOD * timeout  # the seconds until it looks again

    @property
    def id(self) -> str | None:
        return self._machine.id

    @property
    def timeout(self) -> float:
        return self._machine.timeout

    @property
    def number(self) -> int:
        return self._machine.number

    @property
    def state(self) -> SessionState:
        return self._machine.state

    @property
    def owner(self) -> int:
        """The session as values name it; 0 if there is none."""
        name = self._machine.id
        return 0 if name is None else int(name, 16)

    def valid_until(self) -> float:
        if self._process != os.getpid():
            return float("-inf")
        self._need()
        return self._machine.valid_until()

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        with self._order:
            self._listener = callback
        self._need()

    def enter(self, deadline: float) -> tuple[int, int]:
        """Return the session as values name it, and its number; wait until there is one.

        Raises:
            MetadataStoreError: HBase refuses one, or there is none until the deadline.
        """
        self._need()
        with self._changed:
            before = self._failed
            if not self.owner:
                self._changed.notify_all()  # The keeper tries again at once.
            while not (owner := self.owner):
                if self._closed:
                    raise StoreClosedError("the HBase store is closed")
                failed = self._failed
                if (
                    self._refused
                    and failed is not before
                    and isinstance(failed, MetadataStoreError)
                ):
                    raise type(failed)(f"no session can begin: {failed}")
                left = deadline - time.monotonic()
                if left <= 0:
                    why = self._failed or "HBase did not answer"
                    raise StoreUnavailableError(f"no session could be begun in time: {why}")
                self._changed.wait(min(left, 1.0))
            return owner, self._machine.number

    def name(self, owner: int, paths: Sequence[tuple[str, bool]], deadline: float) -> None:
        """Note the paths, or the stems of sequential ones, that a session is about to own.

        Raises:
            MetadataStoreError: that failed.
        """
        self._writer.put_all(
            [(f"{OWNED}/{owner:016x}{path}", _SEQUENTIAL if stem else b"") for path, stem in paths],
            deadline,
        )

    def close(self) -> None:
        """End the session, and remove its values, if a server answers soon."""
        if self._process != os.getpid():
            return
        owner = self.owner
        with self._changed:
            self._machine.close()
            self._closed = True
            self._changed.notify_all()
            keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join(_CLOSING)
        row = self._row
        if owner and row is not None:
            try:
                self._end(owner, row, time.monotonic() + _CLOSING)
            except MetadataStoreError as error:
                log.info("a session ends by itself", reason=str(error))

    # The keeper

    def _need(self) -> None:
        """Begin a session, unless that has begun."""
        if self._wanted or self._process != os.getpid():
            return
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
        self.observe()

    def observe(self, owners: AbstractSet[int] = frozenset()) -> None:
        """Look at the sessions of others until there are none: values of these were seen."""
        if self._process != os.getpid():
            return
        if self._keeper is not None and owners <= self._others.keys():
            return
        with self._changed:
            self._changed.notify_all()  # Its next look may be far, and their timeouts short.
            if self._keeper is None and not self._closed:
                self._keeper = start_thread(self._keep, "hbase-session")

    def _keep(self) -> None:
        due = 0.0  # when its own row has to be changed
        while not self._closed:
            wanted, now = self._wanted, time.monotonic()
            if wanted and (now >= due or not self.owner):
                failed = self._failure(self._renew)
                self._refused = time.monotonic() < now + self._asked / 2
                self._failed, due = failed, now + _PERIOD * self._asked
                if failed is not None:
                    self._tell(partial(self._machine.disconnected, time.monotonic()))
            self._failure(self._look)
            with self._changed:
                if not (self._wanted or self._others):
                    self._keeper = None
                    return
                if not self._closed and wanted == self._wanted:
                    left = due - time.monotonic() if wanted else self._pause
                    self._changed.wait(max(0.0, min(left, self._pause)))

    def _failure(self, part: Callable[[float], None]) -> Exception | None:
        """Do a part of the keeper's work, and return why it failed: it goes on in any case."""
        try:
            part(time.monotonic())
        except MetadataStoreError as error:
            log.info("a session was not kept for now", reason=str(error))
            return error
        except Exception as error:
            log.exception("a session was not kept for now")
            return error
        return None

    def _renew(self, now: float) -> None:
        """Change the row of the session, or begin a session."""
        deadline = now + self._asked / 2
        owner = self.owner
        begins = not owner
        if begins:
            owner, self._row = int.from_bytes(os.urandom(8)) | 1, None
        path = f"{SESSIONS}/{owner:016x}"
        row = self._row
        step = Step(
            path,
            "absent" if row is None else At(row.version, None),
            PutValue(b"%d" % int(self._asked * 1000), ephemeral=False),
        )
        try:
            self._row = self._writer.change(step, row, deadline)
        except (BadVersionError, NotFoundError):
            key = path.encode()
            found = self._requests.read([key], STATES, deadline).get(key)
            if found is not None and found.version != ABSENT:
                self._row = found  # An earlier change, without an answer, was applied.
                self._renew(time.monotonic())
                return
            self._row = None  # Somebody has ended it.
            self._tell(partial(self._machine.ended, f"{owner:016x}", time.monotonic()))
            self._renew(time.monotonic())
            return
        if begins:
            self._tell(partial(self._machine.granted, f"{owner:016x}", self._asked, now))
        else:
            self._tell(partial(self._machine.renewed, f"{owner:016x}", self._asked, now))
        self._tell(self._machine.restored)

    def _tell(self, change: Callable[[], Sequence[SessionEvent]]) -> None:
        with self._order:
            with self._changed:
                events = change()
                self._changed.notify_all()
            if self._listener is not None:
                for event in events:
                    self._listener(event)

    # Other sessions

    def _look(self, now: float) -> None:
        """End the sessions that have not changed for their timeout, and remove what is left."""
        deadline = now + self._asked
        standing = dict(self._sessions(deadline))
        # The time from the end of one read to the begin of another: however long they take, what
        # both have found had not changed for as long.
        read = time.monotonic()
        own = self.owner
        for owner, row in standing.items():
            state, since = self._others.get(owner, (b"", read))
            if row.state != state:
                self._others[owner] = row.state, read
            elif owner != own and now > since + _MARGIN * _timeout(row):
                self._end(owner, row, deadline)
        self._others = {owner: seen for owner, seen in self._others.items() if owner in standing}
        shortest = min([self._asked, *map(_timeout, standing.values())])
        self._pause = max(_LEAST, _PERIOD * shortest)
        for owner in self._owners(deadline):
            if owner not in standing and owner != own:
                self._end(owner, None, deadline)

    def _sessions(self, deadline: float) -> Iterator[tuple[int, Row]]:
        start = SESSIONS.encode() + b"/"
        walk = Walk(self._requests, 0.0, STATES_AND_VALUES)
        for rows in walk.pages(start, start[:-1] + b"0", deadline):
            for key, row in rows:
                if row.version != FOREIGN:
                    yield int(key[len(start) :], 16), row

    def _owners(self, deadline: float) -> Iterator[int]:
        """Yield the sessions that have owned something."""
        prefix = OWNED.encode() + b"/"
        start, end = prefix, prefix[:-1] + b"0"
        while True:
            rows = next(Walk(self._requests, 0.0, STATES, 1).pages(start, end, deadline), None)
            if not rows:
                return
            name = rows[0][0][len(prefix) :].partition(b"/")[0]
            yield int(name, 16)
            start = prefix + name + b"0"

    def _end(self, owner: int, row: Row | None, deadline: float) -> None:
        """End a session that still has the row that was read, and remove its values."""
        key = session_key(owner)
        if row is None:  # It was not there: it may have begun since.
            found = self._requests.read([key], STATES, deadline).get(key)
            if found is not None and found.version != ABSENT:
                return
        else:
            step = Step(key.decode(), At(row.version, row.time), "delete")
            try:
                self._writer.change(step, row, deadline)
            except (BadVersionError, NotFoundError):
                return  # It lives, or another client ends it.
        prefix = f"{OWNED}/{owner:016x}".encode()
        walk = Walk(self._requests, 0.0, STATES_AND_VALUES, _PAGE)
        for rows in walk.pages(prefix + b"/", prefix + b"0", deadline):
            paths = {name[len(prefix) :]: row.value == _SEQUENTIAL for name, row in rows}
            single = [path for path, stem in paths.items() if not stem]
            doomed = self._requests.read(single, STATES, deadline, hides=False)
            for path, stem in paths.items():
                if stem:
                    numbered = Walk(self._requests, 0.0, STATES, hides=False)
                    for page in numbered.pages(path, path + b":", deadline):
                        doomed.update(page)
            self._writer.remove_rows(
                {path: row for path, row in doomed.items() if row.owner == owner}, deadline
            )
            self._writer.remove([name.decode() for name, _ in rows], deadline)


def _timeout(row: Row) -> float:
    return int(row.value or b"0") / 1000

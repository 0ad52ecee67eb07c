# Made from async_memberships.py by `python tools/faces.py`: change that file, and run this command.
"""One membership of this process in a group, through all of its incarnations.

An *incarnation* is the ephemeral value that one session holds at the member's path. Every
write of it names what it expects there, so that it never touches the value of somebody else who has
the name by then (see ``members``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from ...batching import MetadataStore
from ...batching.background import Gate, Signal, spawn
from ...ops.backoff import Backoff
from ...ops.errors import (
    LockBusyError,
    LockLostError,
    MetadataStoreError,
    NotFoundError,
    SessionLostError,
    StoreClosedError,
    TransactionRefusedError,
    check_conflict,
    passes,
    passes_anew,
)
from ...ops.log import get_logger
from ...ops.operations import ABSENT, Check, Delete, Part, Put, check_value
from ...ops.results import GetResult, Stat
from ..deadlines import Deadline
from ..members import Card, Member, decode, encode, guard_path, member_path, new_id
from .conflicts import Conflicts

__all__ = ["Membership"]

log = get_logger("batchkeeper.coordination")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Seconds for a request of a call that must not wait.
_REQUEST: Final = 1.0
# The reads for a value whose creation had no answer. The last one is after about half a minute.
_READS: Final = 18


class Incarnation:
    """One incarnation of a membership.

    Attributes:
        id: distinguishes its value from all others.
        sent: whether its value was created, or may have been.
        stat: the newest known stat of its value, or ``None`` until it is known to exist.
        session: the session in which it was created.
        number: see the field ``incarnation`` of ``Member``.
        lost: set when it has ended.
    """

    def __init__(self) -> None:
        self.id = new_id()
        self.sent = False
        self.stat: Stat | None = None
        self.session: str | None = None
        self.number = 0
        self.lost = Signal()


class Membership:
    """A membership in a group. ``Group.join`` returns it; leave it, or use it in a ``with`` block.

    After the loss of the session, it rejoins automatically, with the newest data and a new
    incarnation, until ``leave`` or the end of the store. If another process has taken the name by
    then, it waits for the name.
    """

    def __init__(
        self,
        store: MetadataStore,
        group: str,
        name: str,
        leaf: str,
        data: bytes,
        forget: Callable[[Membership], None],
    ) -> None:
        self._store = store
        self._group = group
        self._forget = forget
        self._exact = "expected_revisions" in store.capabilities
        self._guarded = not self._exact
        self._gate = Gate()  # Held while the value is read or changed.
        self._data = check_value(data)
        self._current = Incarnation()  # the current or last one
        self._next = self._current  # the newest one, which may not exist yet
        self._rival: Member | None = None
        self._left = False
        self.name = name
        self.path = member_path(group, name, leaf)

    @property
    def data(self) -> bytes:
        """The data that others see, or will see when the membership has rejoined."""
        return self._data

    @property
    def incarnation(self) -> int:
        """A number that grows each time the name joins, from any process."""
        return self._current.number

    @property
    def joined(self) -> bool:
        """Whether the value exists, as far as this process knows."""
        incarnation = self._current
        return incarnation.session is not None and not incarnation.lost.is_set()

    @property
    def left(self) -> bool:
        """Whether it has ended for good."""
        return self._left

    @property
    def lost(self) -> Signal:
        """An event that is set when the current incarnation has ended.

        That is so when the session has ended, the store was closed, this process has left, or it
        has learned that the value was deleted. When the membership rejoins, it gets a new event.
        """
        return self._current.lost

    def held_until(self) -> float:
        """Return the time before which the session cannot have ended, so no one else has the name.

        The time is a value of ``time.monotonic()``: ``math.inf`` on stores without a server, and
        ``-math.inf`` if this process is not a member.
        """
        incarnation = self._current
        if incarnation.session is None or incarnation.lost.is_set():
            return -math.inf
        try:
            session = self._store.session
            until = session.valid_until()
            # In this order: a new session's time must not count for the old one.
            same = session.id == incarnation.session
        except MetadataStoreError:  # The store is closed, or this is a forked process.
            return -math.inf
        return until if same else -math.inf

    def update(self, data: bytes) -> None:
        """Change the data that others see.

        If the session is lost in the meantime, the call returns, and the data takes effect when the
        membership has rejoined.

        Raises:
            LockLostError: this process has left.
            MetadataStoreError: the write has failed; see its ``outcome``.
        """
        data = check_value(data)
        self._store._check_caller()
        with self._gate:
            if self._left:
                raise LockLostError(f"this process has left {self.path}", path=self.path)
            before, self._data = self._data, data
            if self.joined:
                try:
                    self._replace(self._current)
                except MetadataStoreError as error:
                    if error.outcome == "not_applied":
                        self._data = before
                    raise

    def leave(self) -> None:
        """Leave the group. Leaving twice is harmless.

        If no server answers, the value is removed in the background, or with the end of the
        session.

        Raises:
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        if self._left:
            return
        self._store._check_caller()
        self._left = True  # A running attempt to join is the last one.
        try:
            self._gate.enter()
        except BaseException:
            self.drop()
            raise
        try:
            self._give_up()
        finally:
            self._gate.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' joined' if self.joined else ''}>"

    # --- for the group

    def join(self, deadline: Deadline) -> None:
        """Join, or leave nothing behind. See ``Group.join``."""
        try:
            self._join(deadline)
        except BaseException:
            self.drop()
            raise

    def attempt(self, timeout: float | None = None) -> bool:
        """Try once to create the value; return whether it exists. If not, ``_rival`` has the name.

        Raises:
            MetadataStoreError: a request has failed. The value may still exist, and the next
                attempt finds it.
        """
        with self._gate:
            if self._left or self.joined:
                return True
            if self._next.lost.is_set():
                before, self._next = self._next, Incarnation()
                # Its value would keep the name, if it is in a session that has not ended.
                if before.sent and not self._remove(before, timeout):
                    spawn(f"removal of {self.path}", self._keep_removing, before)
            if not self._create(self._next, timeout):
                return False
            self._current = self._next
            return True

    def check_session(self) -> bool:
        """End the incarnation if its session has ended; return whether it is time to rejoin."""
        incarnation = self._current
        try:
            same = incarnation.session is None or self._store.session.id == incarnation.session
        except MetadataStoreError:  # This is a forked process.
            return False
        if not same:
            incarnation.lost.set()
        return not self.joined and not self._left

    def verify(self, id_found: str | None) -> None:
        """Read the value if others have read another one, and end if it is missing."""
        if not self.joined or id_found == self._current.id:
            return
        with self._gate:
            if self.joined and not self._find(self._current):
                self._current.lost.set()

    def drop(self) -> None:
        """Leave, without waiting for anything."""
        self._left = True
        self._forget(self)
        self._current.lost.set()
        incarnation = self._next
        incarnation.lost.set()  # A running attempt to join must not change that.
        if incarnation.sent:
            spawn(f"removal of {self.path}", self._keep_removing, incarnation)

    # --- requests

    def _join(self, deadline: Deadline) -> None:
        attempts = 0
        while True:
            try:
                if self.attempt(_seconds(deadline)):
                    return
                waited = None if deadline.passed else self._wait_for_end(deadline)
                if waited is None:
                    raise self._busy()
                if waited:
                    attempts = 0
                    continue
            except LockBusyError:
                raise
            except MetadataStoreError as error:
                passing = passes_anew(error)
                if not passing or deadline.passed:
                    raise
            time.sleep(deadline.within(_BACKOFF.pause(attempts)))
            attempts += 1

    def _wait_for_end(self, deadline: Deadline) -> bool | None:
        """Wait until the name is free; return whether that took an event, ``None`` if it is not."""
        waited = False
        with self._store.watch(self.path, timeout=_seconds(deadline)) as watch:
            found = self._store.get(self.path, timeout=_seconds(deadline)).result()
            while found is not None:
                self._rival = self._card(found, self._next).member
                waited = watch.next_event(timeout=deadline.left()) is not None
                if not waited:
                    return None
                found = self._store.get(self.path, timeout=_seconds(deadline)).result()
        return waited

    def _busy(self) -> LockBusyError:
        data = None if self._rival is None else self._rival.data
        return LockBusyError(f"another member has the name {self.path}", path=self.path, value=data)

    def _create(self, incarnation: Incarnation, timeout: float | None) -> bool:
        session = self._store.session.id
        parts: list[Part] = [Put(self.path, self._value(incarnation, None), ABSENT, ephemeral=True)]
        if self._guarded:
            parts.append(Put(self._guard(incarnation), b"", ABSENT, ephemeral=True))
        before, incarnation.sent = incarnation.sent, True
        if self._left:  # After `sent`, which `drop` reads after it has set this.
            incarnation.sent = before
            return False
        try:
            stats = self._store.transaction(parts, timeout=timeout).result()
        except TransactionRefusedError as refused:
            incarnation.sent = before
            check_conflict(refused)
            # Or the answer to an earlier attempt was lost.
            if self._taken_over(incarnation, timeout):
                return True
            if refused.index:  # Only the second value is there: somebody has deleted the first.
                incarnation.lost.set()
            return False
        except SessionLostError:
            incarnation.lost.set()
            raise
        except MetadataStoreError as error:
            if error.outcome == "unknown" and self._taken_over(incarnation, timeout):
                return True
            raise
        stat = stats[0]
        assert stat is not None
        if session is None or self._store.session.id != session:
            # The transaction has started the session, or the session has ended meanwhile, perhaps
            # before the transaction was called.
            return self._taken_over(incarnation, timeout)
        incarnation.stat, incarnation.number, incarnation.session = stat, stat.revision, session
        return True

    def _taken_over(self, incarnation: Incarnation, timeout: float | None) -> bool:
        """Return whether the value belongs to the incarnation; make sure that it has the data."""
        if not self._find(incarnation, timeout):
            return False
        if self._rival is None or self._rival.data != self._data:
            self._replace(incarnation)
        return not incarnation.lost.is_set()

    def _find(
        self, incarnation: Incarnation, timeout: float | None = None, *, newest: bool = False
    ) -> bool:
        """Read the value; return whether it belongs to the incarnation, in the current session."""
        if newest:
            self._store.sync(timeout)
        while True:
            session = self._store.session.id
            found = self._store.get(self.path, timeout=timeout).result()
            card = None if found is None else self._card(found, incarnation)
            self._rival = None if card is None else card.member
            if found is None or card is None or card.id != incarnation.id:
                return False
            if not found.stat.owned:
                incarnation.lost.set()  # It ends with an earlier session.
                return False
            if session is not None and self._store.session.id == session:
                break
            # The session has changed during the read, and the value may be of either one.
            time.sleep(_BACKOFF.pause(0))
        incarnation.stat, incarnation.number, incarnation.session = (
            found.stat,
            card.member.incarnation,
            session,
        )
        return True

    def _replace(self, incarnation: Incarnation) -> None:
        """Update the value with the data. If the value is gone, the incarnation ends."""
        there = self._exact or self._find(incarnation, newest=True)
        conflicts = Conflicts(self._store.operation_timeout, self.path)
        while there:
            write = self._write(incarnation, self._value(incarnation, incarnation.number))
            try:
                stats = self._store.transaction(write).result()
            except TransactionRefusedError as refused:
                # Another client, or an unanswered update, may have changed it.
                conflicts.pause(refused)
                there = refused.index == 0 and self._find(incarnation)
            else:
                incarnation.stat = stats[0]
                return
        incarnation.lost.set()

    def _write(self, incarnation: Incarnation, value: bytes | None) -> list[Part]:
        """Return a put or, without a value, the delete of the value, as a transaction."""
        assert incarnation.stat is not None
        version = None if self._exact else incarnation.stat.version
        revision = incarnation.stat.revision if self._exact else None
        if value is None:
            parts: list[Part] = [Delete(self.path, version, expected_revision=revision)]
        else:
            # Without a second value, only an ephemeral put is bound to the session.
            bound = not self._exact and not self._guarded
            parts = [Put(self.path, value, version, expected_revision=revision, ephemeral=bound)]
        if self._guarded:
            guard = self._guard(incarnation)
            parts.append(Delete(guard, 0) if value is None else Check(guard, 0))
        return parts

    def _value(self, incarnation: Incarnation, number: int | None) -> bytes:
        """Return what to store; the number is ``None`` in the creation, which determines it."""
        return encode(incarnation.id, number, self._data)

    def _card(self, found: GetResult, _: Incarnation) -> Card:
        """Return what a value says, which may be that of an incarnation."""
        return decode(self.name, found.value, found.stat)

    def _guard(self, incarnation: Incarnation) -> str:
        return guard_path(self._group, incarnation.id)

    def _clear(self, incarnation: Incarnation, timeout: float | None) -> None:
        """Remove the second value of an incarnation whose first was removed by another client."""
        if incarnation.stat is not None and self._guarded:
            with suppress(NotFoundError):
                self._store.delete(self._guard(incarnation), timeout=timeout).result()

    def _give_up(self) -> None:
        """End the incarnation, and remove its value, in the background if necessary."""
        self._forget(self)
        self._current.lost.set()
        incarnation = self._next
        removed = not incarnation.sent
        try:
            removed = removed or self._remove(incarnation)
        finally:
            if not removed:
                spawn(f"removal of {self.path}", self._keep_removing, incarnation)

    def _keep_removing(self, incarnation: Incarnation) -> None:
        """Remove the value, as often as it takes. At the latest, the end of its session does it."""
        attempts = 0
        try:
            while not self._remove(incarnation):
                time.sleep(_BACKOFF.pause(attempts))
                attempts += 1
                if incarnation.stat is None and attempts == _READS:
                    return
        except MetadataStoreError as error:
            log.info("a member stays until its session ends", path=self.path, reason=str(error))

    def _remove(self, incarnation: Incarnation, timeout: float | None = None) -> bool:
        """Try to remove the value; return whether it is not there any more."""
        try:
            if incarnation.stat is None or not self._exact:
                self._store.sync(timeout)
                found = self._store.get(self.path, timeout=timeout).result()
                if not self._is_of(incarnation, found):
                    if incarnation.stat is None:
                        return False  # Its creation had no answer, and may still take effect.
                    self._clear(incarnation, timeout)
                    return True
            conflicts = Conflicts(self._store.operation_timeout, self.path)
            while True:
                try:
                    self._store.transaction(
                        self._write(incarnation, None), timeout=timeout
                    ).result()
                except TransactionRefusedError as refused:
                    conflicts.pause(refused)
                    found = self._store.get(self.path, timeout=timeout).result()
                    if refused.index == 0 and self._is_of(incarnation, found):
                        continue  # It was updated meanwhile.
                return True
        except StoreClosedError:
            return True  # It ends with the session.
        except MetadataStoreError as error:
            if not passes(error):
                raise
            return False

    def _is_of(self, incarnation: Incarnation, found: GetResult | None) -> bool:
        """Return whether a value belongs to an incarnation; if so, note its stat."""
        if found is None or self._card(found, incarnation).id != incarnation.id:
            return False
        incarnation.stat = found.stat
        return True


def _seconds(deadline: Deadline) -> float | None:
    """Return the timeout of a request. Even a call that must not wait ends soon in an outage."""
    return None if deadline.left() is None else deadline.for_request() or _REQUEST

# Made from async_listening.py by `python tools/faces.py`: change that file, and run this command.
"""Listeners of a ledger, built on one-shot watchers.

A watcher only reports that the ledger has changed. The listener then reads the ledger again. Each
read arms the next watcher before it reads, so no later change is missed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final, NamedTuple, Self

from ....batching._sync.listeners import Listener
from ....batching.background import Signal
from ....ops.backoff import Backoff
from ....ops.errors import MetadataStoreError, StoreClosedError, ValueDecodeError
from ....ops.log import get_logger
from ...errors import NoKeyError
from ...tables._sync.tables import MetaStore, Table
from ...tables.results import EventType
from ..metadata import FIELD, LedgerCallback, LedgerMetadata, key_of, metadata_of

__all__ = ["LedgerListener"]

log = get_logger("batchkeeper.hubs")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


class _State(NamedTuple):
    """The result of a read."""

    found: LedgerMetadata | None


class LedgerListener:
    """A listener of a ledger. Close it to get no more calls; it is also a context manager.

    ``add_listener`` makes it.
    """

    def __init__(
        self, tables: MetaStore, table: Table, ledger_id: int, callback: LedgerCallback
    ) -> None:
        self._tables = tables
        self._table = table
        self._id = ledger_id
        self._key = key_of(ledger_id)
        self._callback = callback
        self._closing = Signal()
        # A change only schedules the callback. The ledger is read when the callback runs.
        self._queue: Listener[_State | EventType] = Listener(f"ledger {ledger_id}", self._call)
        self._lock = threading.RLock()  # guards the following fields
        self._begun = False  # whether the first state is in the queue
        self._early: EventType | None = None  # a change before that

    def start(self) -> None:
        """Start to listen: read the ledger, and report its state.

        Raises:
            MetadataStoreError: the ledger cannot be watched or read. The listener is then closed.
        """
        try:
            self._queue.notify(self._read())
        except BaseException:
            self.close()
            raise
        with self._lock:
            self._begun, early = True, self._early
        if early is not None:
            self._queue.notify(early)

    def close(self) -> None:
        """End the listener. A running call finishes.

        Any thread may call it, including its own callback. Closing twice is harmless.
        """
        self._closing.set()
        self._queue.close()
        self._disarm()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hear(self, key: str, event: EventType) -> None:
        """Note a change. This function is the watcher."""
        with self._lock:
            if not self._begun:
                self._early = event
                return
        self._queue.notify(event)

    def _disarm(self) -> None:
        with suppress(StoreClosedError):
            self._table.disarm(self._key, self._hear)

    def _read(self) -> _State:
        """Arm the watcher, and read the ledger."""
        try:
            value = self._table.get(self._key, [FIELD], self._hear)
        except NoKeyError:
            found = None
        else:
            found = metadata_of(self._id, value)
        if self._closing.is_set():  # The listener was closed before the watcher was armed.
            self._disarm()
        return _State(found)

    def _read_again(self) -> _State | None:
        """Read the ledger after a change, retrying until it succeeds.

        Returns:
            the result; ``None`` if the ledger cannot be read.
        """
        failures = 0
        while not self._closing.is_set():
            try:
                return self._read()
            except StoreClosedError:
                self.close()
            except ValueDecodeError as error:  # The watcher is armed.
                log.warning("a ledger cannot be read", ledger=self._id, reason=str(error))
                return None
            except MetadataStoreError as error:
                log.info("a ledger is read again", ledger=self._id, reason=str(error))
                self._closing.wait(_BACKOFF.pause(failures))
                failures += 1
        return None

    def _call(self, event: _State | EventType) -> None:
        """Call the callback with a given state, or with the state after a change."""
        state = event if isinstance(event, _State) else self._read_again()
        if state is None or self._closing.is_set() or self._tables.closed:
            return
        self._callback(self._id, state.found)

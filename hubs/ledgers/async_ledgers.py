# async:
# `_sync/ledgers.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The table of ledgers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from ...coordination.async_counters import AsyncCounter
from ...coordination.async_kinds import async_check_face
from ...ops.errors import BadVersionError, StoreClosedError
from ..errors import (
    IllegalOperationError,
    KeyExistsError,
    LedgerExistsError,
    NoKeyError,
    NoLedgerError,
)
from ..names import escaped
from ..tables.async_cursors import AsyncCursor
from ..tables.async_tables import AsyncMetaStore, AsyncScannableTable
from ..tables.async_watchers import async_check_watcher
from ..tables.results import VersionedValue
from ..tables.versions import Version, check_version
from .async_listening import AsyncLedgerListener
from .metadata import (
    FIELD,
    LAST,
    Ledger,
    LedgerCallback,
    LedgerMetadata,
    check_metadata,
    is_key,
    key_of,
    metadata_of,
)

__all__ = ["AsyncLedgerCursor", "AsyncLedgerTable"]


class AsyncLedgerCursor:
    """Iterates over the ledgers that exist when it starts, each once, in the order of their ids.

    Iteration starts with the first step. Ledgers created later are not shown, and ledgers removed
    before they are read are omitted. The cursor is an iterator of :class:`Ledger`, and a context
    manager. Use it from one thread or task. After an error of the store, the next step reads the
    same ledgers again. After a ledger that cannot be read, the next step continues behind it.
    """

    def __init__(self, begin: Callable[[], Awaitable[AsyncCursor]]) -> None:
        self._begin = begin
        self._cursor: AsyncCursor | None = None
        self._closed = False

    async def close(self) -> None:
        """End the cursor. It then has no more ledgers."""
        self._closed = True
        self._cursor = None

    async def __anext__(self) -> Ledger:
        if self._closed:
            raise StopAsyncIteration
        if self._cursor is None:
            self._cursor = await self._begin()
        entry = await anext(self._cursor)
        ledger_id = int(entry.key)
        return Ledger(ledger_id, *metadata_of(ledger_id, VersionedValue(*entry[1:])))

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncLedgerTable:
    """The metadata of ledgers, in a table of a :class:`AsyncMetaStore`.

    A ledger has an id, an ``int`` from 0 to 2**63 - 1, and metadata, which are bytes of the caller.
    Any number of threads or tasks can share an object, and any number of processes can use a table.
    Other keys in the table are ignored.

    All methods raise ``IllegalOperationError`` for an invalid id, metadata or version,
        ``StoreClosedError`` after the tables were closed, and errors of the store: see their
        ``outcome``. Only the tables need to be closed.

    Args:
        tables: the tables.
        name: the name of the table. New ids are counted at ``ids/NAME`` below the path of the
            tables; do not remove or lower that value.
    """

    def __init__(self, tables: AsyncMetaStore, name: str = "ledgers") -> None:
        async_check_face(tables, "create_scannable_table", "a table of ledgers needs a MetaStore")
        self._tables = tables
        self._name = name
        self._ids = AsyncCounter(tables.store, f"{tables.path}/ids/{escaped(name)}")

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    async def new_id(self) -> int:
        """Return an id that no other call returns, in any process.

        Ids grow like those of ``AsyncCounter``, with gaps. If another client has created a ledger
        under this id without calling ``new_id``, ``create`` raises ``LedgerExistsError``.

        Raises:
            OverflowError: there are no more ids.
            ValueDecodeError: the value of the counter cannot be read.
        """
        if self._tables.closed:
            raise StoreClosedError("the tables were closed", path=self._ids.path)
        return await self._ids.next()

    async def create(self, ledger_id: int, metadata: bytes) -> Version:
        """Create a ledger, and return its version.

        Raises:
            LedgerExistsError: a ledger with this id exists.
        """
        key, value = key_of(ledger_id), {FIELD: check_metadata(metadata)}
        table = await self._table()
        try:
            return await table.put(key, value, Version.NEW)
        except KeyExistsError as error:
            message = f"there is a ledger {ledger_id} already"
            raise LedgerExistsError(message, path=error.path) from error

    async def read(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of a ledger with its version.

        Raises:
            NoLedgerError: there is no such ledger.
            ValueDecodeError: its record cannot be read.
        """
        key = key_of(ledger_id)
        table = await self._table()
        try:
            value = await table.get(key, [FIELD])
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error
        return metadata_of(ledger_id, value)

    async def write(self, ledger_id: int, metadata: bytes, version: Version) -> Version:
        """Replace the metadata of a ledger, and return its new version.

        Args:
            ledger_id: the ledger.
            metadata: the new metadata.
            version: the version that the ledger must have, or ``Version.ANY``. ``Version.NEW``
                never matches.

        Raises:
            NoLedgerError: there is no such ledger.
            BadVersionError: the ledger has another version.
        """
        key, value = key_of(ledger_id), {FIELD: check_metadata(metadata)}
        table = await self._table()
        try:
            if check_version(version) == Version.NEW:  # A put with it would create the key.
                found = await table.get(key, ())
                raise BadVersionError(
                    f"ledger {ledger_id} is at {found.version!r}, not {version!r}"
                )
            return await table.put(key, value, version)
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error

    async def remove(self, ledger_id: int, version: Version) -> None:
        """Remove a ledger. ``version`` is as for :meth:`write`.

        Raises:
            NoLedgerError: there is no such ledger.
            BadVersionError: the ledger has another version.
        """
        key = key_of(ledger_id)
        table = await self._table()
        try:
            await table.remove(key, version)
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error

    def ledgers(self, first: int = 0, last: int = LAST) -> AsyncLedgerCursor:
        """Return a cursor over the ledgers with ids from ``first`` to ``last``, both included.

        Raises:
            IllegalOperationError: ``first`` is greater than ``last``.
        """
        low, high = key_of(first), key_of(last)
        if low > high:
            raise IllegalOperationError(f"the range is inverted: {first} comes after {last}")

        async def begin() -> AsyncCursor:
            # Filtered by name first, so that the values of other keys are not read.
            table = await self._table()
            return await table._cursor(
                None,
                low if first else None,
                high if last < LAST else None,
                lambda name: low <= name <= high and is_key(name),
            )

        return AsyncLedgerCursor(begin)

    async def add_listener(self, ledger_id: int, callback: LedgerCallback) -> AsyncLedgerListener:
        """Call a function with the metadata of a ledger, now and after each change.

        It receives the id and the result of a read after the change: a :class:`LedgerMetadata`, or
            ``None`` if there is no such ledger. It is called at least with the current state and
            with the last state; changes in quick succession can be merged. Removal does not end a
            listener: the ledger may be created again.

        Each listener has its own queue, so a slow callback delays only its own later calls. Its
        exceptions are logged. After an outage, it gets the state if that has changed in the
        meantime.

        Returns:
            the listener. Close it to get no more calls. A close of the tables closes it, too.

        Raises:
            UnsupportedError: the store has no watches.
            ValueDecodeError: the record of the ledger cannot be read.
        """
        key_of(ledger_id)
        async_check_watcher(callback)
        table = await self._table()
        listener = AsyncLedgerListener(self._tables, table, ledger_id, callback)
        await listener.start()
        return listener

    async def _table(self) -> AsyncScannableTable:
        return await self._tables.create_scannable_table(self._name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def _no_ledger(ledger_id: int, error: NoKeyError) -> NoLedgerError:
    return NoLedgerError(f"there is no ledger {ledger_id}", path=error.path)

# async:
# `_sync/ledgers.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The table of ledgers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from ...coordination.async_counters import AsyncCounter
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
    """Returns the ledgers that there are when it begins, each once, in the order of their ids.

    It begins with its first step. A ledger that is created later is not shown; one that is removed
    before it is read is left out. It is an iterator of :class:`Ledger`, and a context manager. One
    thread or task uses it. After an error of the store, the next step reads the same ledgers again;
    after a ledger that cannot be read, it goes on behind that.
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

    A ledger has an id, an ``int`` from 0 to 2**63 - 1, and its metadata, bytes of the caller. Any
    number of threads or tasks can share an object, and any number of processes can use a table.
    Keys of the table that are not those of ledgers are left alone.

    All methods raise ``IllegalOperationError`` for an argument that is no id, metadata or version,
    ``StoreClosedError`` after a close of the tables, and errors of the store: see their
    ``outcome``. There is nothing to close but the tables.

    Args:
        tables: the tables.
        name: the name of the table. New ids are counted at ``ids/NAME`` below the path of the
            tables; do not remove or lower that value.
    """

    def __init__(self, tables: AsyncMetaStore, name: str = "ledgers") -> None:
        self._tables = tables
        self._name = name
        self._ids = AsyncCounter(tables.store, f"{tables.path}/ids/{escaped(name)}")

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    async def new_id(self) -> int:
        """Return an id that no call has returned before, on any process, and none will.

        Ids grow as those of ``AsyncCounter`` do; some are left out. If somebody has created a
        ledger with this id without asking for one, ``create`` says so.

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
            LedgerExistsError: there is one with this id.
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
            version: the version that it must have, or ``Version.ANY``. ``Version.NEW`` is never
                that of a ledger.

        Raises:
            NoLedgerError: there is no such ledger.
            BadVersionError: it is at another version.
        """
        key, value = key_of(ledger_id), {FIELD: check_metadata(metadata)}
        table = await self._table()
        try:
            if check_version(version) == Version.NEW:  # It would create the key.
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
            BadVersionError: it is at another version.
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
            # By name, so that the values of other keys are not even read.
            table = await self._table()
            return await table._cursor(
                None, lambda name: low <= name <= high and is_key(name), "ascending"
            )

        return AsyncLedgerCursor(begin)

    async def add_listener(self, ledger_id: int, callback: LedgerCallback) -> AsyncLedgerListener:
        """Call a function with the metadata of a ledger, now and after each change.

        It receives the id, and what a read after the change has found: a :class:`LedgerMetadata`,
        or ``None`` if there is no such ledger. It is called at least with what is there now, and
        with the last state; changes in quick succession may be told together. Removal does not end
        a listener: the ledger may be created again.

        Each listener has a queue of its own, so a callback that takes long delays only its own
        later calls. Its exceptions are logged. After an outage, it gets what has changed meanwhile.

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

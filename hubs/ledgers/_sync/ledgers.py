# Made from async_ledgers.py by `python tools/faces.py`: change that file, and run this command.
"""The table of ledgers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from ....coordination._sync.counters import Counter
from ....coordination._sync.kinds import check_face
from ....ops.errors import BadVersionError, StoreClosedError
from ...errors import (
    IllegalOperationError,
    KeyExistsError,
    LedgerExistsError,
    NoKeyError,
    NoLedgerError,
)
from ...names import escaped
from ...tables._sync.cursors import Cursor
from ...tables._sync.tables import MetaStore, ScannableTable
from ...tables._sync.watchers import check_watcher
from ...tables.results import VersionedValue
from ...tables.versions import Version, check_version
from ..metadata import (
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
from .listening import LedgerListener

__all__ = ["LedgerCursor", "LedgerTable"]


class LedgerCursor:
    """Iterates over the ledgers that exist when it starts, each once, in the order of their ids.

    Iteration starts with the first step. Ledgers created later are not shown, and ledgers removed
    before they are read are omitted. The cursor is an iterator of :class:`Ledger`, and a context
    manager. Use it from one thread or task. After an error of the store, the next step reads the
    same ledgers again. After a ledger that cannot be read, the next step continues behind it.
    """

    def __init__(self, begin: Callable[[], Cursor]) -> None:
        self._begin = begin
        self._cursor: Cursor | None = None
        self._closed = False

    def close(self) -> None:
        """End the cursor. It then has no more ledgers."""
        self._closed = True
        self._cursor = None

    def __next__(self) -> Ledger:
        if self._closed:
            raise StopIteration
        if self._cursor is None:
            self._cursor = self._begin()
        entry = next(self._cursor)
        ledger_id = int(entry.key)
        return Ledger(ledger_id, *metadata_of(ledger_id, VersionedValue(*entry[1:])))

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LedgerTable:
    """The metadata of ledgers, in a table of a :class:`MetaStore`.

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

    def __init__(self, tables: MetaStore, name: str = "ledgers") -> None:
        check_face(tables, "create_scannable_table", "a table of ledgers needs a MetaStore")
        self._tables = tables
        self._name = name
        self._ids = Counter(tables.store, f"{tables.path}/ids/{escaped(name)}")

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    def new_id(self) -> int:
        """Return an id that no other call returns, in any process.

        Ids grow like those of ``Counter``, with gaps. If another client has created a ledger
        under this id without calling ``new_id``, ``create`` raises ``LedgerExistsError``.

        Raises:
            OverflowError: there are no more ids.
            ValueDecodeError: the value of the counter cannot be read.
        """
        if self._tables.closed:
            raise StoreClosedError("the tables were closed", path=self._ids.path)
        return self._ids.next()

    def create(self, ledger_id: int, metadata: bytes) -> Version:
        """Create a ledger, and return its version.

        Raises:
            LedgerExistsError: a ledger with this id exists.
        """
        key, value = key_of(ledger_id), {FIELD: check_metadata(metadata)}
        table = self._table()
        try:
            return table.put(key, value, Version.NEW)
        except KeyExistsError as error:
            message = f"there is a ledger {ledger_id} already"
            raise LedgerExistsError(message, path=error.path) from error

    def read(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of a ledger with its version.

        Raises:
            NoLedgerError: there is no such ledger.
            ValueDecodeError: its record cannot be read.
        """
        key = key_of(ledger_id)
        table = self._table()
        try:
            value = table.get(key, [FIELD])
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error
        return metadata_of(ledger_id, value)

    def write(self, ledger_id: int, metadata: bytes, version: Version) -> Version:
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
        table = self._table()
        try:
            if check_version(version) == Version.NEW:  # A put with it would create the key.
                found = table.get(key, ())
                raise BadVersionError(
                    f"ledger {ledger_id} is at {found.version!r}, not {version!r}"
                )
            return table.put(key, value, version)
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error

    def remove(self, ledger_id: int, version: Version) -> None:
        """Remove a ledger. ``version`` is as for :meth:`write`.

        Raises:
            NoLedgerError: there is no such ledger.
            BadVersionError: the ledger has another version.
        """
        key = key_of(ledger_id)
        table = self._table()
        try:
            table.remove(key, version)
        except NoKeyError as error:
            raise _no_ledger(ledger_id, error) from error

    def ledgers(self, first: int = 0, last: int = LAST) -> LedgerCursor:
        """Return a cursor over the ledgers with ids from ``first`` to ``last``, both included.

        Raises:
            IllegalOperationError: ``first`` is greater than ``last``.
        """
        low, high = key_of(first), key_of(last)
        if low > high:
            raise IllegalOperationError(f"the range is inverted: {first} comes after {last}")

        def begin() -> Cursor:
            # Filtered by name first, so that the values of other keys are not read.
            table = self._table()
            return table._cursor(
                None,
                low if first else None,
                high if last < LAST else None,
                lambda name: low <= name <= high and is_key(name),
            )

        return LedgerCursor(begin)

    def add_listener(self, ledger_id: int, callback: LedgerCallback) -> LedgerListener:
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
        check_watcher(callback)
        table = self._table()
        listener = LedgerListener(self._tables, table, ledger_id, callback)
        listener.start()
        return listener

    def _table(self) -> ScannableTable:
        return self._tables.create_scannable_table(self._name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def _no_ledger(ledger_id: int, error: NoKeyError) -> NoLedgerError:
    return NoLedgerError(f"there is no ledger {ledger_id}", path=error.path)

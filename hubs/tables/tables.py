# Made from async_tables.py by `python tools/faces.py`: change that file, and run this command.
"""Tables: keys with values of named fields, and one version for all fields of a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Self

from ...batching import MetadataStore
from ...coordination.background import Signal
from ...ops.backoff import Backoff
from ...ops.errors import BadVersionError, MetadataStoreError, StoreClosedError
from ...ops.paths import check_path
from ...ops.results import GetResult
from ..errors import IllegalOperationError, KeyExistsError, NoKeyError
from ..names import escaped, text_of
from .cursors import Cursor
from .records import Record, check_fields, check_value, decoded, merged
from .results import Order, VersionedValue, Watcher
from .states import Seen, States, states_of
from .versions import Version, check_version
from .watchers import Watchers, check_watcher

__all__ = ["MetaStore", "ScannableTable", "Table"]

_BACKOFF: Final = Backoff(first=0.002, longest=0.1)


class Table:
    """A table of a :class:`MetaStore`.

    Keys are texts that are not empty. A value is a mapping from the names of its fields to bytes.
    Any number of threads or tasks can share a table, and any number of processes can use it.

    All methods raise ``IllegalOperationError`` for an argument that is no key, value or version,
    and errors of the store: see their ``outcome``. After ``IndeterminateError``, a put or a removal
    may have taken effect.
    """

    def __init__(
        self,
        store: MetadataStore,
        name: str,
        place: str,
        removals: str,
        closed: Signal,
    ) -> None:
        self._store = store
        self._name = name
        self._place = place
        self._closed = closed
        self._states: States = states_of(store, removals)
        self._watchers = Watchers(store, place, closed)
        # Whether a read may miss what others have written.
        self._lags = "linearizable_reads" not in store.capabilities

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    def get(
        self,
        key: str,
        fields: Collection[str] | None = None,
        watcher: Watcher | None = None,
    ) -> VersionedValue:
        """Return the value of a key with its version.

        A watcher is called once, with the key and an :class:`EventType`, at the first change after
        what this call has found: ``CHANGED`` if the key was created or put, ``REMOVED`` if it was
        removed. A key that is not there is watched, too. Each call arms a watcher of its own. It
        stays armed through outages and lost sessions. If one hides the first change, the watcher
        gets the difference afterwards, if there is one; so it is with every change on ZooKeeper
        before 3.9.

        The watchers of a table are called one after the other, away from the caller, and perhaps
        before this call has returned. They may use the table. Their exceptions are logged. When
        the tables or the store are closed, no more of them are called.

        Args:
            key: the key.
            fields: the names of the fields to return; ``()`` for the version alone, ``None`` for
                all of them. Fields that the value does not have are left out.
            watcher: the function to call.

        Raises:
            NoKeyError: the key is not there. The watcher is armed.
            ValueDecodeError: its record cannot be read. The watcher is armed.
            UnsupportedError: the store has no watches.
            OperationTimeoutError: the store cannot be watched, or read, within its
                ``operation_timeout``. As after all further errors, the watcher is not armed.
        """
        chosen, path = check_fields(fields), self._path(key)
        if watcher is not None:
            check_watcher(watcher)
            found = self._watchers.read(key, path, watcher)
        else:
            found = self._store.get(path).result()
            if found is None and self._lags:
                self._store.sync()
                found = self._store.get(path).result()
        if found is None:
            raise self._no_key(key)
        return self._shown(found, chosen)

    def disarm(self, key: str, watcher: Watcher) -> bool:
        """Drop a watcher of a key that was not called yet; return whether there was one.

        If it is armed several times, one of them is dropped.
        """
        return self._watchers.disarm(self._path(key), watcher)

    def put(self, key: str, value: Mapping[str, bytes | None], version: Version) -> Version:
        """Change some fields of a key, and return its new version.

        The given fields are set, those given as ``None`` are removed, and the others stay. An empty
        value only gives the key a new version. Puts of different fields at the same time all take
        effect.

        Args:
            key: the key.
            value: the fields.
            version: ``Version.NEW`` creates the key; ``Version.ANY`` changes it at any version;
                another version must be that of the key.

        Raises:
            KeyExistsError: the key is there, and the version is ``Version.NEW``.
            NoKeyError: it is not there, and the version is another.
            BadVersionError: it is at another version.
        """
        path, changes, version = self._path(key), check_value(value), check_version(version)
        if version == Version.NEW:
            try:
                return self._states.create(path, merged({}, changes))
            except BadVersionError as error:
                raise KeyExistsError(
                    f"table {self._name!r} has the key {key!r}", path=path
                ) from error
        attempts = 0
        while True:
            seen, record = self._current(key, path, version, anew=attempts > 0)
            fields = merged(record.fields, changes)
            try:
                return self._states.replace(path, seen, record._replace(fields=fields))
            except BadVersionError:  # Somebody else was quicker.
                time.sleep(_BACKOFF.pause(attempts))
                attempts += 1

    def remove(self, key: str, version: Version) -> None:
        """Remove a key.

        Args:
            key: the key.
            version: ``Version.ANY``, or the version that the key must have. ``Version.NEW`` is
                never that of a key.

        Raises:
            NoKeyError: the key is not there.
            BadVersionError: it is at another version.
        """
        path, version = self._path(key), check_version(version)
        attempts = 0
        while True:
            seen, _ = self._current(key, path, version, anew=attempts > 0)
            try:
                return self._states.remove(path, seen)
            except BadVersionError:  # Somebody else was quicker.
                time.sleep(_BACKOFF.pause(attempts))
                attempts += 1

    def clear(self) -> int:
        """Remove all keys, in batches; return the number of those that this call has removed.

        Keys that others put meanwhile may stay.
        """
        names = self._names()
        return self._states.remove_all([f"{self._place}/{name}" for name in names])

    def open_cursor(self, fields: Collection[str] | None = None) -> Cursor:
        """Return a cursor over all keys; see :class:`Cursor` for what it shows."""
        return self._cursor(check_fields(fields), lambda _: True, "ascending")

    # Inside

    def _cursor(
        self, fields: frozenset[str] | None, chosen: Callable[[str], bool], order: Order
    ) -> Cursor:
        names = [name for name in self._names() if chosen(name)]
        if order == "descending":
            names.reverse()
        return Cursor(self._store, self._place, names, lambda found: self._shown(found, fields))

    def _names(self) -> list[str]:
        """Return the names of all keys; what others have put there is left out."""
        self._check_open()
        if self._lags:
            self._store.sync()
        names = self._store.get_children(self._place).result()
        return [name for name in names if text_of(name) is not None]

    def _current(self, key: str, path: str, version: Version, *, anew: bool) -> tuple[Seen, Record]:
        """Return the record of a key that is at a version.

        Raises:
            NoKeyError: the key is not there.
            BadVersionError: it is at another version.
        """
        if anew and self._lags:
            self._store.sync()
        seen = self._states.read(path)
        error: MetadataStoreError
        if seen is None:
            error = self._no_key(key)
        else:
            record = decoded(seen.found)
            actual = self._states.version(seen.found, record)
            if version in (Version.ANY, actual):
                return seen, record
            error = BadVersionError(
                f"key {key!r} of table {self._name!r} is at {actual!r}, not {version!r}", path=path
            )
        if anew or not self._lags:
            raise error
        return self._current(key, path, version, anew=True)

    def _shown(self, found: GetResult, fields: frozenset[str] | None) -> VersionedValue:
        record = decoded(found)
        value = record.fields
        if fields is not None:
            value = {name: value[name] for name in fields if name in value}
        return VersionedValue(value, self._states.version(found, record))

    def _no_key(self, key: str) -> NoKeyError:
        return NoKeyError(f"table {self._name!r} has no key {key!r}", path=self._path(key))

    def _path(self, key: str) -> str:
        self._check_open()
        return f"{self._place}/{_part(key)}"

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreClosedError("the tables were closed", path=self._place)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class ScannableTable(Table):
    """A table whose keys can be read in their order, which is that of their bytes in UTF-8."""

    def open_cursor(  # type: ignore[override]
        self,
        first: str | None = None,
        first_inclusive: bool = True,
        last: str | None = None,
        last_inclusive: bool = True,
        order: Order = "ascending",
        fields: Collection[str] | None = None,
    ) -> Cursor:
        """Return a cursor over the keys in a range; see :class:`Cursor` for what it shows.

        Args:
            first: the end with which the cursor begins; ``None`` for no end.
            first_inclusive: whether ``first`` belongs to the range.
            last: the other end; ``None`` for no end.
            last_inclusive: whether ``last`` belongs to the range.
            order: ``"ascending"`` or ``"descending"``.
            fields: as for :meth:`get`.

        Raises:
            IllegalOperationError: the range is inverted: ``first`` comes after ``last`` in this
                order. Or an argument is no key, flag, order or list of fields.
        """
        if order not in ("ascending", "descending"):
            raise IllegalOperationError(
                f"order must be 'ascending' or 'descending', not {order!r:.80}"
            )
        for flag in (first_inclusive, last_inclusive):
            if type(flag) is not bool:
                raise IllegalOperationError(
                    f"whether an end belongs to the range must be a bool, not {flag!r:.80}"
                )
        ends = [
            (None if first is None else _part(first), first_inclusive),
            (None if last is None else _part(last), last_inclusive),
        ]
        (low, with_low), (high, with_high) = ends if order == "ascending" else reversed(ends)
        if low is not None and high is not None and low > high:
            raise IllegalOperationError(
                f"the range is inverted: in {order} order, {first!r} comes after {last!r}"
            )

        def chosen(name: str) -> bool:
            above = low is None or name > low or (with_low and name == low)
            return above and (high is None or name < high or (with_high and name == high))

        return self._cursor(check_fields(fields), chosen, order)


class MetaStore:
    """Tables in a store.

    Below its path, a table has its keys at ``tables/NAME/KEY``. On stores without the capability
    ``"expected_revisions"`` (ZooKeeper), ``removals/NAME`` keeps versions of removed keys from
    coming back; do not remove it, or set it back, while versions are in use. A table of ledgers
    counts its ids at ``ids/NAME``. Names and keys are escaped (see ``hubs.names``).

    Close it, or use it as a context manager. The store stays open.

    Args:
        store: the store.
        path: the path below which the tables are.

    Raises:
        InvalidPathError: the path is not valid.
    """

    #: The name of this implementation.
    name: Final = "batchkeeper"
    #: The version of the layout and of the records.
    version: Final = 1

    def __init__(self, store: MetadataStore, path: str = "/metastore") -> None:
        self._store = store
        self._path = check_path(path)
        self._closed = Signal()
        self._tables: dict[str, Table] = {}
        self._scannable: dict[str, ScannableTable] = {}

    @property
    def store(self) -> MetadataStore:
        """The store."""
        return self._store

    @property
    def path(self) -> str:
        """The path below which the tables are."""
        return self._path

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def create_table(self, name: str) -> Table:
        """Return the table of a name. Nothing is written until the first put."""
        places = self._places(name)
        found = self._tables.get(name)
        if found is None:
            table = Table(self._store, name, *places, self._closed)
            found = self._tables.setdefault(name, table)
        return found

    def create_scannable_table(self, name: str) -> ScannableTable:
        """Return the table of a name, with cursors over ranges of keys.

        All stores of this package are ordered, so this never fails on them.
        """
        places = self._places(name)
        found = self._scannable.get(name)
        if found is None:
            table = ScannableTable(self._store, name, *places, self._closed)
            found = self._scannable.setdefault(name, table)
        return found

    def close(self) -> None:
        """End the use of all tables: later calls raise ``StoreClosedError``.

        No watcher is called after this; a call under way goes on.
        """
        self._closed.set()
        for table in (*self._tables.values(), *self._scannable.values()):
            table._watchers.close()

    def _places(self, name: str) -> tuple[str, str]:
        """Return the paths below which a table has its keys, and its removals."""
        part = _part(name)
        return f"{self._path}/tables/{part}", f"{self._path}/removals/{part}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"


def _part(key: object) -> str:
    """Return a key, or the name of a table, as a part of a path.

    Raises:
        IllegalOperationError: it is none.
    """
    if not isinstance(key, str):
        raise IllegalOperationError(f"a key must be a str that is not empty, not {key!r:.80}")
    return escaped(key)

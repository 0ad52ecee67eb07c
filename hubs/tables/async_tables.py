# async:
# `_sync/tables.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Tables: keys with values of named fields, and one version for all fields of a key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Self

from ...batching import AsyncMetadataStore
from ...coordination.async_kinds import async_check_store
from ...ops.operations import Part
from ...ops.paths import check_path
from ..errors import IllegalOperationError
from ..names import escaped, text_of
from .async_cursors import AsyncCursor
from .async_shelves import AsyncShelf
from .async_watchers import AsyncWatchers, async_check_watcher
from .records import check_fields, check_value
from .results import Order, VersionedValue, Watcher
from .rows import Row
from .versions import Version, check_version

__all__ = ["AsyncMetaStore", "AsyncScannableTable", "AsyncTable"]


class AsyncTable:
    """A table of a :class:`AsyncMetaStore`.

    Keys are non-empty texts. A value is a mapping from field names to bytes. Any number of threads
    or tasks can share a table, and any number of processes can use it.

    All methods raise ``IllegalOperationError`` for an invalid key, value or version, and errors of
        the store: see their ``outcome``. After ``IndeterminateError``, a put or a removal may have
        taken effect.

    If another program has damaged the record of a key, ``get`` raises ``DamagedRecordError``. So do
        a put and a removal, unless they name the version in the error: then the put replaces the
        whole record.
    """

    def __init__(
        self,
        shelf: AsyncShelf,
        name: str,
        place: str,
        leaf: str = "",
    ) -> None:
        self.shelf = shelf
        self._name = name
        self._place = place
        self._leaf = leaf

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    async def get(
        self,
        key: str,
        fields: Collection[str] | None = None,
        watcher: Watcher | None = None,
    ) -> VersionedValue:
        """Return the value of a key with its version.

        A watcher is called once, with the key and an :class:`EventType`, on the first change after
        the read: ``CHANGED`` if the key was created or put, ``REMOVED`` if it was removed. A
        missing key can be watched, too. Each call arms a new watcher. It stays armed through
        outages and lost sessions. If an outage hides the first change, the watcher gets the
        difference afterwards, if there is one. ZooKeeper before 3.9 reports every change as such a
        difference.

        The watchers of a table are called one after the other, in the background, possibly before
        this call returns. They may use the table. Their exceptions are logged. After the tables or
        the store are closed, no watcher is called.

        Args:
            key: the key.
            fields: the names of the fields to return; ``()`` for only the version, ``None`` for all
                fields. Missing fields are omitted.
            watcher: the function to call.

        Raises:
            NoKeyError: the key does not exist. The watcher is armed.
            DamagedRecordError: its record cannot be read. The watcher is armed.
            UnsupportedError: the store has no watches.
            OperationTimeoutError: the store cannot be watched or read within its
                ``operation_timeout``. After this and all other errors, the watcher is not armed.
        """
        chosen, row = check_fields(fields), self.row(key)
        if watcher is None:
            return self.shelf.shown(await self.shelf.get(row), chosen)
        async_check_watcher(watcher)
        found = await self._watchers.read(key, row.path, watcher)
        if found is None:
            raise row.missing()
        return self.shelf.shown(found, chosen)

    def disarm(self, key: str, watcher: Watcher) -> bool:
        """Drop a pending watcher of a key; return whether there was one.

        A watcher that is armed several times is dropped once.
        """
        return self._watchers.disarm(self.row(key).path, watcher)

    async def put(self, key: str, value: Mapping[str, bytes | None], version: Version) -> Version:
        """Change some fields of a key, and return its new version.

        The put sets the given fields, removes those given as ``None``, and keeps the others. An
        empty value only gives the key a new version. Concurrent puts of different fields all take
        effect.

        Args:
            key: the key.
            value: the fields.
            version: ``Version.NEW`` creates the key; ``Version.ANY`` changes it at any version; any
                other version must match the key's current one.

        Raises:
            KeyExistsError: the key exists, and the version is ``Version.NEW``.
            NoKeyError: the key does not exist, and the version is not ``Version.NEW``.
            BadVersionError: the key has another version.
        """
        row, changes, version = self.row(key), check_value(value), check_version(version)
        return await self.shelf.put(row, changes, version)

    async def remove(self, key: str, version: Version) -> None:
        """Remove a key.

        Args:
            key: the key.
            version: ``Version.ANY``, or the version that the key must have. ``Version.NEW`` never
                matches.

        Raises:
            NoKeyError: the key does not exist.
            BadVersionError: the key has another version.
        """
        row, version = self.row(key), check_version(version)
        await self.shelf.remove(row, version)

    async def clear(self) -> int:
        """Remove all keys in batches; return the number of keys that this call removed.

        Keys that other clients put in the meantime may stay.
        """
        names = await self._names()
        return await self.shelf.remove_all([self._at(name) for name in names])

    async def open_cursor(self, fields: Collection[str] | None = None) -> AsyncCursor:
        """Return a cursor over all keys; see :class:`AsyncCursor` for what it shows."""
        return await self._cursor(check_fields(fields))

    def row(self, key: str, beside: tuple[Part, ...] = ()) -> Row:
        """Return the location of a key's record, existing or not; see ``Row`` in ``rows``.

        Raises:
            IllegalOperationError: the key is invalid.
            StoreClosedError: the tables were closed.
        """
        self.shelf.check_open()
        return Row(self._at(_part(key)), self._name, key, beside)

    # Inside

    @property
    def _watchers(self) -> AsyncWatchers:
        return self.shelf.watchers(self._place)

    async def _cursor(
        self,
        fields: frozenset[str] | None,
        low: str | None = None,
        high: str | None = None,
        chosen: Callable[[str], bool] = lambda _: True,
        order: Order = "ascending",
    ) -> AsyncCursor:
        names = [name for name in await self._names(low, high) if chosen(name)]
        if order == "descending":
            names.reverse()
        shelf = self.shelf
        return AsyncCursor(shelf.store, self._at, names, lambda found: shelf.shown(found, fields))

    async def _names(self, low: str | None = None, high: str | None = None) -> list[str]:
        """Return the names of the keys in a range, both ends included, without foreign paths."""
        self.shelf.check_open()
        await self.shelf.catch_up()
        store, above = self.shelf.store, len(self._place) + 1
        if low is None and high is None:
            names = await store.get_children(self._place)
        else:
            # No path comes between one and the same with a space behind it.
            start = None if low is None else self._at(low)
            end = None if high is None else f"{self._at(high)} "
            names = []
            async for page in store.scan_pages(self._place, start, end, values=False):
                names += [path[above:] for path in page.paths]
        return [name for name in names if text_of(name) is not None]

    def _at(self, part: str) -> str:
        return f"{self._place}/{part}{self._leaf}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class AsyncScannableTable(AsyncTable):
    """A table whose keys can be read in order, by their bytes in UTF-8."""

    async def open_cursor(  # type: ignore[override]
        self,
        first: str | None = None,
        first_inclusive: bool = True,
        last: str | None = None,
        last_inclusive: bool = True,
        order: Order = "ascending",
        fields: Collection[str] | None = None,
    ) -> AsyncCursor:
        """Return a cursor over the keys in a range; see :class:`AsyncCursor` for what it shows.

        Its cost and its memory depend on the range, not on the table, except on ZooKeeper, which
        always sends the names of all keys.

        Args:
            first: the bound at which the cursor starts; ``None`` for no bound.
            first_inclusive: whether ``first`` belongs to the range.
            last: the other bound; ``None`` for no bound.
            last_inclusive: whether ``last`` belongs to the range.
            order: ``"ascending"`` or ``"descending"``.
            fields: as for ``get``.

        Raises:
            IllegalOperationError: the range is inverted, so that ``first`` comes after ``last`` in
                this order; or a key, flag, order or list of fields is invalid.
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

        return await self._cursor(check_fields(fields), low, high, chosen, order)


class AsyncMetaStore:
    """Tables in a store.

    A table stores its keys at ``tables/NAME/KEY`` below its path. On stores without the capability
    ``"expected_revisions"`` (ZooKeeper), ``removals`` prevents versions of removed keys from being
    reused; do not remove or reset it while versions are in use. There, if a key is removed through
    the store and not through its table, a late put of another client can restore it. A table of
    ledgers counts its ids at ``ids/NAME``. Names and keys are escaped (see ``hubs.names``).

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

    def __init__(self, store: AsyncMetadataStore, path: str = "/metastore") -> None:
        async_check_store(store, "a metastore")
        self._path = check_path(path)
        self._shelf = AsyncShelf(store, f"{path}/removals")

    @property
    def store(self) -> AsyncMetadataStore:
        """The store."""
        return self._shelf.store

    @property
    def path(self) -> str:
        """The path below which the tables are."""
        return self._path

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._shelf.closed.is_set()

    async def create_table(self, name: str) -> AsyncTable:
        """Return the table with this name. Nothing is written until the first put."""
        return AsyncTable(self._shelf, name, self._place(name))

    async def create_scannable_table(self, name: str) -> AsyncScannableTable:
        """Return the table with this name, with cursors over ranges of keys.

        All stores of this package are ordered, so this call never fails.
        """
        return AsyncScannableTable(self._shelf, name, self._place(name))

    async def close(self) -> None:
        """End the use of all tables: later calls raise ``StoreClosedError``.

        No watcher is called after this; a running call finishes.
        """
        self._shelf.close()

    def _place(self, name: str) -> str:
        """Return the path below which a table stores its keys."""
        return f"{self._path}/tables/{_part(name)}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"


def _part(key: object) -> str:
    """Return a key or a table name as a path component.

    Raises:
        IllegalOperationError: the key or name is invalid.
    """
    if not isinstance(key, str):
        raise IllegalOperationError(f"a key must be a str that is not empty, not {key!r:.80}")
    return escaped(key)

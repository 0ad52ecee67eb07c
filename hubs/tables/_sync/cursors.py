# Made from async_cursors.py by `python tools/faces.py`: change that file, and run this command.
"""Cursors: the keys of a table and their values, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Self

from ....batching import MetadataStore
from ....ops.operations import Get
from ....ops.results import GetResult
from ...errors import IllegalOperationError
from ...names import text_of
from ..results import Entry, VersionedValue

__all__ = ["Cursor"]

# The number of values that a cursor reads at a time.
_PAGE: Final = 1000


class Cursor:
    """Iterates over the keys that a table had when the cursor was opened, each once, in order.

    Keys created later are not shown. Keys removed before their page is read are omitted. The value
    and the version of a key are those at the time its page is read.

    The cursor is an iterator of :class:`Entry`, and a context manager. Use it from one thread or
    task. After an error of the store, the next call reads the same keys again. After a record that
    cannot be read, the next call continues behind it.
    """

    def __init__(
        self,
        store: MetadataStore,
        at: Callable[[str], str],
        names: list[str],
        shown: Callable[[GetResult], VersionedValue],
    ) -> None:
        self._store = store
        self._at = at
        self._names = names  # the remaining names
        self._shown = shown
        self._page: deque[Entry] = deque()
        self._names.reverse()

    @property
    def has_more_entries(self) -> bool:
        """Whether there are more keys. All of them may have been removed by now."""
        return bool(self._page or self._names)

    def read_entries(self, n: int) -> list[Entry]:
        """Return the next ``n`` entries, all of them in memory; fewer only at the end.

        Raises:
            IllegalOperationError: ``n`` is not a number from 1 on.
            DamagedRecordError: a record cannot be read.
        """
        if type(n) is not int or n < 1:
            raise IllegalOperationError(f"n must be an int from 1 on, not {n!r:.80}")
        while len(self._page) < n and self._names:
            self._read(min(n - len(self._page), _PAGE))
        return [self._page.popleft() for _ in range(min(n, len(self._page)))]

    def close(self) -> None:
        """End the cursor. It then has no more entries."""
        self._names.clear()
        self._page.clear()

    def _read(self, n: int) -> None:
        """Read the values of the next ``n`` keys."""
        names = self._names[: -n - 1 : -1]
        outcomes = self._store.apply([Get(self._at(name)) for name in names])
        for outcome, name in zip(outcomes, names, strict=True):
            if outcome.error is not None:
                raise outcome.error
            self._names.pop()  # Not earlier: after an error, the next call continues here.
            key, found = text_of(name), outcome.result
            if key is not None and isinstance(found, GetResult):
                self._page.append(Entry(key, *self._shown(found)))

    def __next__(self) -> Entry:
        while not self._page and self._names:
            self._read(_PAGE)
        if not self._page:
            raise StopIteration
        return self._page.popleft()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

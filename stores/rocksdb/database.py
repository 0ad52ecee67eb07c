"""An open RocksDB, which closes only after its calls and walks have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, cast

from rocksdict import Rdict, RdictIter, ReadOptions

from ...ops.errors import MetadataStoreError, StoreClosedError, StoreUnavailableError
from ..backend import Request, RequestRefusedError
from .value_format import LONGEST_HEADER
from .walks import KeyWalk

__all__ = ["Database"]

# Reading old records to learn their versions also reads their values: at most this many bytes of
# them at a time.
_RECORDS_BYTES: Final = 64 * 1024 * 1024


class Database:
    """RocksDB in a directory. As a context manager, it stays open during a call.

    Args:
        directory: the directory, for messages.
        db: the database; owned from now on.

    Attributes:
        walks: the open walks, which end before RocksDB is closed. Each change of this set is atomic
            and takes no lock, because the garbage collector closes a dropped scan in a thread that
            may hold any lock.
    """

    def __init__(self, directory: str, db: Rdict) -> None:
        self.directory = directory
        self.db = db
        self.walks: set[KeyWalk] = set()
        # Guards _running and _closed. RocksDB must not be closed during a call.
        self._state = threading.Lock()
        self._running = 0
        self._closed = False
        self._left = threading.Event()  # the store is closed, and the last call has ended
        self._ended = threading.Event()  # RocksDB is closed

    def __enter__(self) -> None:
        with self._state:
            if self._closed:
                raise StoreClosedError(f"the RocksDB store in {self.directory} is closed")
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._running -= 1
            if self._closed and not self._running:
                self._left.set()

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Refuse later calls, wait for the current ones, end the walks, and close RocksDB.

        Args:
            last: what remains to be done with the database after the last call; only the first call
                of ``close`` does it.

        Raises:
            StoreUnavailableError: RocksDB failed to close. Only the first call raises this.
        """
        with self._state:
            first = not self._closed
            self._closed = True
            if not self._running:
                self._left.set()
        self._left.wait()
        if first:
            # A copy, because dropped scans remove their walks meanwhile.
            for walk in self.walks.copy():
                walk.close()
            try:
                last()
                self.db.close()
            except Exception as error:
                raise StoreUnavailableError(
                    f"RocksDB failed to close the store in {self.directory}: {error}"
                ) from error
            finally:
                self._ended.set()
        self._ended.wait()

    def records(self, keys: list[bytes], largest: int) -> Iterable[bytes | None]:
        """Return the keys' records, ``None`` for missing ones; one by one if they may be large.

        Args:
            keys: the keys.
            largest: the size of the largest record ever put.
        """
        get = self.db.get
        if len(keys) == 1:
            return [get(keys[0])]
        if len(keys) * largest <= _RECORDS_BYTES:
            # One call for all. Such a call releases the GIL, and taking it back from a busy thread
            # costs up to 5 ms. For the same reason, records that may be too large for one call are
            # not read in parts, but by single calls, which keep the GIL.
            return cast("list[bytes | None]", get([*keys]))
        return map(get, keys)

    def headers(self, keys: list[bytes], largest: int) -> list[bytes | None]:
        """Return each key's record, or only its header; ``None`` for a missing one.

        Take no value from them: in a large call, each is cut.
        """
        found = self.records(keys, largest)
        if isinstance(found, list):
            return found
        return [record and record[:LONGEST_HEADER] for record in found]

    def below(self, prefix: bytes) -> tuple[RdictIter, ReadOptions]:
        """Return an iterator over the keys that start with ``prefix``, placed at the first.

        ``prefix`` ends with a slash. The bound also keeps a seek from walking over deleted,
        uncompacted keys after the prefix. The caller must keep the options as long as the iterator:
        in rocksdict 0.3.29, the bound lies in their memory.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(prefix[:-1] + b"0")  # "0" follows "/" in ASCII
        below = self.db.iter(options)
        below.seek(prefix)
        return below, options

    def has_below(self, path: bytes, gone: Container[bytes]) -> bool:
        """Say whether there is a key below a path that is not among ``gone``."""
        below, _bound = self.below(path + b"/")
        while below.valid():
            if below.key() not in gone:
                return True
            below.next()
        below.status()
        return False

    def keys_below(self, path: bytes) -> Iterator[bytes]:
        """Yield the keys below a path, in order."""
        below, _bound = self.below(path + b"/")
        while below.valid():
            yield below.key()
            below.next()
        below.status()

    def unreadable(self, error: Exception, requests: Sequence[Request] = ()) -> MetadataStoreError:
        """Return the caller's error for a failure of RocksDB before anything was written."""
        if type(error) is not Exception:
            raise error  # rocksdict raises bare Exceptions; anything else is a bug of this package
        # Whoever keeps the error must not keep RocksDB open by an iterator in one of its frames.
        error.__traceback__ = None
        failure = StoreUnavailableError(
            f"RocksDB failed to read in {self.directory}: {error}",
            path=requests[0].path if len(requests) == 1 else None,
        )
        failure.retriable = False  # what is damaged stays damaged
        # One damaged block makes the whole read fail, so the engine searches for the operation.
        return failure if len(requests) <= 1 else RequestRefusedError(failure)

"""An open RocksDB, which is not closed under a call or a walk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, cast

from rocksdict import Rdict, RdictIter, ReadOptions

from ...ops.errors import MetadataStoreError, StoreClosedError, StoreUnavailableError
from ..backend import Request, RequestRefusedError
from .records import HEADER
from .walks import KeyWalk

__all__ = ["Database"]

# Where old records are read to learn their versions, their values come along; that many bytes of
# them at a time.
_RECORDS_BYTES: Final = 64 * 1024 * 1024


class Database:
    """RocksDB in a directory. As a context manager it stays open for the length of a call.

    Args:
        directory: where it is, for messages.
        db: owned from now on.

    Attributes:
        walks: the open ones, which are ended before RocksDB is closed. Each change of it is atomic
            and takes no lock: a scan that was dropped is closed by the garbage collector, in a
            thread that may hold any lock.
    """

    def __init__(self, directory: str, db: Rdict) -> None:
        self.directory = directory
        self.db = db
        self.walks: set[KeyWalk] = set()
        # Guards _running and _closed. RocksDB must not be closed under a call.
        self._state = threading.Lock()
        self._running = 0
        self._closed = False
        self._left = threading.Event()  # closed, and the last call has ended
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

    def close(self) -> None:
        """Refuse later calls, wait for those under way, end the walks, and close RocksDB.

        Raises:
            StoreUnavailableError: RocksDB failed to close, and this is the first call.
        """
        with self._state:
            first = not self._closed
            self._closed = True
            if not self._running:
                self._left.set()
        self._left.wait()
        if first:
            # A copy, for scans that are dropped meanwhile are taken out of it.
            for walk in self.walks.copy():
                walk.close()
            try:
                self.db.close()
            except Exception as error:
                raise StoreUnavailableError(
                    f"RocksDB failed to close the store in {self.directory}: {error}"
                ) from error
            finally:
                self._ended.set()
        self._ended.wait()

    def records(self, keys: list[bytes], largest: int) -> Iterable[bytes | None]:
        """Return the keys' records: a list, or one after the other where they may be large.

        Args:
            keys: of the records; ``None`` stands where there is none.
            largest: the size of the largest record that was ever put.
        """
        get = self.db.get
        if len(keys) == 1:
            return [get(keys[0])]
        if len(keys) * largest <= _RECORDS_BYTES:
            # One call for all. Such a call gives the GIL away, and getting it back from a busy
            # thread costs up to 5 ms; that is also why these are not read in parts when some of
            # them may be too large for one call, but by calls that keep the GIL.
            return cast("list[bytes | None]", get([*keys]))
        return map(get, keys)

    def headers(self, keys: list[bytes], largest: int) -> list[bytes | None]:
        """Return each key's record, or only its header; ``None`` where there is none."""
        found = self.records(keys, largest)
        if isinstance(found, list):
            return found
        return [record and record[: HEADER.size] for record in found]

    def below(self, prefix: bytes) -> tuple[RdictIter, ReadOptions]:
        """Return an iterator at the first of the keys that start with ``prefix``, up to the last.

        ``prefix`` ends with a slash. The bound also keeps a seek from walking over everything that
        was deleted after the prefix and is not compacted away yet. The caller keeps the options
        for as long as the iterator: in rocksdict 0.3.29 the bound lies in memory of theirs.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(prefix[:-1] + b"0")  # what follows the slash in ASCII
        below = self.db.iter(options)
        below.seek(prefix)
        return below, options

    def unreadable(self, error: Exception, requests: Sequence[Request] = ()) -> MetadataStoreError:
        """Return what a failure of RocksDB is for its caller, before anything was written."""
        if type(error) is not Exception:
            raise error  # rocksdict raises bare Exceptions; anything else is a fault of ours
        failure = StoreUnavailableError(
            f"RocksDB failed to read in {self.directory}: {error}",
            path=requests[0].path if len(requests) == 1 else None,
        )
        # One damaged block fails the reading of all: let the engine find whom it concerns.
        return failure if len(requests) <= 1 else RequestRefusedError(failure)

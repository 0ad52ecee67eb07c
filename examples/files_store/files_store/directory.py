"""A directory with one file for each value, and one lock for all processes.

The files:

- ``<64 hex digits>``: a value. The name is the SHA-256 of its path, so no path is too long, and
  none leads elsewhere. The first line is the value's stat in JSON; the value follows.
- ``files-store.lock``: the lock, which holds the last revision and whether its batch has ended.
- ``new``: the value that is being written.

A value is written to ``new``, brought to the disk, and renamed. Wherever the process ends, the old
value or the new one is there, whole. The next writer overwrites ``new``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakSet

import batchkeeper as bk

__all__ = ["Directory", "prepare", "unavailable"]

_LOCK: Final = "files-store.lock"
_NEW: Final = "new"
_VALUE: Final = re.compile("[0-9a-f]{64}")
_STATE: Final = re.compile(rb"files-store 1, revision (\d{20}) (begun|ended)\n")

# Seconds between two attempts to lock, which grow up to the second number.
_PAUSES: Final = (0.0005, 0.02)


class Directory:
    """The files of an open store. All but ``locked`` and ``close`` need the lock."""

    def __init__(self, place: str, *, sync: bool) -> None:
        self._place = Path(place)
        self._sync = sync
        # flock keeps other open files out. The threads of this process share one open file, so they
        # have a lock of their own, which also guards everything below.
        self._threads = Lock()
        self._lock_file = open(self._place / _LOCK, "r+b", buffering=0)  # noqa: SIM115
        self._closed = False
        self.revision = 0  # of the last change
        # All paths in order, as of that revision. Each change has a new one, so a number shows
        # whether other processes have changed any.
        self._paths: list[str] | None = None
        _opened.add(self)

    @contextmanager
    def locked(self, until: float) -> Iterator[None]:
        """Keep other threads and other processes out.

        Raises:
            OperationTimeoutError: others had the lock until then.
            StoreClosedError: the store was closed first.
            StoreUnavailableError: the block, or the lock, has failed with an ``OSError``.
        """
        if not self._threads.acquire(timeout=max(0.0, until - time.monotonic())):
            raise self._busy()
        try:
            self._lock(until)
            try:
                self._look()
                yield
            finally:
                # Closing would not do it while a child of a fork has the file open, too.
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        except OSError as error:
            if isinstance(error, bk.MetadataStoreError):  # A timeout is both.
                raise
            raise unavailable(error) from error
        finally:
            self._threads.release()

    def _lock(self, until: float) -> None:
        pause, longest = _PAUSES
        while True:
            if self._closed:
                raise bk.StoreClosedError(f"the store in {self._place} is closed")
            try:
                return fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = until - time.monotonic()
            if left <= 0:
                raise self._busy()
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    def _busy(self) -> bk.OperationTimeoutError:
        return bk.OperationTimeoutError(f"the store in {self._place} was busy until the deadline")

    def _look(self) -> None:
        """Learn what other processes have done since the last call."""
        file = self._lock_file.fileno()
        if not os.path.samestat(os.fstat(file), os.stat(self._place / _LOCK)):
            # Restored from a backup, perhaps. Other processes lock the new file.
            replaced = bk.StoreUnavailableError(f"{self._place} was replaced; open the store again")
            replaced.retriable = False
            raise replaced
        revision, ended = _state(os.pread(file, 100, 0))
        if not ended:
            # A process has died in its batch. What it has renamed may not be on the disk yet.
            self._flush_directory()
            self._note(revision, ended=True)
        if revision != self.revision:
            self.revision, self._paths = revision, None

    @contextmanager
    def changing(self) -> Iterator[int]:
        """Give changes a revision, and bring them to the disk at the end.

        Raises:
            OSError: nothing has changed.
            IndeterminateError: the changes are made, but may not be on the disk.
        """
        revision = self.revision + 1
        # First of all, so that no change has this revision a second time, whatever happens now.
        self._note(revision, ended=False)
        self._flush(self._lock_file.fileno())
        try:
            yield revision
            self._flush_directory()
            self._note(revision, ended=True)
        except OSError as error:
            raise bk.IndeterminateError(f"changes in {self._place} may be lost: {error}") from error
        self.revision = revision

    def paths(self) -> list[str]:
        """Return all paths in order. The caller must not change the list."""
        if self._paths is None:
            names = filter(_VALUE.fullmatch, os.listdir(self._place))
            self._paths = sorted(self._load(name, whole=False).stat.path for name in names)
        return self._paths

    def find(self, path: str, *, whole: bool = True) -> bk.GetResult | None:
        """Return the value at a path; only its stat, with an empty value, unless ``whole``."""
        try:
            return self._load(_name(path), whole=whole)
        except FileNotFoundError:
            return None

    def _load(self, name: str, *, whole: bool) -> bk.GetResult:
        with open(self._place / name, "rb") as file:
            try:
                stat = bk.Stat(**json.loads(file.readline()))
                if _name(stat.path) != name:
                    raise ValueError(f"the file belongs to {stat.path!r}")
            except (ValueError, TypeError) as error:
                damaged = bk.StoreUnavailableError(f"{file.name} is damaged: {error}")
                damaged.retriable = False
                raise damaged from error
            return bk.GetResult(file.read() if whole else b"", stat)

    def put(self, stat: bk.Stat, value: bytes) -> None:
        """Put a value in place of an older one, whole or not at all."""
        fields = ("path", "version", "revision", "created", "modified")
        head = json.dumps({field: getattr(stat, field) for field in fields})
        with open(self._place / _NEW, "wb") as file:
            file.write(b"%s\n%s" % (head.encode(), value))
            file.flush()
            self._flush(file.fileno())
        os.replace(self._place / _NEW, self._place / _name(stat.path))
        if self._paths is not None and stat.version == 0:
            insort(self._paths, stat.path)

    def remove(self, path: str) -> bool:
        """Remove a value, and return whether there was one."""
        try:
            os.unlink(self._place / _name(path))
        except FileNotFoundError:
            return False
        if self._paths is not None:
            del self._paths[bisect_left(self._paths, path)]
        return True

    def _note(self, revision: int, *, ended: bool) -> None:
        # So few bytes, always at the same place, are written whole.
        state = b"files-store 1, revision %020d %s\n" % (revision, b"ended" if ended else b"begun")
        os.pwrite(self._lock_file.fileno(), state, 0)

    def _flush(self, file: int) -> None:
        if self._sync:
            os.fsync(file)

    def _flush_directory(self) -> None:
        if self._sync:
            _flush_names(self._place)

    def close(self) -> None:
        """End waits for the lock, and let a call that holds it end."""
        self._closed = True
        with self._threads:
            self._lock_file.close()

    def abandon(self) -> None:
        """Let go of the lock file in a forked child, where other threads' locks stay locked."""
        self._closed = True
        self._threads = Lock()
        self._lock_file.close()


_opened: WeakSet[Directory] = WeakSet()


def _abandon_all() -> None:
    # A lock lasts as long as any process has its file open. If the parent is killed in a batch, the
    # lock would stay with the child.
    for directory in [*_opened]:
        directory.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def prepare(place: str, *, create: bool, sync: bool) -> None:
    """Check a directory before it is opened; with ``create``, create what is missing.

    Raises:
        InvalidSettingError: it is not a directory, or has files of something else.
        StoreUnavailableError: there is no store, and ``create`` is false.
        OSError: it cannot be created or read.
    """
    directory, lock = Path(place), Path(place, _LOCK)
    if os.path.lexists(directory) and not directory.is_dir():
        raise bk.InvalidSettingError(f"a files store must be a directory: {place}")
    if create:
        _make(directory, sync)
    names = os.listdir(directory) if directory.exists() else []
    if _LOCK in names:
        _state(lock.read_bytes())
        return
    if names:
        raise bk.InvalidSettingError(f"not a files store, and it contains {names[0]!r}: {place}")
    if not create:
        raise bk.StoreUnavailableError(f"there is no files store in {place}")
    lock.touch()
    if sync:
        _flush_names(directory)


def _make(directory: Path, sync: bool) -> None:
    if not directory.is_dir():
        _make(directory.parent, sync)
        directory.mkdir(exist_ok=True)
        if sync:
            _flush_names(directory.parent)


def _state(text: bytes) -> tuple[int, bool]:
    """Return what a lock file says: the last revision, and whether its batch has ended."""
    if not text:
        return 0, True  # It is new.
    if found := _STATE.fullmatch(text):
        return int(found[1]), found[2] == b"ended"
    raise bk.InvalidSettingError(f"{_LOCK} is of another version or program: {text[:50]!r}")


def _name(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def _flush_names(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def unavailable(error: OSError) -> bk.StoreUnavailableError:
    """Return the error of an operation that the system has refused, unapplied."""
    return bk.StoreUnavailableError(f"the files store has failed: {error}")

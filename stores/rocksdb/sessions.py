"""Sessions: how a process shows others that it still has a store open.

A session is one opening of a store for writing. The first ephemeral value of a session creates a
lock file in the directory, ``batchkeeper-session-ID``, and locks it for as long as the store is
open. The system drops the lock when the process ends, in whatever way. A reader of another process
takes an ephemeral value for living only while it cannot lock the file of its session.

A reader may come at any moment:

- *Before the lock is taken:* no record of the session exists, because the file is locked before the
  first record is written.
- *While it is held:* the reader cannot lock the file, and the session lives.
- *While the store is closed:* the session's state says so first. Then the values go, then the lock,
  then the file. A reader that opened the store earlier still sees the values until the lock goes.
- *After a kill:* the file is there without a lock, until the next opener removes the values and
  then the file. A missing file means the same as one without a lock: a session that has ended. It
  never returns, because the next one has another id.

These are POSIX locks, like RocksDB's own: a forked child does not inherit them. They have one trap:
the process loses its lock when it closes any descriptor of the file. So readers within the writer's
own process do not open the file, but look into a registry.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from typing import Final

from ...ops.errors import StoreUnavailableError
from ..local import LocalSession

__all__ = ["LOCK_FILE", "RocksSession", "lives", "remove_lock_files"]

_NAME: Final = "batchkeeper-session-"
#: The names of lock files.
LOCK_FILE: Final = re.compile(_NAME + "[0-9a-f]{16}")

# The sessions of this process that hold their locks. A set's changes are atomic.
_held: Final[set[int]] = set()
# A forked child has a copy of the set, but none of the locks. The files tell it the truth.
os.register_at_fork(after_in_child=_held.clear)


class RocksSession(LocalSession):
    """The session of a store that is open for writing: it lasts as long as the store is open.

    Args:
        directory: the directory of the store.

    Attributes:
        key: the session's id as a number, as it stands in records. It is random, so no two sessions
            have the same.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.key = int(self._id, 16)
        self._directory = directory
        # The locked file; None before the first ephemeral value and after the end. It is opened
        # under the store's write lock, and closed when no more writes can come.
        self._descriptor: int | None = None

    def lock(self) -> None:
        """Lock the session's file, before its first record is written. Later calls do nothing.

        Raises:
            StoreUnavailableError: the file cannot be created or locked.
        """
        if self._descriptor is not None:
            return
        path = _lock_file(self._directory, self.key)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise StoreUnavailableError(
                f"the lock file of the session in {self._directory} cannot be created: "
                f"{error.strerror}"
            ) from error
        self._descriptor = descriptor
        _held.add(self.key)

    @property
    def locked(self) -> bool:
        """Whether the session has, or may have, ephemeral values."""
        return self._descriptor is not None

    def unlock(self) -> None:
        """Drop the lock, after the session was closed and its values were removed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _held.discard(self.key)
        os.close(descriptor)
        # A file that stays does no harm: the next opener removes it.
        with suppress(OSError):
            os.unlink(_lock_file(self._directory, self.key))


def lives(directory: str, key: int) -> bool:
    """Say whether the store of a session is still open, in this process or another.

    Raises:
        StoreUnavailableError: the lock file cannot be asked.
    """
    if key in _held:
        return True
    try:
        descriptor = os.open(_lock_file(directory, key), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unanswered(directory, error) from error
    try:
        # A shared lock for a moment disturbs nobody: other readers share it, and its owner locks
        # the file only once, before any reader can know of it.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True  # Systems differ in the error for a lock that another process holds.
    except OSError as error:
        raise _unanswered(directory, error) from error
    finally:
        os.close(descriptor)
    return False


def remove_lock_files(directory: str) -> None:
    """Remove the lock files of all sessions. The caller is the only writer, and has none yet."""
    for name in os.listdir(directory):
        if LOCK_FILE.fullmatch(name):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))


def _lock_file(directory: str, key: int) -> str:
    return os.path.join(directory, f"{_NAME}{key:016x}")


def _unanswered(directory: str, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"whether the sessions of the RocksDB store in {directory} live is unknown, because a lock "
        f"file cannot be read: {error.strerror}"
    )

"""What can go wrong, as one tree that a caller can catch by branch.

::

    MetadataStoreError
     ├── NotFoundError              a delete of a path that is not there
     ├── BadVersionError            the expected version does not hold
     ├── NotEmptyError              a delete of a path with values below it
     ├── InvalidPathError           (also ValueError)
     ├── InvalidSettingError        (also ValueError)
     ├── ValueTooLargeError         more bytes than the store takes
     ├── StoreClosedError           the store was closed before the operation was sent
     ├── QueueFullError             no room in the queue until the deadline
     ├── OperationTimeoutError      never sent, or a read: nothing was changed
     │    ├── StoreUnavailableError the server cannot be reached, the store cannot be opened
     │    └── IndeterminateError    a write was sent, and its outcome is unknown
     ├── SessionLostError           the session ended, and with it what hung on it
     ├── AuthenticationError        the server refused the credentials, or the permission
     └── UnsupportedError           this store cannot do it

Every error has ``outcome``: ``"not_applied"`` says that the operation changed nothing and never
will, ``"unknown"`` that it may have been applied. The outcome is what decides about a retry.
"""

from __future__ import annotations

import copy
from typing import Literal, Self

__all__ = [
    "AuthenticationError",
    "BadVersionError",
    "IndeterminateError",
    "InvalidPathError",
    "InvalidSettingError",
    "MetadataStoreError",
    "NotEmptyError",
    "NotFoundError",
    "OperationTimeoutError",
    "QueueFullError",
    "SessionLostError",
    "StoreClosedError",
    "StoreUnavailableError",
    "UnsupportedError",
    "ValueTooLargeError",
]


class MetadataStoreError(Exception):
    """The root of all errors of this package.

    ``outcome`` is ``"not_applied"`` or ``"unknown"``; ``path`` is the path of the operation where
    there is one. The errors pickle and copy with all their fields.
    """

    outcome: Literal["not_applied", "unknown"] = "not_applied"
    path: str | None

    # Every field but the message has a default, so that `copy` and `pickle`, which call
    # cls(*args) and then restore __dict__, work on every error.
    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

    def for_path(self, path: str) -> Self:
        """Return a copy for one of the operations that a request's error ends.

        One exception raised in several threads would gather all their tracebacks.
        """
        own = copy.copy(self)
        own.path = path
        own.__cause__ = self.__cause__
        return own


class NotFoundError(MetadataStoreError):
    """A delete found no value at its path."""


class BadVersionError(MetadataStoreError):
    """The expected version of a put or delete does not hold.

    ``expected`` is the version asked for (``ABSENT`` for a create), ``actual`` the one found:
    ``ABSENT`` where the path holds no value, ``None`` where the store did not say.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        expected: int | None = None,
        actual: int | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.expected = expected
        self.actual = actual


class NotEmptyError(MetadataStoreError):
    """A delete found values below its path."""


class InvalidPathError(MetadataStoreError, ValueError):
    """The path breaks the path rule (see :func:`batchkeeper.ops.paths.check_path`)."""


class InvalidSettingError(MetadataStoreError, ValueError):
    """A setting, an argument or a URL is not one that can be used."""


class ValueTooLargeError(MetadataStoreError):
    """The value, or the operation as a whole, has more bytes than the store takes."""


class StoreClosedError(MetadataStoreError):
    """The store is closed, or was closed before the operation could be sent."""


class QueueFullError(MetadataStoreError):
    """The queue had no room: at once with ``on_full="raise"``, else until the deadline."""


class OperationTimeoutError(MetadataStoreError):
    """The deadline passed before the operation was sent, or it was a read. Nothing was changed."""


class StoreUnavailableError(OperationTimeoutError):
    """The server could not be reached, or the store could not be opened. Nothing was changed."""


class IndeterminateError(OperationTimeoutError):
    """A write was sent, and no answer came: it may have been applied.

    ``applied`` is ``True`` where the write is known to have been applied and only its ``Stat``
    could not be recovered.
    """

    outcome = "unknown"

    def __init__(
        self, message: str = "", *, path: str | None = None, applied: bool = False
    ) -> None:
        super().__init__(message, path=path)
        self.applied = applied


class SessionLostError(MetadataStoreError):
    """The session with the server ended, and everything that hung on it is gone.

    No store raises it yet: nothing hangs on a session until there are ephemeral values.
    """


class AuthenticationError(MetadataStoreError):
    """The server refused the credentials, or they do not permit the operation."""


class UnsupportedError(MetadataStoreError):
    """This store lacks the capability, or the package that it needs."""

"""What can go wrong, as one tree that a caller can catch by branch.

::

    MetadataStoreError                                                     outcome      retriable
     ├── NotFoundError          a delete of a path that is not there       not_applied  no
     ├── BadVersionError        the expected version does not hold         not_applied  no
     ├── NotEmptyError          a delete of a path with values below it    not_applied  no
     ├── InvalidPathError       (also ValueError)                          not_applied  no
     ├── InvalidSettingError    (also ValueError)                          not_applied  no
     ├── ValueTooLargeError     more bytes than the store takes            not_applied  no
     ├── StoreClosedError       the store was closed first                 not_applied  no
     ├── QueueFullError         no room in the queue until the deadline    not_applied  yes
     ├── OperationTimeoutError  (also TimeoutError) the server was there,  not_applied  yes
     │                          or the operation was still queued
     ├── StoreUnavailableError  no server answers, or the store cannot     not_applied  yes
     │                          be opened
     ├── IndeterminateError     a write was sent, its outcome is unknown   unknown      no
     ├── SessionLostError       the session ended, and what hung on it     not_applied  no
     ├── RevisionCompactedError the store does not keep that revision      not_applied  no
     ├── AuthenticationError    credentials or permission refused          not_applied  no
     └── UnsupportedError       this store cannot do it                    not_applied  no

``outcome`` says what happened: with ``"not_applied"`` the operation changed nothing and never
will, with ``"unknown"`` it may have been applied. ``retriable`` says whether the same operation,
submitted again, may succeed and can do no harm. These two decide about retries and exit codes, and
nothing else does.

An operation that has no answer at its deadline ends by one rule, on every store:

1. A write that was sent and may have been applied: ``IndeterminateError``.
2. Any other operation that its back end holds, a read or a write that was never sent:
   ``StoreUnavailableError`` if the client has no connection to a server at the deadline,
   ``OperationTimeoutError`` if it has one.
3. An operation that is still in its queue, or that waits for an earlier one of its path:
   ``OperationTimeoutError``; ``QueueFullError`` if there was no room in the queue.

A server that was killed closes its connections, so there is none at once. One that is silent, as a
paused process or behind a broken line, counts as there until the client gives its connection up:
after 15 seconds on etcd, after two thirds of the session timeout on ZooKeeper. Opening a store ends
with ``StoreUnavailableError`` in both cases.
"""

from __future__ import annotations

import copy
from typing import Final, Literal, Self

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
    "RevisionCompactedError",
    "SessionLostError",
    "StoreClosedError",
    "StoreUnavailableError",
    "UnsupportedError",
    "ValueTooLargeError",
    "error_class",
    "passes",
]


class MetadataStoreError(Exception):
    """The root of all errors of this package.

    The errors pickle and copy with all their fields.

    Attributes:
        outcome: ``"not_applied"`` if the operation changed nothing and never will, ``"unknown"`` if
            it may have been applied.
        retriable: whether the same operation, submitted again, may succeed and can do no harm.
        path: of the operation, where there is one.
    """

    outcome: Literal["not_applied", "unknown"] = "not_applied"
    retriable: bool = False
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

    retriable = True


class OperationTimeoutError(MetadataStoreError, TimeoutError):
    """The deadline passed, and nothing was changed.

    The operation was still queued, or it was a read or a write that was not sent, and a server was
    there. So is a write that was sent and then kept from being applied for good.
    """

    retriable = True


class StoreUnavailableError(MetadataStoreError):
    """No server answers, or the store cannot be opened. Nothing was changed."""

    retriable = True


class IndeterminateError(MetadataStoreError):
    """A write was sent, and no answer came: it may have been applied.

    To submit it again may do harm: an unconditional put can undo what others wrote since, and a
    conditional one is refused where the first was applied. Read what is there first.

    ``applied`` is ``True`` where the write is known to have been applied and only its ``Stat``
    could not be recovered.
    """

    outcome = "unknown"

    def __init__(
        self, message: str = "", *, path: str | None = None, applied: bool = False
    ) -> None:
        super().__init__(message, path=path)
        self.applied = applied


class RevisionCompactedError(MetadataStoreError):
    """The store no longer keeps the revision asked for, or the changes after it.

    ``oldest`` is the oldest revision that can be read now: a scan can be of it, and changes can
    follow it. ``None`` where the store did not say.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, oldest: int | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.oldest = oldest


class SessionLostError(MetadataStoreError):
    """The session with the server ended, and everything that hung on it is gone.

    No store raises it yet: nothing hangs on a session until there are ephemeral values.
    """


class AuthenticationError(MetadataStoreError):
    """The server refused the credentials, or they do not permit the operation."""


class UnsupportedError(MetadataStoreError):
    """This store lacks the capability, or the package that it needs."""


def passes(error: MetadataStoreError | type[MetadataStoreError]) -> bool:
    """Say whether the reason of an error may be gone another time.

    It is then worth another attempt: at once where the error is ``retriable``, after a look at what
    is there where the outcome is unknown.
    """
    return error.retriable or error.outcome == "unknown"


def error_class(name: str) -> type[MetadataStoreError] | None:
    """Return the class of this module with a name; ``None`` if there is none.

    Errors that come from another process, as those of Spark's workers, have only their names.
    """
    return _BY_NAME.get(name)


_BY_NAME: Final[dict[str, type[MetadataStoreError]]] = {
    MetadataStoreError.__name__: MetadataStoreError,
    **{kind.__name__: kind for kind in MetadataStoreError.__subclasses__()},
}

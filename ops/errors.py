"""The errors of this package, as one tree.

::

    MetadataStoreError                                                     outcome      retriable
     ├── NotFoundError          a delete of a path that holds no value     not_applied  no
     ├── BadVersionError        the expected version does not hold         not_applied  no
     ├── NotEmptyError          a delete of a path with values below it    not_applied  no
     ├── InvalidPathError       (also ValueError)                          not_applied  no
     ├── InvalidSettingError    (also ValueError)                          not_applied  no
     ├── ValueTooLargeError     more bytes than the store accepts          not_applied  no
     ├── StoreClosedError       the store was closed first                 not_applied  no
     ├── QueueFullError         no room in the queue until the deadline    not_applied  yes
     ├── OperationTimeoutError  (also TimeoutError) the server was there,  not_applied  yes
     │                          or the operation was still queued
     ├── StoreUnavailableError  no server answers, or the store cannot     not_applied  yes
     │                          be opened
     ├── IndeterminateError     a write was sent, its outcome is unknown   unknown      no
     ├── SessionLostError       the session ended, with its values         not_applied  no
     ├── LockBusyError          another client holds the lock              not_applied  yes
     ├── LockCancelledError     a wait for a lock was ended by `cancel`    not_applied  no
     ├── LockLostError          the lock is not held, or not any more      not_applied  no
     ├── ValueDecodeError       the value at a path cannot be decoded      not_applied  no
     ├── TransactionRefusedError an operation of it does not hold          not_applied  no
     ├── RevisionCompactedError the store no longer keeps that revision    not_applied  no
     ├── AuthenticationError    credentials or permission refused          not_applied  no
     └── UnsupportedError       this store cannot do it                    not_applied  no

``outcome`` says what happened: with ``"not_applied"``, the operation changed nothing and never
will; with ``"unknown"``, it may have been applied. ``retriable`` says whether the same operation,
submitted again, may succeed and can do no harm. Only these two attributes decide about retries and
exit codes. A few errors are not ``retriable`` although the tree says so for their class: they come
from a store that must be opened again, or whose data is damaged. So read the error, not its class.

On every store, the same rule applies to an operation without an answer at its deadline:

1. A write that was sent and may have been applied ends with ``IndeterminateError``; with
   ``OperationTimeoutError`` if the client could still prevent it.
2. Any other operation that the back end holds (a read, or a write that was never sent) ends with
   ``StoreUnavailableError`` if the client has no connection to a server at the deadline, and with
   ``OperationTimeoutError`` if it has one.
3. An operation that is still in its queue, or waits for an earlier one on its path, ends in the
   same way as in rule 2; with ``QueueFullError`` if the queue had no room.

A killed server closes its connections at once. A silent server (a paused process, a broken line)
counts as connected until the client gives up its connection: after 15 seconds on etcd, after two
thirds of the session timeout on ZooKeeper. In both cases, opening a store fails with
``StoreUnavailableError``.
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
    "LockBusyError",
    "LockCancelledError",
    "LockLostError",
    "MetadataStoreError",
    "NotEmptyError",
    "NotFoundError",
    "OperationTimeoutError",
    "QueueFullError",
    "RevisionCompactedError",
    "SessionLostError",
    "StoreClosedError",
    "StoreUnavailableError",
    "TransactionRefusedError",
    "UnsupportedError",
    "ValueDecodeError",
    "ValueTooLargeError",
    "check_conflict",
    "error_class",
    "is_conflict",
    "passes",
    "passes_anew",
]


class MetadataStoreError(Exception):
    """The root of all errors of this package.

    The errors pickle and copy with all their fields.

    Attributes:
        outcome: ``"not_applied"`` if the operation changed nothing and never will, ``"unknown"`` if
            it may have been applied.
        retriable: whether the same operation, submitted again, may succeed and can do no harm.
        path: the path of the operation, or ``None``.
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
        """Return a copy for one operation of a failed request.

        One exception raised in several threads would collect all their tracebacks.
        """
        own = copy.copy(self)
        own.path = path
        own.__cause__ = self.__cause__
        return own


class NotFoundError(MetadataStoreError):
    """A delete found no value at its path."""


class BadVersionError(MetadataStoreError):
    """The expected version, or the expected revision, of a put, delete or check does not hold.

    ``expected`` is the expected version (``ABSENT`` for a create). ``actual`` is the version found:
    ``ABSENT`` if the path holds no value, ``None`` if the store did not report it.
    ``expected_revision`` is the expected revision, and ``actual_revision`` the one found; each is
    ``None`` if there is none.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        expected: int | None = None,
        actual: int | None = None,
        expected_revision: int | None = None,
        actual_revision: int | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.expected = expected
        self.actual = actual
        self.expected_revision = expected_revision
        self.actual_revision = actual_revision


class NotEmptyError(MetadataStoreError):
    """A delete found values below its path."""


class InvalidPathError(MetadataStoreError, ValueError):
    """The path breaks the path rule (see ``batchkeeper.ops.paths.check_path``)."""


class InvalidSettingError(MetadataStoreError, ValueError):
    """A setting, an argument or a URL is invalid."""


class ValueTooLargeError(MetadataStoreError):
    """The value, or the operation as a whole, has more bytes than the store accepts."""


class StoreClosedError(MetadataStoreError):
    """The store is closed, or was closed before the operation could be sent."""


class QueueFullError(MetadataStoreError):
    """The queue had no room: at once with ``on_full="raise"``, otherwise until the deadline."""

    retriable = True


class OperationTimeoutError(MetadataStoreError, TimeoutError):
    """The deadline passed, and the operation changed nothing.

    The operation was still queued; or it was a read, or a write that was not sent, while a server
    was connected; or it was a write that the client sent and then prevented for good.
    """

    retriable = True


class StoreUnavailableError(MetadataStoreError):
    """No server answers, or the store cannot be opened. The operation changed nothing.

    It is not ``retriable`` if another attempt at the same store cannot succeed: the ZooKeeper
    client has stopped, or RocksDB cannot sync its log or read its files.
    """

    retriable = True


class IndeterminateError(MetadataStoreError):
    """A write was sent, and its answer was lost: it may have been applied.

    Read the path before you submit the write again. An unconditional put could overwrite a newer
    value of another client, and a conditional one is refused if the first was applied.

    ``applied`` is ``True`` if the write was certainly applied and only its ``Stat`` could not be
    recovered.
    """

    outcome = "unknown"

    def __init__(
        self, message: str = "", *, path: str | None = None, applied: bool = False
    ) -> None:
        super().__init__(message, path=path)
        self.applied = applied


class RevisionCompactedError(MetadataStoreError):
    """The store no longer keeps the requested revision, or the changes after it.

    ``oldest`` is the oldest revision that a scan can read and that changes can begin after, or
    ``None`` if the store did not report it.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, oldest: int | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.oldest = oldest


class SessionLostError(MetadataStoreError):
    """The session ended before an ephemeral put took effect in it.

    The value is not there, nor will it be: an ephemeral value never moves to the next session by
    itself. All other ephemeral values of that session are gone, too.
    """


class LockBusyError(MetadataStoreError):
    """Another client held the lock until the deadline.

    ``value`` is the holder's value, or ``None`` if the holder could not be read.
    """

    retriable = True

    def __init__(
        self, message: str = "", *, path: str | None = None, value: bytes | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.value = value


class LockCancelledError(MetadataStoreError):
    """Another thread or task has ended the wait for a lock or a leadership by ``cancel``."""


class LockLostError(MetadataStoreError):
    """The lock, leadership or membership is not held, or not any more.

    It was lost with its session, or somebody has deleted its value. A fenced write that ends with
    it has changed nothing.
    """


class ValueDecodeError(MetadataStoreError):
    """The value at a path cannot be decoded. The path can still be overwritten.

    ``version`` is the version of that value.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, version: int | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.version = version


class TransactionRefusedError(MetadataStoreError):
    """An operation of a transaction does not hold, so nothing of the transaction was applied.

    ``index`` is the place of the first such operation among those of the transaction, and ``error``
    is the error with which it would have ended alone. On ZooKeeper, paths whose values exceed
    16 KiB are looked at one after the other. If they change meanwhile, the operation did not hold
    at its own moment, and an earlier one may not hold either.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        index: int = 0,
        error: MetadataStoreError | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.index = index
        self.error = error


class AuthenticationError(MetadataStoreError):
    """The server refused the credentials, or they do not permit the operation."""


class UnsupportedError(MetadataStoreError):
    """This store lacks the capability that the call needs, or a package is missing."""


def passes(error: MetadataStoreError | type[MetadataStoreError]) -> bool:
    """Say whether the cause of an error may be temporary, so that another attempt can succeed.

    If the error is ``retriable``, the caller can try again at once; if the outcome is unknown, only
    after a look at the path.
    """
    return error.retriable or error.outcome == "unknown"


def passes_anew(error: MetadataStoreError) -> bool:
    """Say the same of an attempt that may run in another session: the store begins a new one."""
    return passes(error) or isinstance(error, SessionLostError)


def is_conflict(error: MetadataStoreError) -> bool:
    """Say whether a write or a transaction was refused because another client was faster.

    Then it can be tried again, after another look at its paths. All other refusals, such as for
    lack of permission, stay: they are errors of the call.
    """
    cause = error.error if isinstance(error, TransactionRefusedError) else error
    return isinstance(cause, BadVersionError | NotFoundError)


def check_conflict(error: MetadataStoreError) -> None:
    """Return if a refusal is a conflict, see ``is_conflict``.

    Raises:
        MetadataStoreError: it is not. The error is the one that the refused operation would have
            ended with alone.
    """
    if is_conflict(error):
        return
    if isinstance(error, TransactionRefusedError) and error.error is not None:
        raise error.error from error
    raise error


def shape(value: object) -> str:
    """Return what a message may say of a caller's data: the type and the length, never the data.

    A number is shown, because it is usually its range that is wrong.
    """
    kind = type(value).__name__
    if isinstance(value, str | bytes | bytearray | list | tuple | dict):
        return f"{kind} of length {len(value)}"
    # Python refuses to write an int of thousands of digits.
    number = isinstance(value, float) or (type(value) is int and value.bit_length() < 200)
    return f"{kind} {value!r}" if number else kind


def error_class(name: str) -> type[MetadataStoreError] | None:
    """Return the error class of this name, or ``None``.

    Errors from other processes, such as Spark's workers, carry only the names of their classes.
    """
    return _BY_NAME.get(name)


_BY_NAME: Final[dict[str, type[MetadataStoreError]]] = {
    MetadataStoreError.__name__: MetadataStoreError,
    **{kind.__name__: kind for kind in MetadataStoreError.__subclasses__()},
}

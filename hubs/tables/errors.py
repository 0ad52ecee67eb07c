"""The error of a record that cannot be read."""

from __future__ import annotations

from ...ops.errors import ValueDecodeError
from .versions import Version

__all__ = ["DamagedRecordError"]


class DamagedRecordError(ValueDecodeError):
    """Another program has written something to the path of a key that is not a record.

    Attributes:
        at: its version. A put or a removal with this version replaces or removes it. On ZooKeeper,
            the version can match again if the key was removed, put and damaged again in the
            meantime.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, at: Version = Version.ANY
    ) -> None:
        super().__init__(message, path=path)
        self.at = at

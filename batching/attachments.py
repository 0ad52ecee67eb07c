"""What ends with a store, such as a server that shows its metrics."""

from __future__ import annotations

from threading import RLock
from typing import Protocol

from ..ops.errors import StoreClosedError
from ..ops.log import get_logger

__all__ = ["Attachment", "Attachments"]

log = get_logger("batchkeeper.engine")


class Attachment(Protocol):
    """Ends with a store."""

    def close(self) -> None:
        """End, because the store is closed. Runs on the thread that closes it, after its work."""

    def abandon(self) -> None:
        """Let go of what a forked child has inherited, without the locks of the parent."""


class Attachments:
    """The attachments of one store. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = RLock()  # guards the following fields
        self._attached: list[Attachment] = []
        self._closed = False

    def add(self, attachment: Attachment) -> None:
        """Close something when the store is closed.

        Raises:
            StoreClosedError: it is closed already.
        """
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._attached.append(attachment)

    def remove(self, attachment: Attachment) -> None:
        """Forget something that has ended by itself."""
        with self._lock:
            if attachment in self._attached:
                self._attached.remove(attachment)

    def close(self) -> None:
        """Close all of them, without the lock. An exception of one is logged."""
        with self._lock:
            attached, self._attached, self._closed = self._attached, [], True
        for attachment in attached:
            try:
                attachment.close()
            except Exception:
                log.exception("an attachment could not be closed", attachment=repr(attachment))

    def abandon(self) -> None:
        """Abandon all of them, in a forked child."""
        attached, self._attached = self._attached, []
        self._lock, self._closed = RLock(), True
        for attachment in attached:
            attachment.abandon()

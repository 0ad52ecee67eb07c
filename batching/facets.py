"""The optional parts of a back end, for callers that may use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..ops.capabilities import Capability
from ..ops.errors import UnsupportedError
from ..stores.backend import (
    Acls,
    Backend,
    BeginWatch,
    DeletionWatches,
    History,
    Scans,
    Session,
    Watches,
)
from .checks import check_capability
from .reentry import in_back_end, refused

__all__ = ["Facets"]

_T = TypeVar("_T")


class Facets:
    """The optional parts of one store's back end. They run in the caller's thread.

    Args:
        backend: the back end.
        capabilities: the capabilities of the store kind.
        name: the store's URL, for messages.
        check_open: raises ``StoreClosedError`` if the store is closed, or in a forked child.
        check_process: raises it only in a forked child.
    """

    def __init__(
        self,
        backend: Backend,
        capabilities: frozenset[Capability],
        name: str,
        check_open: Callable[[], None],
        check_process: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._capabilities = capabilities
        self._name = name
        self._check_open = check_open
        self._check_process = check_process

    def scans(self, revision: int | None = None) -> Scans:
        """Return the scans.

        Args:
            revision: the revision that the caller wants to read; ``None`` for the newest.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end does not support scans, or keeps no old revisions.
        """
        self._enter()
        if revision is not None:
            self._check("snapshots", "reading an old revision")
        scans = self._backend.scans
        if scans is None:
            raise UnsupportedError(f"the store does not support scans: {self._name}")
        return scans

    def history(self) -> History:
        """Return the history.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end keeps no history.
        """
        self._enter()
        self._check("history", "reading changes")
        return self._offered(self._backend.history, "history", "reading changes")

    def acls(self) -> Acls:
        """Return the access control lists.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end has none.
        """
        self._enter()
        self._check("acls", "an access control list")
        return self._offered(self._backend.acls, "acls", "an access control list")

    def watches(self, after: int | None) -> Watches:
        """Return the watches.

        Args:
            after: the revision after which the caller wants changes; ``None`` for changes from now.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end reports no changes, or keeps no earlier ones.
        """
        self._enter()
        self._check("watches", "a watch")
        if after is not None:
            self._check("history", "a watch after a revision")
        return self._offered(self._backend.watches, "watches", "a watch")

    def deletions(self) -> tuple[BeginWatch, bool]:
        """Return what watches for the deletion of one path; say whether it looks if it is there."""
        watches = self.watches(None)
        if isinstance(watches, DeletionWatches):
            begin = watches.watch_deletion
            return lambda path, _, *rest: begin(path, *rest), True
        return watches.watch, False

    def session(self) -> Session:
        """Return the session, also after the store was closed.

        Raises:
            StoreClosedError: the store was opened before this process was forked.
            UnsupportedError: the store has no session.
        """
        self._check_process()
        self._check("ephemerals", "a session")
        return self._offered(self._backend.session, "ephemerals", "a session")

    def _enter(self) -> None:
        self._check_open()
        if in_back_end():
            raise refused()

    def _check(self, needed: Capability, asked: str) -> None:
        check_capability(needed, asked, self._capabilities, self._name)

    def _offered(self, facet: _T | None, needed: Capability, asked: str) -> _T:
        """Return a part that the kind states. One opened store may lack it, if it is read-only."""
        if facet is None:
            raise UnsupportedError(
                f"{asked} needs the capability {needed!r}, which this store lacks as it was "
                f"opened: {self._name}"
            )
        return facet

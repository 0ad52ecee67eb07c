"""The second half of an overwrite: deletes the values that the job did not write.

The store's revision is noted before the first task, so older values were there before the job, and
its own values are newer. Each delete requires the version that was read, so values that others
write meanwhile stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from ..batching import MetadataStore
from ..ops.errors import StoreUnavailableError
from ..ops.operations import Delete
from ..ops.results import ForeignKeys
from .foreign import counted, warn_of_foreign
from .row_report import RowsFailedError
from .sending import Sender

__all__ = ["await_revision", "delete_older"]

# The number of deletes sent together.
_TOGETHER = 10_000

# The most paths that an error names.
_NAMED = 10

# Seconds from one look at the revision to the next.
_PAUSE = 0.05


def await_revision(store: MetadataStore, revision: int, seconds: float) -> None:
    """Wait until what this client writes is newer than a revision that another one has noted.

    It is at once, if the server counts the revisions. Those of HBase are the times of its clients:
    if the clock here is behind the driver's, the rows of this task would be deleted as older ones.

    Raises:
        StoreUnavailableError: it is not within these seconds.
        MetadataStoreError: the store could not be read.
    """
    give_up = time.monotonic() + seconds
    while (behind := revision - store.revision()) > 0:
        if time.monotonic() > give_up:
            raise StoreUnavailableError(
                f"the store's revision is {behind} behind the one at which the job began, so what "
                "this task writes would count as older, and be deleted: compare the clocks of the "
                "machines. This task has written nothing"
            )
        time.sleep(_PAUSE)


def delete_older(store: MetadataStore, prefix: str, revision: int) -> int:
    """Delete the values under a prefix that have not changed since a revision; return their number.

    Keys that are not valid paths stay, and the log has a warning about them.

    Args:
        store: the store.
        prefix: the path at which, and below which, values are deleted.
        revision: the revision; values that changed after it stay.

    Raises:
        RowsFailedError: older values remain, because newer values lie below them, or because the
            store failed to delete them.
        MetadataStoreError: the store could not be read.
    """
    sender = Sender(store)
    store.sync()  # Otherwise, ZooKeeper may leave out values that this session has not seen yet.
    foreign = ForeignKeys()
    older = (
        Delete(stat.path, stat.version)
        for page in counted(store.scan_pages(prefix, values=False), foreign)
        for stat in page
        if stat.revision <= revision
    )
    count = 0
    # A path with values below it can only be deleted after these. So refused deletes are repeated
    # after the scan, the deepest paths first. Values that another client has changed are among
    # them, too, and stay.
    refused: list[Delete] = []
    failures: list[str] = []
    for deletes in _groups(older):
        refused += _delete(sender, deletes, failures)
        count += len(deletes)
    count -= len(refused)
    warn_of_foreign(foreign, "not deleted")
    refused.sort(key=_depth, reverse=True)
    left: list[Delete] = []
    for _, level in groupby(refused, _depth):
        deletes = list(level)
        still = _delete(sender, deletes, failures)
        count += len(deletes) - len(still)
        left += still
    left = [delete for delete in left if _is_older(store, delete, revision)]
    # Foreign keys below a path also prevent its delete.
    others = ", or keys that are not valid paths," if foreign.count else ""
    failures += [f"{delete.path!r}: there are newer values{others} below it" for delete in left]
    if failures:
        raise RowsFailedError(
            f"the rows are written, but {len(failures)} older values could not be deleted:"
            + "".join(f"\n  {failure}" for failure in failures[:_NAMED])
        )
    return count


def _delete(sender: Sender, deletes: list[Delete], failures: list[str]) -> list[Delete]:
    """Execute deletes; return those that the store refused because of values at or below them."""
    refused: list[Delete] = []
    for delete, outcome in zip(deletes, sender.run(deletes), strict=True):
        if outcome.status == "conflict":
            refused.append(delete)
        elif outcome.status in {"indeterminate", "error"}:
            failures.append(f"{delete.path!r}: {outcome.error}")
    return refused


def _is_older(store: MetadataStore, delete: Delete, revision: int) -> bool:
    """Say whether a path still holds the older value."""
    found = store.get(delete.path).result()
    return found is not None and found.stat.revision <= revision


def _depth(delete: Delete) -> int:
    return delete.path.count("/")


def _groups(deletes: Iterable[Delete]) -> Iterator[list[Delete]]:
    source = iter(deletes)
    while group := list(islice(source, _TOGETHER)):
        yield group

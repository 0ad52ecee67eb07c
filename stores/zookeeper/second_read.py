"""Finds out whether conditions held that the server cannot check, once it has applied them.

No check distinguishes a value at version 0 from a parent without one, or an ephemeral node from
another one. So the client looks at the node before the transaction, and again after it. If it is
the same node, the check was right. The second read follows the multi at once, without waiting for
its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...ops.errors import MetadataStoreError
from ..backend import send_by
from .batches import Batch
from .groups import Group
from .jute import ZNode
from .outcomes import created_again
from .reads import Reader
from .recovery import PATIENCE

__all__ = ["SecondRead"]


class SecondRead:
    """The second read of the nodes of one round, behind its multis.

    Args:
        batch: the call.
        groups: the multis.
        reader: reads the nodes.
        connection: the number of the connection before the multis are sent.
        deadline: that of the call.
    """

    def __init__(
        self,
        batch: Batch,
        groups: Sequence[Group],
        reader: Reader,
        connection: int,
        deadline: float,
    ) -> None:
        self._batch = batch
        self._reader = reader
        self._connection = connection
        self._deadline = deadline
        # By part.
        self._checked = {k: _checked(batch, k) for group in groups for k in group.unproven}
        # Transactions may check the same paths.
        self._paths = list(dict.fromkeys([path for path, _ in self._checked.values()]))
        self._wait: Callable[[], Sequence[int]] | None = None
        self._czxids: dict[str, int] | None = None

    def begin(self) -> None:
        """Send it; any earlier one no longer counts."""
        if self._paths:
            until = max(self._deadline, time.monotonic() + PATIENCE)
            self._wait = self._reader.begin_czxids(
                self._paths, send_by(self._deadline), until, self._connection
            )

    def judge(self, parts: Sequence[int]) -> None:
        """End the transactions of parts that may not have held as applied, but no more is known."""
        if self._czxids is None:
            self._czxids = self._read()
        batch, czxids = self._batch, self._czxids
        for k in parts:
            path, expected = self._checked[k]
            whole = batch.whole[k]
            failed = isinstance(batch.answers[whole], MetadataStoreError)
            if not failed and czxids.get(path) != expected:
                batch.answers[whole] = created_again(batch.requests[k].path, "transaction")

    def _read(self) -> dict[str, int]:
        if self._wait is None:
            self.begin()  # The last multis were not sent.
        assert self._wait is not None
        try:
            return dict(zip(self._paths, self._wait(), strict=True))
        except MetadataStoreError:
            return {}


def _checked(batch: Batch, k: int) -> tuple[str, int]:
    """Return the path of the node that was checked, and the zxid of its creation when seen."""
    seen = batch.seen.get(k)
    # No node has 0.
    czxid = seen.created_zxid if isinstance(seen, ZNode) else 0
    return batch.shelters.get(k) or (batch.paths[k], czxid)

"""What a store can do beyond the operations that all stores have."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["CAPABILITIES", "Capability"]

#: ``snapshots``: ``scan(revision=...)`` reads what was there at an earlier revision.
#: ``history``: ``changes()`` gives the changes between two revisions.
#: ``ephemerals``: a put can be bound to the session, and goes with it.
#: ``sequences``: a put can have the store add a growing number to its path.
#: ``watches``: the store says what changes while it changes.
#: ``transactions``: operations on several paths take effect together, or none does.
#: ``expected_revisions``: a put or a delete can depend on the revision of its path.
#: ``linearizable_reads``: a read sees every write that ended before it, without ``sync()``.
#: ``times``: ``Stat.created`` and ``Stat.modified`` are set.
Capability: TypeAlias = Literal[
    "snapshots",
    "history",
    "ephemerals",
    "sequences",
    "watches",
    "transactions",
    "expected_revisions",
    "linearizable_reads",
    "times",
]
CAPABILITIES: Final[frozenset[Capability]] = frozenset(get_args(Capability))

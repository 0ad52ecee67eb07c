"""The features that some stores have beyond the operations of all stores."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["CAPABILITIES", "Capability"]

#: ``snapshots``: ``scan(revision=...)`` reads the values of an earlier revision.
#: ``history``: ``changes()`` yields the changes between two revisions.
#: ``ephemerals``: a value can be bound to the session, and ends with it.
#: ``sequences``: the store can append a growing number to the path of a put.
#: ``watches``: the store reports changes as they happen.
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

"""The features that some stores have beyond the operations of all stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["CAPABILITIES", "STORES_WITH", "Capability"]

#: ``snapshots``: ``scan(revision=...)`` reads the values of an earlier revision.
#: ``history``: ``changes()`` yields the changes between two revisions.
#: ``ephemerals``: a value can be bound to the session, and ends with it.
#: ``sequences``: the store can append a growing number to the path of a put.
#: ``watches``: the store reports changes as they happen.
#: ``transactions``: operations on several paths take effect together, or none does.
#: ``expected_revisions``: a put or a delete can depend on the revision of its path.
#: ``linearizable_reads``: a read sees every write that ended before it, without ``sync()``.
#: ``acls``: a path has an access control list of its own; ``open_store`` takes ``acl``.
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
    "acls",
    "times",
]
CAPABILITIES: Final[frozenset[Capability]] = frozenset(get_args(Capability))

_MOST: Final = ("etcd", "ZooKeeper", "RocksDB", "memory")
_ALL: Final = (*_MOST, "HBase")
_ALL_BUT_ZOOKEEPER: Final = ("etcd", "RocksDB", "HBase", "memory")
#: The titles of stores with a capability, for the messages of those that lack it. A test compares
#: them with what the stores state.
STORES_WITH: Final[Mapping[Capability, tuple[str, ...]]] = {
    "snapshots": ("etcd",),
    "history": ("etcd",),
    "ephemerals": _ALL,
    "sequences": _ALL,
    "watches": _MOST,
    "transactions": _MOST,
    "expected_revisions": _ALL_BUT_ZOOKEEPER,
    "linearizable_reads": _ALL_BUT_ZOOKEEPER,
    "acls": ("ZooKeeper",),
    "times": ("ZooKeeper", "RocksDB", "memory"),
}

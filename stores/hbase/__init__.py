"""HBase: all operations but transactions, and no watches, in one table.

It is provided by an entry point, as the stores of other packages are, and is no built-in kind yet:
it lacks transactions and watches.

- ``backend``: opens the store, and passes its calls on
- ``layout``: the rows of the table
- ``forms``: what is sent to change one
- ``cluster``: the servers, and which of them has which region
- ``tables``: the table itself
- ``requests``: actions on rows, each with its own end
- ``writes``: each write once
- ``sessions``: shows others that this client lives, and ends those that do not
- ``sequences``: the counters of sequential puts
- ``scans``: walks over the rows, in pages
- ``reads``: gets, existence and children
- ``wire``: HBase's RPC
"""

from __future__ import annotations

from typing import Final

from ..kinds import StoreKind

__all__ = ["KIND"]

#: The record of this kind of store.
KIND: Final = StoreKind(
    scheme="hbase",
    title="HBase",
    url_form="hbase://HOST:PORT[,HOST:PORT...][/[NAMESPACE:]TABLE]",
    connect=f"{__name__}.backend:connect",
    capabilities=frozenset({"ephemerals", "sequences", "linearizable_reads", "expected_revisions"}),
    aliases=("hbases",),
    url_note="hbases:// for TLS",
    package="protobuf",
)

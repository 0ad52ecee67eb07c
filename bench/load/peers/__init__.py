"""Other clients of the same stores, used as their users write it: the peers of a comparison.

A peer has the methods of a store that a load calls. They return objects with the methods of a
future. A result that a peer does not report, such as the version of a put in ``etcd3``, is
``None``. If a peer needs several requests, as for a conditional put in RocksDB, it does what a user
would write by hand.

- ``clients``: opens the clients
- ``outcomes``: what the calls return
- ``with_etcd3``: etcd3, one by one and from many threads
- ``with_kazoo``: kazoo, one by one, asynchronous, and with multis by hand
- ``with_rocksdict``: rocksdict
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .with_etcd3 import open_etcd3
from .with_kazoo import open_kazoo, open_kazoo_multi
from .with_rocksdict import open_rocksdict


@dataclass(frozen=True, slots=True)
class Peer:
    """Another client.

    Attributes:
        name: its name on the command line.
        title: what it does, for reports.
        scheme: the kind of stores that it is a client of.
        open: opens it on the store of a URL, for paths below a folder.
        in_flight: its operations at a time; ``None`` for as many as the compared client has.
        threads: the threads that call it.
        shared: whether it works on the same data; otherwise it has its own beside them.
    """

    name: str
    title: str
    scheme: str
    open: Callable[[str, str], AbstractContextManager[Any]]
    in_flight: int | None
    threads: int = 1
    shared: bool = True


_ALL: Final = (
    Peer("etcd3", "etcd3, one by one", "etcd", open_etcd3, 1),
    Peer("etcd3-64", "etcd3, 64 threads", "etcd", open_etcd3, 64, threads=64),
    Peer("kazoo", "kazoo, one by one", "zookeeper", partial(open_kazoo, waiting=True), 1),
    Peer("kazoo-async", "kazoo, async", "zookeeper", partial(open_kazoo, waiting=False), None),
    Peer("kazoo-multi", "kazoo, multis by hand", "zookeeper", open_kazoo_multi, None),
    Peer("rocksdict", "rocksdict with sync", "rocksdb", open_rocksdict, 1, shared=False),
)

#: The peers by their names.
PEERS: Final[Mapping[str, Peer]] = {peer.name: peer for peer in _ALL}


def peers_of(scheme: str) -> list[Peer]:
    """Return the peers for a kind of store."""
    return [peer for peer in _ALL if peer.scheme == scheme]

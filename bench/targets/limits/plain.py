"""The plain clients' side of the ratios: the peers of the benchmark, and their recipes of locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from batchkeeper.bench.load.peers import PEERS
from batchkeeper.bench.load.peers.clients import etcd3_client, kazoo_client
from batchkeeper.bench.target import Target
from batchkeeper.stores.registry import parse_url, store_kind

from ..rows import Figures
from ..work import measured, one_by_one
from .puts import call_in_threads
from .variants import variant

#: The plain client of each kind of store: a peer that does one thing after the other.
PLAIN: Final = {"etcd": "etcd3", "zookeeper": "kazoo", "rocksdb": "rocksdict"}


@contextmanager
def plain_put(url: str, root: str) -> Iterator[Callable[[str, bytes], Any]]:
    """Open the plain client of a store; yield a function that creates a path and waits for it."""
    with PEERS[PLAIN[store_kind(parse_url(url)).scheme]].open(url, root) as peer:
        put = getattr(peer, "put_new", peer.put)
        # It makes the folder for all, before several threads share the client.
        put(f"{root}/first", b"").result()
        yield lambda path, value: put(path, value).result()


@variant("plain puts")
def plain_puts(there: Target, count: int) -> Figures:
    """Measure puts in a loop, and the median of their latencies."""
    with plain_put(there.url.text, there.root) as put:
        return one_by_one(there, count, lambda step: put(step.path, step.value))


@variant("plain puts of threads")
def plain_puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads on one client. All three clients can be shared by threads."""
    with plain_put(there.url.text, there.root) as put:
        call = partial(call_in_threads, lambda step: put(step.path, step.value))
        return measured(there, count, call)


@contextmanager
def plain_locks(there: Target) -> Iterator[Callable[[], Any]]:
    """Open the plain client of a target, and yield a function that makes a lock of it.

    All locks are for the same path. They have ``acquire(timeout=...)`` and ``release()``.
    """
    path = f"{there.url.prefix()}{there.root}/lock"
    if there.kind.scheme == "zookeeper":
        with kazoo_client(there.url) as client:
            yield lambda: client.Lock(path)
    else:
        with etcd3_client(there.url) as client:
            yield lambda: client.lock(path)

"""The plain clients' locks: kazoo's recipe, and etcd3's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..baseline import etcd3_client, kazoo_client
from ..target import Target

__all__ = ["plain_locks"]


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

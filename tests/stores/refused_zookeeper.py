"""A ZooKeeper that is too old; for `tests/compat.py` only, which has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.bench.servers import ZooKeeperServer


def test_a_zookeeper_before_3_6_is_refused(own_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """Opening says at once, in one line, what is needed; nothing is made there."""
    server = own_zookeeper()
    with pytest.raises(bk.UnsupportedError, match=r"^ZooKeeper 3\.6 or newer is needed: .*$"):
        bk.open_store(f"{server.url}/chroot")

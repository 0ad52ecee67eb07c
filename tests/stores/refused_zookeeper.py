"""A test on a ZooKeeper that is too old. Only `tests/compat.py` runs it, because it has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import ZooKeeperServer


def test_a_zookeeper_before_3_6_is_refused(own_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """Opening fails at once, with one line that names the required version, and writes nothing."""
    server = own_zookeeper()
    with pytest.raises(bk.UnsupportedError, match=r"^ZooKeeper 3\.6 or newer is needed: .*$"):
        bk.open_store(f"{server.url}/chroot")

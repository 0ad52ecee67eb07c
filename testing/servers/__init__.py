"""Throw-away real servers, for the bench and the tests: etcd, ZooKeeper and HBase, on loopback.

One server, or a cluster of several members::

    with EtcdServer(scratch / "etcd") as server:
        store = open_store(server.url)
        server.kill()       # as kill -9 does
        server.restart()    # the same ports, the same data

    with ZooKeeperServer(scratch / "zookeeper", members=3) as cluster:
        store = open_store(cluster.url)
        dead = cluster.kill_leader()
        cluster.start(dead)
        cluster.isolate(cluster.leader())   # from the other members, but not from its clients

A server keeps all its files in the directory that the caller names. The caller removes it
afterwards. Nothing is written to the system's temporary folder, which may be in memory and make
every fsync free.

- ``local``: what all servers have in common
- ``etcd``: its command line, and how to ask it
- ``zookeeper``: the same for ZooKeeper
- ``hbase``: the same for HBase, a single one
- ``processes``: one process, which ends with the process that started it; free ports
- ``proxies``: cuts members off from each other, and from clients
- ``releases``: finds the etcd and the ZooKeeper to run
- ``installing``: ``batchkeeper servers``, which installs others
- ``jars``: the jars of each ZooKeeper and HBase, with their checksums
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .etcd import EtcdServer
from .hbase import HBaseServer
from .local import MEMBERS, LocalServer, check_members
from .processes import ServerStartError
from .zookeeper import ZooKeeperServer

__all__ = [
    "ALL_SERVERS",
    "MEMBERS",
    "SERVERS",
    "EtcdServer",
    "HBaseServer",
    "LocalServer",
    "ServerStartError",
    "ZooKeeperServer",
    "check_members",
]

#: The servers that the extra ``servers`` brings, by the scheme of their stores.
SERVERS: Final[Mapping[str, type[LocalServer]]] = {
    server.name: server for server in (EtcdServer, ZooKeeperServer)
}

#: These, and those that ``batchkeeper servers install`` has to fetch.
ALL_SERVERS: Final[Mapping[str, type[LocalServer]]] = {**SERVERS, HBaseServer.name: HBaseServer}

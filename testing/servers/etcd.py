"""Throw-away etcds."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .local import LocalServer, ServerMember
from .processes import HOST
from .proxies import ANY_MEMBER, CLIENT
from .releases import find_etcd

__all__ = ["EtcdServer"]


class EtcdServer(LocalServer):
    """An etcd with an 8 GiB quota and a synced log, as in production.

    Args:
        directory: see :class:`LocalServer`.
        members: the number of members.
        flags: further flags of etcd, such as ``("--max-txn-ops", "16")``.
        program: the etcd to run, by default the one that ``find_etcd`` finds.
        proxied: see :class:`LocalServer`.
        start_timeout: the most seconds that a start may take.
    """

    name = "etcd"
    peer_ports = 1
    one_address = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        members: int = 1,
        flags: Sequence[str] = (),
        program: Path | None = None,
        proxied: bool | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(directory, members=members, proxied=proxied, start_timeout=start_timeout)
        self._flags = tuple(flags)
        self._program = program

    def _command(self, member: ServerMember) -> list[str]:
        cluster = {
            self._name(one): f"http://{HOST}:{self._reach(ANY_MEMBER, one)[0]}"
            for one in self.members
        }
        client, peer = (f"http://{HOST}:{port}" for port in member.ports)
        return [
            str(self._program or find_etcd()),
            *("--name", self._name(member), "--data-dir", "data"),
            *("--listen-client-urls", client),
            *("--advertise-client-urls", f"http://{HOST}:{self._reach(CLIENT, member)[0]}"),
            *("--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", cluster[self._name(member)]),
            *("--initial-cluster", ",".join("=".join(named) for named in cluster.items())),
            *("--quota-backend-bytes", str(8 * 2**30)),
            *self._flags,
        ]

    def _name(self, member: ServerMember) -> str:
        return f"member-{member.number}" if self.clustered else "batchkeeper"

    def _environment(self) -> Mapping[str, str]:
        # Variables can set flags of etcd. Drop them, because they belong to the user's own etcd.
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    def _answers(self, member: ServerMember) -> bool:
        # Since etcd 3.4, the handler executes a linearizable range, which needs a leader.
        return b'"true"' in _page(member, "/health")

    def _leads(self, member: ServerMember) -> bool:
        # Clients without a login may read the metrics, but not the status.
        return b"\netcd_server_is_leader 1\n" in _page(member, "/metrics")


def _page(member: ServerMember, path: str) -> bytes:
    """Return a page that a member shows over HTTP; nothing unless its status is 200."""
    connection = http.client.HTTPConnection(HOST, member.ports[0], timeout=1.0)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status == http.HTTPStatus.OK else b""
    finally:
        connection.close()

"""Faults of servers and of the connections to them, while clients are at work.

etcd before 3.5.5 loses acknowledged writes when its only member is killed:

- #14370: a single member applies and answers a transaction while it writes the transaction to its
  log. A kill after the answer and before the end of the write to the log loses the transaction.
- #13766 (3.5.0 to 3.5.2): the index of the next transaction may be committed to the database before
  its changes. After a kill, etcd then skips the transaction when it reads the log.

So an old etcd is killed only when it has nothing to lose. First, the proxy swallows its answers and
then drops the requests. Then a write that bypasses the proxy is answered and committed. Now every
write acknowledged earlier is in the log and in the database. The kill still catches the operations
that clients have under way: some are executed, some never arrive.

An old etcd also crashes if a client goes away while its reading transaction is executed (#14110),
or if the deadline of that transaction passes, as it does in a pause. So an old etcd is paused, and
the connections to it are cut, after the requests that have arrived are done.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import batchkeeper as bk
from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer

from ..java import zookeeper_flags
from ..proxy import Proxy
from ..stores.foreign import end_zookeeper_session
from ..waiting import PATIENCE, until

__all__ = ["Nemesis", "commit_everything", "forgets", "server_to_hurt"]


def server_to_hurt(kind: str, directory: Path) -> LocalServer:
    """Return a server that is not started yet. Its sessions can time out after one second."""
    if kind == "etcd":
        return EtcdServer(directory)
    return ZooKeeperServer(directory, jvm_flags=zookeeper_flags(), tick_time=500)


def forgets(server: LocalServer) -> bool:
    """Say whether a kill may take from a running server what it has acknowledged."""
    return isinstance(server, EtcdServer) and _etcd_version(server) < (3, 5, 5)


class Nemesis:
    """Faults of one server, and of the proxy through which its clients reach it."""

    def __init__(self, server: LocalServer, line: Proxy) -> None:
        self.server = server
        self.line = line
        self._old = forgets(server)
        #: The times of the server's last kill, and of its last return, by time.monotonic().
        self.killed = 0.0
        self.returned = 0.0

    @property
    def url(self) -> str:
        """The URL of the server, through the proxy."""
        return f"{self.server.name}://{self.line.address}"

    def kill(self) -> None:
        """Kill the server, as ``kill -9`` does, with operations under way."""
        if self._old:
            self.line.swallowed.clear()
            self.line.swallows = True
            assert self.line.swallowed.wait(PATIENCE), "the clients ask for nothing"
            self.line.drops = True
            commit_everything(self.server)
        self.killed = time.monotonic()
        self.server.kill()
        self.line.restore()

    def restart(self) -> None:
        """Start the server again."""
        self.server.start()
        self.returned = time.monotonic()

    def end_session(self, store: bk.MetadataStore) -> None:
        """End a store's session at the server, as an operator does."""
        session = store.session.id
        assert session is not None
        if isinstance(self.server, EtcdServer):
            with _connected(self.server) as connection:
                body = json.dumps({"ID": str(int(session, 16))})
                connection.request("POST", "/v3/lease/revoke", body)
                answer = connection.getresponse()
                assert answer.status == http.HTTPStatus.OK, answer.read()
            return
        end_zookeeper_session(self.server.address, session)

    def pause(self, seconds: float, until: Callable[[], None] = lambda: None) -> None:
        """Pause the server for a time, and then until ``until`` returns.

        The connections to an old etcd lose the requests of that time, and are cut after it.
        """
        if self._old:
            self.line.drops = True
            commit_everything(self.server)  # It executes nothing for clients any more.
        self.server.pause()
        try:
            time.sleep(seconds)
            until()
        finally:
            self.server.resume()
            if self._old:
                self.line.restore()

    def lose_answers(self) -> None:
        """Let requests be executed, lose their answers, and cut the connections."""
        self.line.swallowed.clear()
        self.line.swallows = True
        assert self.line.swallowed.wait(PATIENCE), "the clients ask for nothing"
        self.cut()

    def lose_requests(self) -> None:
        """Lose requests on the way, and cut the connections."""
        self.line.drops = True
        time.sleep(0.05)
        self.cut()

    def isolate(self, seconds: float) -> None:
        """Block both directions for a time, and then cut the connections."""
        self.line.swallows = self.line.drops = True
        time.sleep(seconds)
        self.cut()

    def cut(self) -> None:
        """End all connections. New ones are accepted."""
        if self._old:
            self.line.drops = True
            time.sleep(0.1)
        self.line.restore()


def _etcd_version(server: EtcdServer) -> tuple[int, ...]:
    with _connected(server) as connection:
        connection.request("GET", "/version")
        said = json.loads(connection.getresponse().read())["etcdserver"]
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


def commit_everything(server: LocalServer) -> None:
    """Wait until all writes that etcd has answered are in its log and its database.

    This puts a key. Its entry in the log follows the entries of all writes answered earlier. etcd
    commits its database every 100 ms if there are changes, but not while it applies a transaction.
    """
    with _connected(server) as connection:
        _put_a_key(connection)
        before = _commits(connection)

        def committed() -> bool:
            # If the first one was committed before the count, there would be nothing to commit.
            _put_a_key(connection)
            return _commits(connection) != before

        until(committed, "etcd does not commit")


def _put_a_key(connection: http.client.HTTPConnection) -> None:
    body = {"key": base64.b64encode(b"/fence").decode(), "value": ""}
    connection.request("POST", "/v3/kv/put", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.OK, answer.read()
    answer.read()


def _commits(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = re.search(r"\netcd_disk_backend_commit_duration_seconds_count (\S+)", text)
    assert found, "etcd does not report the number of its commits"
    return int(float(found[1]))


@contextmanager
def _connected(server: LocalServer) -> Iterator[http.client.HTTPConnection]:
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()

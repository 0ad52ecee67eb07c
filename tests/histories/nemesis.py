"""What happens to servers and to the lines to them while clients are at work.

etcd before 3.5.5 loses writes that it has acknowledged, when its only member is killed:

- #14370: one member applies and answers a transaction beside writing it to its log. What is killed
  after the answer and before the log was written is gone.
- #13766 (3.5.0 to 3.5.2): the index of the transaction about to be applied may be committed to the
  database before its changes are, and after a kill it is passed over when the log is read.

So an old etcd is killed when it has nothing left that could be lost: the line to it first swallows
its answers and then drops the requests, and when a write that did not come over that line is
answered and committed, everything that was acknowledged before is in the log and in the database.
What the clients have under way is caught all the same: some of it carried out, some never arrived.

It also dies of a reading transaction whose client goes away while it is executed (#14110). So the
line to an old etcd is cut when the requests that have arrived are done with.
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

from batchkeeper.bench.servers import EtcdServer, LocalServer, ZooKeeperServer

from ..proxy import Proxy
from ..waiting import PATIENCE, until

__all__ = ["Nemesis", "server_to_hurt"]


def server_to_hurt(kind: str, directory: Path) -> LocalServer:
    """Return a server that is not started yet. Its sessions may end after one second."""
    return EtcdServer(directory) if kind == "etcd" else ZooKeeperServer(directory, tick_time=500)


class Nemesis:
    """Faults of one server, and of the line through which its clients reach it."""

    def __init__(self, server: LocalServer, line: Proxy) -> None:
        self.server = server
        self.line = line
        self._old = isinstance(server, EtcdServer) and _etcd_version(server) < (3, 5, 5)
        #: When the server was last killed, and when it last answered again, by time.monotonic().
        self.killed = 0.0
        self.returned = 0.0

    @property
    def url(self) -> str:
        """Of the server, through the line."""
        return f"{self.server.name}://{self.line.address}"

    def kill(self) -> None:
        """End the server as ``kill -9`` does, with operations under way."""
        if self._old:
            self.line.swallowed.clear()
            self.line.swallows = True
            assert self.line.swallowed.wait(PATIENCE), "the clients ask for nothing"
            self.line.drops = True
            _commit_everything(self.server)
        self.killed = time.monotonic()
        self.server.kill()
        self.line.cut()
        self.line.swallows = self.line.drops = False

    def restart(self) -> None:
        """Start the server again."""
        self.server.start()
        self.returned = time.monotonic()

    def pause(self, seconds: float, until: Callable[[], None] = lambda: None) -> None:
        """Let the server stand still for some time, and then until ``until`` returns."""
        self.server.pause()
        try:
            time.sleep(seconds)
            until()
        finally:
            self.server.resume()

    def lose_answers(self) -> None:
        """Let requests be carried out, lose their answers, and cut the line."""
        self.line.swallowed.clear()
        self.line.swallows = True
        assert self.line.swallowed.wait(PATIENCE), "the clients ask for nothing"
        self.cut()

    def lose_requests(self) -> None:
        """Lose requests on the way, and cut the line."""
        self.line.drops = True
        time.sleep(0.05)
        self.cut()

    def isolate(self, seconds: float) -> None:
        """Let nothing through in either direction for some time, and then cut the line."""
        self.line.swallows = self.line.drops = True
        time.sleep(seconds)
        self.cut()

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        if self._old:
            self.line.drops = True
            time.sleep(0.1)
        self.line.cut()
        self.line.swallows = self.line.drops = False


def _etcd_version(server: EtcdServer) -> tuple[int, ...]:
    with _connected(server) as connection:
        connection.request("GET", "/version")
        said = json.loads(connection.getresponse().read())["etcdserver"]
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


def _commit_everything(server: LocalServer) -> None:
    """Return when all that etcd has answered before is in its log and its database.

    What is answered now was proposed after that, so its log was written after that's. etcd commits
    its database every 100 ms if something was changed, and not while something is being applied.
    """
    with _connected(server) as connection:
        body = {"key": base64.b64encode(b"/fence").decode(), "value": ""}
        connection.request("POST", "/v3/kv/put", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == http.HTTPStatus.OK, answer.read()
        answer.read()
        before = _commits(connection)
        until(lambda: _commits(connection) != before, "etcd does not commit")


def _commits(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = re.search(r"\netcd_disk_backend_commit_duration_seconds_count (\S+)", text)
    assert found, "etcd does not tell how often it has committed"
    return int(float(found[1]))


@contextmanager
def _connected(server: LocalServer) -> Iterator[http.client.HTTPConnection]:
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()

"""Servers that a test had for itself, and that the next one can have, emptied.

To start a ZooKeeper takes Java more than a second of CPU time, and to empty one a few milliseconds.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from batchkeeper.testing.servers import EtcdServer, LocalServer

Server = TypeVar("Server", bound=LocalServer)

# A server with more is slower to empty than to start anew.
_MOST: Final = 1_000
_SECONDS: Final = 5.0
# The folders of a server with what it has stored. An HBase has a ZooKeeper.
_DATA: Final = ("data", "zookeeper", "tmp")


class _UnfitError(Exception):
    """A server cannot become as new."""


@contextmanager
def no_data_left(server: Server) -> Iterator[Server]:
    """Run a server for a block, and remove its data then: etcd's are at least 64 MiB. Logs stay."""
    try:
        with server:
            yield server
    finally:
        _remove_data(server)


class IdleServers(Generic[Server]):
    """Gives an empty server with default settings to one test after the other.

    A test that needs two at a time gets two. One that a test has left killed, paused, with logins
    or with much in it is not given again.

    Args:
        new: returns a new server, running.
    """

    def __init__(self, new: Callable[[], Server]) -> None:
        self._new = new
        self._idle: list[Server] = []

    @contextmanager
    def lent(self) -> Iterator[Server]:
        """Have a running server without data for a block."""
        server = self._emptied() or self._new()
        try:
            yield server
        finally:
            if server.running and not server.members[0].process.paused:
                # An idle etcd takes a hundredth of a core.
                server.pause()
                self._idle.append(server)
            else:
                _end(server)

    def _emptied(self) -> Server | None:
        while self._idle:
            server = self._idle.pop()
            try:
                server.resume()
                _empty(server)
            except (_UnfitError, OSError, http.client.HTTPException, KazooException):
                _end(server)
            else:
                return server
        return None

    def stop(self) -> None:
        """End all that are idle."""
        while self._idle:
            _end(self._idle.pop())


def _end(server: LocalServer) -> None:
    server.stop()
    _remove_data(server)


def _remove_data(server: LocalServer) -> None:
    for member in server.members:
        for folder in _DATA:
            shutil.rmtree(member.directory / folder, ignore_errors=True)


def _empty(server: LocalServer) -> None:
    if isinstance(server, EtcdServer):
        _empty_etcd(server)
    else:
        _empty_zookeeper(server)


def _empty_etcd(server: LocalServer) -> None:
    # As the JSON gateway writes them: from the first key to the last.
    everything = dict.fromkeys(("key", "range_end"), base64.b64encode(b"\0").decode())
    if _ask(server, "/v3/auth/user/list", {}).get("users"):
        raise _UnfitError("it has users")
    counted = _ask(server, "/v3/kv/range", {**everything, "count_only": True})
    if int(counted.get("count", 0)) > _MOST:
        raise _UnfitError("it has many keys")
    for lease in _ask(server, "/v3/lease/leases", {}).get("leases", ()):
        _ask(server, "/v3/lease/revoke", {"ID": lease["ID"]})
    _ask(server, "/v3/kv/deleterange", everything)


def _ask(server: LocalServer, path: str, question: object) -> dict[str, Any]:
    connection = http.client.HTTPConnection(server.address, timeout=_SECONDS)
    try:
        connection.request("POST", path, json.dumps(question))
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise _UnfitError(response.read().decode())
        answer: dict[str, Any] = json.load(response)
        return answer
    finally:
        connection.close()


def _empty_zookeeper(server: LocalServer) -> None:
    client = KazooClient(server.address, timeout=_SECONDS)
    try:
        client.start(timeout=_SECONDS)
        counted = re.search(r"^Node count: (\d+)$", client.command(b"srvr"), re.MULTILINE)
        if counted is None or int(counted[1]) > _MOST:
            raise _UnfitError("it has many nodes, or serves none")
        for name in client.get_children("/"):
            if name != "zookeeper":
                client.delete(f"/{name}", recursive=True)
    except KazooTimeoutError as error:
        raise _UnfitError("it does not answer") from error
    finally:
        client.stop()
        client.close()

"""Users of the HBase store without rights, on a real server that checks them."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.stores.backend import Tally
from batchkeeper.stores.hbase.cluster import Cluster
from batchkeeper.stores.hbase.wire.fields import Encoded, field, number
from batchkeeper.stores.hbase.wire.messages import MESSAGES
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...waiting import PATIENCE, error, result, soon, until

pytestmark = [pytest.mark.soak, pytest.mark.server]

_CONTROLLER: Final = "org.apache.hadoop.hbase.security.access.AccessController"
_READ, _WRITE = 0, 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """An HBase that checks the rights of its users."""
    install(parse_release("hbase@2.6"))
    settings = {
        "hbase.security.authorization": "true",
        "hbase.superuser": getpass.getuser(),
        **{
            f"hbase.coprocessor.{part}.classes": _CONTROLLER
            for part in ("master", "region", "regionserver")
        },
    }
    with HBaseServer(tmp_path_factory.mktemp("hbase"), settings=settings) as made:
        with bk.open_store(f"{made.url}/t", connect_timeout=PATIENCE) as store:
            result(store.put("/a", b"1"))
            result(store.put("/n/", b"", sequential=True))
        yield made


def give(server: HBaseServer, user: str, *actions: int) -> None:
    """Give a user these rights on the table, and no others."""
    cluster = Cluster([server.address], (b"default", b"t"), getpass.getuser(), 10.0, Tally())
    table = field(1, field(1, b"default") + field(2, b"t"))
    rights = table + b"".join(number(4, action) for action in actions)
    permission = field(1, user.encode()) + field(3, number(1, 3) + field(4, rights))
    method = "Grant" if actions else "Revoke"
    with closing(cluster):
        cluster.ask_master(method, Encoded(field(1, permission)), MESSAGES.Empty, soon())


def opened(server: HBaseServer, user: str, table: str = "t", **options: Any) -> bk.MetadataStore:
    return bk.open_store(f"{server.url}/{table}?user={user}", connect_timeout=PATIENCE, **options)


def writes(store: bk.MetadataStore) -> dict[str, bk.MetadataStoreError]:
    """Return how each kind of write ends."""
    futures = {
        "put": store.put("/a", b"2"),
        "conditional": store.put("/b", b"2", bk.ABSENT),
        "delete": store.delete("/n/0000000000"),
        "sequential": store.put("/n/", b"", sequential=True),
        "ephemeral": store.put("/e", b"", ephemeral=True),
        "both": store.put("/e/", b"", ephemeral=True, sequential=True),
        "recursive": store.delete_recursive("/a"),
    }
    return {name: error(future) for name, future in futures.items()}


def refused(found: bk.MetadataStoreError) -> bool:
    return isinstance(found, bk.AuthenticationError) and "Insufficient permissions" in str(found)


def test_a_user_without_rights_opens_nothing(server: HBaseServer) -> None:
    """Neither a table that is there, nor one that would have to be created."""
    give(server, "writer", _WRITE)
    for user, table in (("nobody", "t"), ("nobody", "missing"), ("writer", "t")):
        with pytest.raises(bk.AuthenticationError, match=f"Insufficient permissions.*{user}"):
            opened(server, user, table)


def test_a_user_who_may_only_read(server: HBaseServer) -> None:
    """It reads, though it may not see the properties of the table; each write is refused."""
    give(server, "reader", _READ)
    # Only a wait until the deadline would end otherwise.
    with opened(server, "reader", operation_timeout=10 * PATIENCE) as store:
        found = writes(store)
        assert {name: refused(error) for name, error in found.items()} == dict.fromkeys(found, True)
        assert found["sequential"].path == "/n/"
        assert {error.outcome for error in found.values()} == {"not_applied"}
        assert result(store.get_children("/")) == ["a", "n"]
        assert [path for path, _, _ in store.scan("/")] == ["/a", "/n/0000000000"]
        value = result(store.get("/a"))
        assert value is not None
        assert value.value == b"1"


def test_rights_that_are_taken_away_and_given_back(server: HBaseServer) -> None:
    """Calls end with the reason, the session is suspended, and goes on with the rights."""
    give(server, "friend", _READ, _WRITE)
    options = {"operation_timeout": 10 * PATIENCE, "session_timeout": 2.0}
    with opened(server, "friend", **options) as store:
        events: list[str] = []
        store.add_session_listener(events.append)
        assert result(store.put("/mine", b"", ephemeral=True)).owned
        give(server, "friend")
        found = writes(store)
        assert {name: refused(error) for name, error in found.items()} == dict.fromkeys(found, True)
        reads: list[Callable[[], Any]] = [
            lambda: store.get("/a").result(PATIENCE),
            lambda: store.exists("/a").result(PATIENCE),
            lambda: store.get_children("/").result(PATIENCE),
            lambda: list(store.scan("/")),
            lambda: store.split("/", 2),
        ]
        for read in reads:
            with pytest.raises(bk.AuthenticationError, match="friend"):
                read()
        until(lambda: events == ["connection_lost"])
        give(server, "friend", _READ, _WRITE)
        until(lambda: events[:2] == ["connection_lost", "reconnected"])
        until(lambda: store.session is not None and store.session.state == "connected")
        assert result(store.put("/again", b"", ephemeral=True)).owned

"""Names that a server or this client keeps for itself, seen from the root and from above."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import SERVERS, LocalServer

from ..waiting import result


@pytest.mark.server
@pytest.mark.parametrize("name", SERVERS)
def test_what_is_reserved_is_hidden_at_the_root(
    name: str, shared_servers: Callable[[str], LocalServer]
) -> None:
    """Without a prefix or chroot, the root does not list internal nodes of the server or client."""
    server = shared_servers(name)
    with bk.open_store(server.url) as store:
        result(store.put("/visible", b""))
        names = result(store.get_children("/"))
        result(store.delete("/visible"))
    assert "visible" in names
    assert not {"zookeeper", ".batchkeeper"} & set(names)


@pytest.mark.server
@pytest.mark.parametrize("name", SERVERS)
def test_what_another_store_keeps_below_is_hidden(
    name: str, shared_servers: Callable[[str], LocalServer]
) -> None:
    """A store opened above a prefix or chroot does not show the internal keys of a store there."""
    server = shared_servers(name)
    with bk.open_store(f"{server.url}/inner") as inner:
        result(inner.put("/a", b""))
        with bk.open_store(server.url) as outer:
            names = result(outer.get_children("/inner"))
            with pytest.raises(bk.InvalidPathError, match="reserved"):
                outer.get("/inner/.batchkeeper")
        result(inner.delete("/a"))
    assert names == ["a"]

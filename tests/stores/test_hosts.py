"""Hosts whose names nobody knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.stores.hosts import lookup_failure


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_a_host_that_nobody_knows_is_named(scheme: str) -> None:
    """By the same words on every store, and without the client's own."""
    with pytest.raises(bk.StoreUnavailableError) as caught:
        bk.open_store(f"{scheme}://nobody.invalid:1", connect_timeout=0.4)
    assert str(caught.value).endswith(": no such host nobody.invalid")


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_each_host_has_its_reason(scheme: str) -> None:
    """One that nobody knows is named beside one that refuses connections."""
    with pytest.raises(bk.StoreUnavailableError) as caught:
        bk.open_store(f"{scheme}://127.0.0.1:1,nobody.invalid:1", connect_timeout=0.4)
    assert ": no such host nobody.invalid" in str(caught.value)


@pytest.mark.parametrize("name", ["etcd", "zookeeper"])
def test_an_unknown_host_among_others_does_no_harm(
    name: str, fresh_url: Callable[[str], str]
) -> None:
    """The client uses the other, at the first attempt."""
    scheme, _, rest = fresh_url(name).partition("://")
    with bk.open_store(f"{scheme}://nobody.invalid:1,{rest}") as store:
        store.put("/a", b"1").result()


def test_a_failure_that_passes_is_told_apart() -> None:
    """If the server of names does not answer, nobody knows whether there is such a host."""
    message = lookup_failure("there", "Temporary failure in name resolution")
    assert message == "cannot look up the host there: Temporary failure in name resolution"

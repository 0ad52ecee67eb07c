"""Messages contain no data of a caller, as SECURITY.md and docs/guarantees.md promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import MetaStore, Version

SECRET = b"secret"


@dataclass
class Named:
    """A value with a field of text."""

    name: str


def lock(store: bk.MetadataStore) -> None:
    with bk.Lock(store, "/lock", SECRET):
        bk.Lock(store, "/lock").acquire(timeout=0.1)


def election(store: bk.MetadataStore) -> None:
    with bk.Election(store, "/election", SECRET) as leader:
        leader.campaign()
        bk.Election(store, "/election").campaign(timeout=0.1)


def group(store: bk.MetadataStore) -> None:
    with bk.Group(store, "/group").join("a", SECRET):
        bk.Group(store, "/group").join("a", timeout=0.1)


def table(store: bk.MetadataStore, value: Any) -> None:
    MetaStore(store).create_table("t").put("k", value, Version.NEW)


CALLS: list[Callable[[Any], Any]] = [
    lambda store: store.put("/a", SECRET.decode()),
    lambda store: store.transaction([("/a", SECRET)]),
    lambda store: store.transaction(SECRET),
    lambda store: bk.Counter(store, "/value").next(),
    lambda store: bk.DoubleBarrier(store, "/value", 2).enter(timeout=9),
    lambda _: bk.dataclass_serde(Named).encode(SECRET),  # type: ignore[arg-type]
    lambda _: bk.dataclass_serde(Named).decode(b'{"name": ["secret"]}'),
    lambda store: table(store, SECRET),
    lambda store: table(store, {"field": "secret"}),
    lock,
    election,
    group,
]


def test_a_message_has_no_data() -> None:
    """A value that a caller gives, or that is at a path, is in no message and in no repr."""
    for call in CALLS:
        with bk.open_store("memory://messages") as store:
            store.put("/value", SECRET).result()
            with pytest.raises(Exception, match=r".") as caught:
                call(store)
        assert "secret" not in f"{caught.value}"
    assert repr(bk.Put("/a", SECRET)) == (
        "Put(path='/a', value=<bytes of length 6>, expected_version=None, options=None)"
    )

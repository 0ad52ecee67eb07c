"""Refusals that are no conflicts: a call ends with their error, and does not try again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

import batchkeeper as bk
from batchkeeper.coordination import DoubleBarrier, Group, Lock, WorkQueue, fenced

from ..stores.foreign import zookeeper_client
from ..waiting import PATIENCE, error
from .in_line import opened

READ_ONLY: Final = [make_acl("world", "anyone", read=True, admin=True)]
UNREADABLE: Final = [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)]


@pytest.fixture
def url(fresh_url: Callable[[str], str]) -> str:
    return fresh_url("zookeeper")


@pytest.fixture
def store(url: str) -> Iterator[bk.MetadataStore]:
    with opened(url) as made:
        yield made


@pytest.fixture
def admin(store: bk.MetadataStore, url: str) -> Iterator[KazooClient]:
    """A raw client with the same chroot, which sets the permissions."""
    with zookeeper_client(url) as client:
        yield client


@pytest.mark.server
def test_members_without_permission(store: bk.MetadataStore, admin: KazooClient) -> None:
    """To join, to change the data and to leave say which path they may not change.

    So does a join below an ephemeral value, where ZooKeeper allows nothing.
    """
    store.put("/e", b"", ephemeral=True).result(PATIENCE)
    with pytest.raises(bk.UnsupportedError, match="/e"):
        Group(store, "/e").join("me", timeout=PATIENCE)
    admin.create("/g", acl=READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/g/me"):
        Group(store, "/g").join("me", timeout=PATIENCE)
    member = Group(store, "/h").join("me")
    admin.set_acls("/h/me", READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/h/me"):
        member.update(b"new")
    assert member.data == b""
    admin.set_acls("/h", READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/h/"):
        member.leave()


@pytest.mark.server
def test_participants_and_workers_without_permission(
    store: bk.MetadataStore, admin: KazooClient
) -> None:
    """So do the calls of a barrier and of a queue; a job that is refused stays with its worker."""
    admin.create("/b", b"0", acl=READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/b/"):
        DoubleBarrier(store, "/b", 2).enter(PATIENCE)
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    admin.create("/q/claims", acl=READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/q/claims/"):
        queue.claim(PATIENCE)
    other = WorkQueue(store, "/r")
    other.put(b"job")
    job = other.claim(PATIENCE)
    admin.set_acls("/r/jobs", READ_ONLY)
    with pytest.raises(bk.AuthenticationError, match="/r/jobs/"):
        job.done()
    assert job.held


@pytest.mark.server
def test_a_fenced_write_that_may_not_look_at_its_lock(
    store: bk.MetadataStore, admin: KazooClient
) -> None:
    """It says so. The lock is held, not lost."""
    lock = Lock(store, "/lock")
    lock.acquire()
    admin.set_acls(lock.check().path, UNREADABLE)
    assert isinstance(error(fenced(store, lock).put("/a", b"")), bk.AuthenticationError)
    assert lock.held


def test_a_member_with_values_below_it() -> None:
    """It cannot leave by itself, and says so at once."""
    with bk.open_store("memory://refusals", operation_timeout=5.0) as store:
        member = Group(store, "/g").join("me")
        store.put("/g/me/below", b"").result(PATIENCE)
        with pytest.raises(bk.NotEmptyError, match="/g/me"):
            member.leave()

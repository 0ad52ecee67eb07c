"""Access control lists: of everything that a store creates, and of single nodes."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl_credential

import batchkeeper as bk
from batchkeeper.stores import parse_url

from ..foreign import zookeeper_client

ME = {"username": "me", "password": "secret"}
DIGEST = make_digest_acl_credential("me", "secret")
MINE, ALL_READ = ("digest", DIGEST, 31), ("world", "anyone", 1)


def root_and_chroot(url: str) -> tuple[str, str]:
    chroot = parse_url(url).prefix()
    return url.removesuffix(chroot), chroot


def lists_below(client: KazooClient, path: str) -> list[tuple[str, set[tuple[str, str, int]]]]:
    """Return all nodes with their lists, also those that the store hides."""
    found = {(acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(path)[0]}
    below = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    return [(path, found), *(pair for each in below for pair in lists_below(client, each))]


def test_all_that_a_store_creates_has_its_list(url: str) -> None:
    """The chroot, parents, values of all kinds, slots and the nodes of recipes."""
    bk.open_store(url).close()  # The chroot itself is open, for several below it.
    server, chroot = root_and_chroot(url)
    for i, acl, expected in (
        (0, "creator-all", {MINE}),
        (1, "read-all", {MINE, ALL_READ}),
        (2, [f"digest:{DIGEST}:cdrwa", "ip:10.1.2.3:rw"], {MINE, ("ip", "10.1.2.3", 3)}),
    ):
        with (
            bk.open_store(f"{server}{chroot}/{i}/deep", **ME, acl=acl) as store,
            bk.Lock(store, "/lock"),
            zookeeper_client(server) as other,
        ):
            store.put("/parent/value", b"1").result()
            store.put("/ephemeral", b"1", ephemeral=True).result()
            store.put("/queue/s-", b"1", sequential=True, ephemeral=True).result()
            store.transaction([bk.Put("/a/b", b"1"), bk.Check("/none", bk.ABSENT)]).result()
            value = f"{chroot}/{i}/deep/parent/value"
            if ALL_READ in expected:
                assert other.get(value)[0] == b"1"
            else:
                with pytest.raises(NoAuthError):
                    other.get(value)
            with pytest.raises(NoAuthError):
                other.set(value, b"2")
            other.add_auth("digest", "me:secret")
            found = lists_below(other, f"{chroot}/{i}")
            assert len(found) == 14
            assert [path for path, acls in found if acls != expected] == []


def test_a_list_that_would_shut_its_own_client_out(url: str) -> None:
    """Opening refuses it before anything is created that the client could not even remove."""
    server, chroot = root_and_chroot(url)
    for acl, reason in (
        (["world:anyone:cdw"], "keeps this client itself"),
        (["world:anyone:crw"], "keeps this client itself"),
        ("sasl:hub:cdrwa", "refuses the acl"),
    ):
        with pytest.raises(bk.AuthenticationError, match=reason):
            bk.open_store(url, **ME, acl=acl)
    with zookeeper_client(server) as other:
        assert other.exists(chroot) is None


def test_the_list_of_a_node(url: str) -> None:
    """It is read, and set at its version; without permission, neither, and nothing is lost."""
    with bk.open_store(url, **ME) as store, bk.open_store(url) as other:
        store.put("/a/b", b"1").result()
        assert store.get_acl("/a") == ("/a", ("world:anyone:cdrwa",), 0)
        assert store.set_acl("/a", "creator-all", 0) == 1
        assert store.get_acl("/a") == ("/a", (f"digest:{DIGEST}:cdrwa",), 1)
        with pytest.raises(bk.BadVersionError, match="not at version 0"):
            store.set_acl("/a", "open", 0)
        for forbidden in (lambda: other.get_acl("/a"), lambda: other.set_acl("/a", "open")):
            with pytest.raises(bk.AuthenticationError, match="'/a'"):
                forbidden()
        with pytest.raises(bk.AuthenticationError, match="needs a login"):
            other.set_acl("/a/b", "read-all")
        for missing in (lambda: store.get_acl("/none"), lambda: store.set_acl("/none", "open")):
            with pytest.raises(bk.NotFoundError):
                missing()
        with pytest.raises(bk.InvalidSettingError, match="ABSENT"):
            store.set_acl("/a", "open", bk.ABSENT)
        assert store.get_acl("/a").version == 1

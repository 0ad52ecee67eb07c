"""From a URL to a back end: its parts, refused URLs, and secrets, which are never repeated."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import opening
from batchkeeper.stores import parse_url, registry
from batchkeeper.stores.kinds import StoreKind


def test_a_url_is_taken_apart() -> None:
    """Hosts, path and options are found, with what is percent-encoded decoded."""
    url = parse_url("ETCD://a:1,b:2/up%20here/x?option=a%2Fb&flag=true")

    assert url.scheme == "etcd"
    assert url.addresses(9) == ("a:1", "b:2")
    assert url.prefix() == "/up here/x"
    assert dict(url.options) == {"option": "a/b", "flag": "true"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("zk://host", "host:2181"),
        ("zk://a_b-1.c.:02181", "a_b-1.c.:2181"),
        ("zk://[::1]", "[::1]:2181"),
        ("zk://[::1]:7", "[::1]:7"),
        ("zk://[fe80::1%25eth0]", "[fe80::1%eth0]:2181"),
        ("zk://127.0.0.1", "127.0.0.1:2181"),
    ],
)
def test_a_missing_port_is_the_stores_own(text: str, address: str) -> None:
    """A host without a port gets the default, a bare IPv6 address too."""
    assert parse_url(text).addresses(2181) == (address,)


@pytest.mark.parametrize("scheme", ["etcd", "etcds", "zookeeper", "zk"])
def test_what_is_no_host_and_port_is_refused(scheme: str) -> None:
    """No library gets to see what it would refuse in words of its own, or take for something else.

    A label or name that is too long, a part that is empty, an address in a short form, too.
    """
    ports = ("h:0", "h:65536", "h:70000", "h:-1", "h:+1", "h:x", "h: 1", "h:1 ", "h:\u0663", "h:")
    colons = ("::1:2181", "h:1:2", "fe80::1", "::1", "[::1]1", "[::1]:", "[]:1", ":1", "[h]:1")
    names = ("a b", "h%20", "-h", "h,", ",h", "a,,b", "a..b", ".", "b\u00fccher", "h%2Fx:1", "h\\x")
    long = ("x" * 64, ".".join(["x" * 60] * 5), "2181", "127.1", "256.0.0.1", "a%2Cb:1", "h;i")
    zones = ("[::1%25a%2Fb]", "[::1%25]", "[127.0.0.1]", "[::g]")
    for host in (*ports, *colons, *names, *long, *zones):
        with pytest.raises(bk.InvalidSettingError, match=r"not a (host and port|store's URL)"):
            bk.open_store(f"{scheme}://{host}", connect_timeout=0.1)


@pytest.mark.parametrize(
    "text",
    [
        "etcd://user:hunter2@host",
        "etcd://hunter2@host/x?y=z",
        "zk://host?password=hunter2",
        "zk://host?Some_Password=hunter2",
        "user:hunter2@host",
        "etcd://user:hunt/er2@host",
        "etcd://user:hunter2@host/a://b",
        "etcd://user:hunter2@ho\N{FULLWIDTH SOLIDUS}st",
        "user:hunter2://x@host",
        "zk://host?password=hunter2#fragment",
        "zk://host?password=hunter2&password=hunter2",
        "zk://host?password=hunter2&x=%ff",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    """The message does not contain the secret, whatever is wrong with the URL."""
    with pytest.raises(bk.InvalidSettingError) as caught:
        bk.open_store(text)
    assert "hunter2" not in str(caught.value)
    assert "er2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "not a store's URL"),
        ("://x", "not a store's URL"),
        ("foo://x", "unknown store scheme 'foo'.*rocksdb"),
        ("memory://x#y", "not have a fragment"),
        ("memory://x?a=1&a=2", "'a' is given twice"),
        ("memory://x?a=1", "no option 'a'"),
        ("etcd://", "at least one host"),
        ("etcd://[::1", "not a store's URL"),
        ("memory://\udcff", "must be UTF-8"),
        ("rocksdb:///nowhere/\udcff", "must be UTF-8"),
        ("rocksdb:///nowhere/%ff", "must be UTF-8"),
        ("memory://x?a=%ff", "must be UTF-8"),
        ("memory://%ff", "must be UTF-8"),
        ("rocksdb:///a\nb", "must be one line"),
        (f"memory://x?max_value_bytes={'9' * 5000}", "must be an int of at least 1"),
        (f"etcd://host:{'9' * 5000}", "not a host and port"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused(text: str, reason: str) -> None:
    """The message says what is wrong, and what is right."""
    with pytest.raises(bk.InvalidSettingError, match=reason):
        bk.open_store(text)


def test_a_prefix_follows_the_path_rule() -> None:
    """A prefix or chroot is a valid path; a final slash is ignored."""
    assert parse_url("etcd://h/a/b/").prefix() == "/a/b"
    assert parse_url("etcd://h/").prefix() == ""
    with pytest.raises(bk.InvalidPathError, match="empty part"):
        parse_url("etcd://h/a//b").prefix()


def test_a_missing_package_is_named_with_the_way_to_mend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A back end whose package cannot be imported says which, and what to install."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for module in [name for name in sys.modules if name.startswith("batchkeeper.stores.rocksdb")]:
        monkeypatch.delitem(sys.modules, module)

    with pytest.raises(bk.UnsupportedError, match=r"rocksdict.*pip install"):
        bk.open_store("rocksdb:///never/opened")


def test_a_password_comes_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Arguments come first, then the variable, then the first line of the file."""
    seen = []
    real_connect = registry.connect

    def connect(text: str, options: registry.ConnectOptions) -> object:
        seen.append((options.username, options.password))
        assert "from-" not in repr(options)
        return real_connect(text, options)

    monkeypatch.setattr(opening, "connect", connect)
    file = tmp_path / "password"
    file.write_text("from-file\nmore\n")
    monkeypatch.setenv("BATCHKEEPER_PASSWORD_FILE", str(file))
    bk.open_store("memory://p").close()
    monkeypatch.setenv("BATCHKEEPER_USERNAME", "me")
    monkeypatch.setenv("BATCHKEEPER_PASSWORD", "from-variable")
    bk.open_store("memory://p").close()
    bk.open_store("memory://p", username="you", password="from-argument").close()

    assert seen == [(None, "from-file"), ("me", "from-variable"), ("you", "from-argument")]


def test_sasl_is_for_stores_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument is refused elsewhere; a variable may be meant for another store."""
    with pytest.raises(bk.UnsupportedError, match="memory has no logins with SASL"):
        bk.open_store("memory://s", sasl="gssapi")
    monkeypatch.setenv("BATCHKEEPER_SASL", "plain")
    bk.open_store("memory://s").close()
    with pytest.raises(bk.InvalidSettingError, match="one of digest-md5, gssapi, not 'plain'"):
        bk.open_store("zk://127.0.0.1:1")


def test_a_password_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error says which variable and which file."""
    monkeypatch.setenv("BATCHKEEPER_PASSWORD_FILE", str(tmp_path / "missing"))
    with pytest.raises(bk.InvalidSettingError, match=r"BATCHKEEPER_PASSWORD_FILE.*missing"):
        bk.open_store("memory://p")


@pytest.mark.parametrize("name", ["connect_timeout", "session_timeout", "operation_timeout"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", True, 1e12])
def test_a_timeout_out_of_its_range_is_refused(name: str, value: object) -> None:
    """Every timeout is a number of seconds, more than 0 and at most a year."""
    with pytest.raises(bk.InvalidSettingError, match=name):
        bk.open_store("memory://t", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["username", "password"])
def test_a_login_that_is_no_text_is_refused(name: str) -> None:
    """Names and passwords must be text; the message does not contain them."""
    with pytest.raises(bk.InvalidSettingError, match=f"{name} must be a str, not bytes") as caught:
        bk.open_store("memory://l", **{name: b"hunter2"})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    with pytest.raises(bk.InvalidSettingError, match=f"{name} must be valid in UTF-8") as caught:
        bk.open_store("memory://l", **{name: "hunter2\udcff"})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 0, "false"])
def test_a_create_that_is_no_bool_is_refused(value: object) -> None:
    """Values other than True and False are refused, whatever they look like."""
    with pytest.raises(bk.InvalidSettingError, match="create must be a bool"):
        bk.open_store("memory://c", create=value)  # type: ignore[arg-type]


def test_both_faces_can_be_told_not_to_make_a_store(tmp_path: Path) -> None:
    """With create=False a missing store is an error for threads and for tasks; by default not."""
    url = f"rocksdb://{tmp_path}/store"

    async def opened(create: bool) -> bool:
        async with bk.open_async_store(url, create=create) as store:
            return await store.exists("/a")

    with pytest.raises(bk.StoreUnavailableError, match="there is no RocksDB store"):
        bk.open_store(url, create=False)
    with pytest.raises(bk.StoreUnavailableError, match="there is no RocksDB store"):
        asyncio.run(opened(create=False))
    assert list(tmp_path.iterdir()) == []
    with bk.open_store(url) as store:
        store.put("/a", b"1").result()
    assert asyncio.run(opened(create=False))


def test_without_create_what_is_missing_reads_as_empty(store_url: str) -> None:
    """If opening needs no files, a missing store reads as empty, and the first write creates it."""
    if bk.store_kind(store_url).local_directory:
        bk.open_store(store_url).close()
    with bk.open_store(store_url, create=False) as store:
        assert store.get("/a").result() is None
        assert store.exists("/a").result() is False
        assert store.get_children("/").result() == []
        assert list(store.scan("/")) == []
        assert list(store.scan("/a")) == []
        assert len(store.split("/", 4)) == 1
        assert store.revision() >= 0
        store.sync()
        with pytest.raises(bk.NotFoundError):
            store.delete("/a").result()
        assert store.delete_recursive("/a").result() == 0
        assert store.put("/a/b", b"1", bk.ABSENT).result().version == 0
        assert store.get_children("/").result() == ["a"]


@pytest.mark.parametrize("lacking", ["threads", "descriptors"])
def test_what_the_system_lacks_is_an_error_of_the_package(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """Without a thread or a file descriptor, opening is retriable, and leaves nothing behind."""
    before = {*threading.enumerate()}
    start = threading.Thread.start

    def fail(it: threading.Thread | StoreKind) -> None:
        if isinstance(it, StoreKind):
            raise OSError(24, "no more")
        if "writes" in it.name:
            raise RuntimeError("no more")
        start(it)

    place: Any = threading.Thread if lacking == "threads" else StoreKind
    monkeypatch.setattr(place, "start" if lacking == "threads" else "load", fail)
    with pytest.raises(bk.StoreUnavailableError, match="no more") as raised:
        bk.open_store("memory://lacking")
    assert raised.value.retriable
    assert {*threading.enumerate()} <= before

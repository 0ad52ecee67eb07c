"""The clients of a worker process: kept from task to task, drained, and never shared by a fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import opening
from batchkeeper.pipeline import clients
from batchkeeper.pipeline.clients import client, opened
from batchkeeper.pipeline.options import SourceOptions, parse_options
from batchkeeper.stores import ConnectOptions, registry
from batchkeeper.testing.servers import ZooKeeperServer

from ..forks import holds_in_a_child
from ..waiting import PATIENCE


@pytest.fixture(autouse=True)
def worker() -> Iterator[None]:
    """A process without clients. Clients that a test leaves are closed."""
    yield
    while clients._idle:
        clients._idle.popitem()[1].store.close()


@pytest.fixture
def options(fresh_url: Callable[[str], str], etcd_server: object) -> SourceOptions:
    return parse_options({"url": fresh_url("etcd")})


def test_a_client_is_used_again(options: SourceOptions) -> None:
    """Later tasks of a process get the client of the first, whatever else their options say."""
    with client(options) as first:
        pass
    with client(replace(options, prefix="/x", partitions=5)) as second:
        assert second is first


def test_other_settings_are_another_client(options: SourceOptions) -> None:
    """A client has the settings of its task; an earlier client with others is closed."""
    with client(options) as first:
        pass
    with client(replace(options, batching=bk.BatchingConfig(max_ops=3))) as second:
        assert second is not first
        with pytest.raises(bk.StoreClosedError):
            first.get("/a")


@pytest.mark.server
def test_few_clients_are_kept(fresh_url: Callable[[str], str]) -> None:
    """A process that uses many URLs closes the least recently used clients."""
    stores = []
    for _ in range(6):
        with client(parse_options({"url": fresh_url("etcd")})) as store:
            stores.append(store)
    for closed in stores[:2]:
        with pytest.raises(bk.StoreClosedError):
            closed.get("/a")
    for kept in stores[2:]:
        assert kept.get("/a").result() is None


def test_a_task_within_a_task_has_a_client_of_its_own(options: SourceOptions) -> None:
    """Two blocks at a time have two clients, and one of them is kept."""
    with client(options) as outer:
        with client(options) as inner:
            assert inner is not outer
        assert outer.get("/a").result() is None
    with client(options) as again:
        assert again is outer


def test_a_task_ends_with_all_that_it_submitted(options: SourceOptions) -> None:
    """When the block ends, every write in it has ended."""
    with client(options) as store:
        futures = [store.put(f"/{number}", b"") for number in range(500)]
    assert [future.done() for future in futures] == [True] * 500


def test_a_failed_task_ends_its_client_too(options: SourceOptions) -> None:
    """After an error every write has ended, and the next task starts with a new client."""
    futures: list[Future[bk.Stat]] = []
    stores = []

    def task() -> None:
        with client(options) as store:
            stores.append(store)
            futures.extend(store.put(f"/{number}", b"") for number in range(500))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        task()
    assert [future.result(0).version for future in futures] == [0] * 500
    with client(options) as store:
        assert store is not stores[0]


def test_a_fork_has_clients_of_its_own(options: SourceOptions) -> None:
    """A forked worker opens a client for itself, and the parent's goes on."""
    with client(options) as store:
        store.put("/a", b"1").result()

    def has_its_own() -> bool:
        with client(options) as own:
            found = own.get("/a").result(PATIENCE)
            return own is not store and found is not None and found.value == b"1"

    assert holds_in_a_child(has_its_own)
    with client(options) as again:
        assert again is store
        assert again.exists("/a").result()


def test_a_directory_is_open_for_its_task_only(fresh_url: Callable[[str], str]) -> None:
    """An embedded store is closed after each task, so that another process can write it."""
    options = parse_options({"url": fresh_url("rocksdb")})
    with client(options) as store:
        store.put("/a", b"1").result()
    with bk.open_store(options.url) as other:
        assert other.exists("/a").result()


def test_readers_of_a_directory_stand_beside_its_writer(fresh_url: Callable[[str], str]) -> None:
    """Several tasks read a directory at a time, even while it is open for writing."""
    options = parse_options({"url": f"{fresh_url('rocksdb')}?sync=false"})
    with bk.open_store(options.url) as writer:
        writer.put("/a", b"1").result()
        with client(options, read_only=True) as one, client(options, read_only=True) as two:
            assert one.exists("/a").result()
            assert two.exists("/a").result()
            with pytest.raises(bk.UnsupportedError):
                one.put("/a", b"2").result()


@pytest.mark.parametrize("give", [client, opened])
def test_readers_make_no_store(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer, give: Any
) -> None:
    """A task that reads makes no chroot; one that writes can use the same client, and makes it."""
    options = parse_options({"url": fresh_url("zookeeper")})
    with give(options, read_only=True) as store:
        assert list(store.scan("/")) == []
    with bk.open_store(zookeeper_server.url) as whole:
        chroot = "/" + options.url.rpartition("/")[2]
        assert chroot[1:] not in whole.get_children("/").result()
        with give(options) as store:
            store.put("/a", b"1").result()
        assert whole.exists(f"{chroot}/a").result()


def test_a_login_comes_from_where_its_name_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """User and password are read where the store is opened: from variables, or from a file.

    The file is read again at each login of a client, which outlives its task.
    """
    given: list[ConnectOptions] = []

    def connect(text: str, options: ConnectOptions) -> object:
        given.append(options)
        return registry.connect("memory://login", options)

    monkeypatch.setattr(opening, "connect", connect)
    monkeypatch.setenv("THE_USER", "me")
    monkeypatch.setenv("THE_PASSWORD", "geheim")
    (tmp_path / "password").write_text("geheimer\nand no more\n")
    options = {"url": "etcd://127.0.0.1:1", "username_env": "THE_USER"}
    with opened(parse_options({**options, "password_env": "THE_PASSWORD"})):
        assert (given[-1].username, given[-1].password_now()) == ("me", "geheim")
    with opened(parse_options({**options, "password_file": str(tmp_path / "password")})):
        assert given[-1].password_now() == "geheimer"
        (tmp_path / "password").write_text("am geheimsten\n")
        assert given[-1].password_now() == "am geheimsten"


@pytest.mark.parametrize("option", ["username_env", "password_env", "password_file"])
def test_a_login_that_is_not_there_is_an_error(option: str) -> None:
    """A variable or a file that does not exist in this process is named."""
    options = parse_options({"url": "etcd://127.0.0.1:1", option: "/not/there"})
    with pytest.raises(bk.InvalidSettingError, match=rf"{option}.*/not/there"), opened(options):
        pass

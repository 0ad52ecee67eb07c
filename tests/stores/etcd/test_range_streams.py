"""Scans by streams of ranges, which etcd has from 3.7 on, and by pages where there are none.

All of this holds for pages, too. The test of what is streamed shows which of the two it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import grpc
import pytest

import batchkeeper as bk
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.wire import connection as module
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.members import streams_ranges
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer

from ...contents import contents, put_all
from ...proxy import Proxy
from ...waiting import PATIENCE
from ..secured import secured
from .imitation import imitated

MIB = 1024 * 1024
# More than a stream sends ahead of its reader.
LARGE = {f"/t/{number:05d}": b"%d" % number + bytes(2_000) for number in range(20_000)}


@pytest.fixture(scope="module")
def url(etcd_server: EtcdServer) -> str:
    """The URL of a store with ``LARGE`` in it."""
    url = f"{etcd_server.url}/{uuid.uuid4().hex}"
    with bk.open_store(url) as store:
        put_all(store, LARGE)
    return url


@pytest.fixture
def line(url: str, proxy: Callable[[str], Proxy]) -> Proxy:
    """A line to etcd."""
    return proxy(parse_url(url).hosts[0])


@pytest.fixture
def store(url: str, line: Proxy) -> Iterator[bk.MetadataStore]:
    """The store, behind the line."""
    with bk.open_store(url.replace(parse_url(url).hosts[0], line.address)) as opened:
        yield opened


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The streams that begin."""
    return noted("stream", monkeypatch)


def noted(method: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note the calls to etcd that a method of connections begins."""
    begun: list[Any] = []
    begin = getattr(EtcdConnection, method)

    def noting(self: EtcdConnection, *request: Any) -> Any:
        if (call := begin(self, *request)) is not None:
            begun.append(call)
        return call

    monkeypatch.setattr(EtcdConnection, method, noting)
    return begun


def test_the_rest_of_a_large_scan_is_one_stream(
    etcd_server: EtcdServer,
    store: bk.MetadataStore,
    streams: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first page is a request of its own, and what fits into the next one needs no stream."""
    pages = noted("begin", monkeypatch)
    assert contents(store, "/t") == LARGE
    with grpc.insecure_channel(etcd_server.address) as channel:
        status = grpc_stubs.MaintenanceStub(channel).Status(messages.StatusRequest())
    if streams_ranges(status.version):
        assert (len(pages), len(streams)) == (2, 1)  # The path itself is a page, too.
    else:
        assert not streams
        assert len(pages) > 10
    pages.clear()
    streams.clear()
    assert len(contents(store, "/t", end="/t/03000")) == 3_000
    assert (len(pages), streams) == (3, [])


def test_a_scan_goes_on_at_its_revision_after_cuts(
    url: str, store: bk.MetadataStore, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken stream is continued behind its last key, also where the next member has none."""
    scan = store.scan("/t")
    found = [next(scan) for _ in range(200)]
    new = dict.fromkeys(list(LARGE)[::30], b"new")
    added = [f"{path}x" for path in new]
    with bk.open_store(url) as other:
        put_all(other, new | dict.fromkeys(added, b""))
        for older in (False, True):
            line.cut()
            if older:
                monkeypatch.setattr(module, "streams_ranges", lambda _version: False)
            found += [next(scan) for _ in range(3_000)]
        found += scan
        assert all(outcome.ok for outcome in other.apply([bk.Delete(path) for path in added]))
        put_all(other, {path: LARGE[path] for path in new})
    assert [path for path, _, _ in found] == [*LARGE]
    assert {path: value for path, value, _ in found} == LARGE


def test_a_slow_caller_keeps_the_rest_at_the_server(store: bk.MetadataStore, line: Proxy) -> None:
    """What is read ahead is a few MiB, however much there is."""
    before = line.answered
    scan = store.scan("/t")
    next(scan)
    ahead = -1
    while ahead < (ahead := line.answered - before):
        Event().wait(0.5)
    assert ahead < 16 * MIB < sum(map(len, LARGE.values()))
    assert sum(1 for _ in scan) == len(LARGE) - 1


def test_scans_that_are_given_up_end_their_streams(
    store: bk.MetadataStore, streams: list[Any]
) -> None:
    """Whether the caller has seen anything of a stream or not. Too many scans read pages."""
    scans = [store.scan("/t") for _ in range(20)]
    for number, scan in enumerate(scans):
        for _ in range(1 + number * 100):
            next(scan)
    assert len(streams) in {0, 16}
    for scan in scans:
        scan.close()
    assert not any(stream.is_active() for stream in streams)


def test_large_values_are_read_in_pages(store: bk.MetadataStore, streams: list[Any]) -> None:
    """The first chunk of a stream has ten values, however large they are."""
    values = {f"/m/{number:02d}": bytes(MIB) for number in range(24)}
    put_all(store, values)
    assert contents(store, "/m") == values
    assert not streams


def test_only_a_silent_server_ends_a_scan(store: bk.MetadataStore, line: Proxy) -> None:
    """The timeout is that of one page, also where the pages are those of a stream."""
    scan = store.scan("/t", timeout=1.0)
    next(scan)
    Event().wait(1.5)
    for _ in range(5_000):  # A slow caller's time does not count.
        next(scan)
    line.swallows = True
    with pytest.raises((bk.OperationTimeoutError, bk.StoreUnavailableError)):
        list(scan)


def test_a_server_without_streams_is_read_in_pages(url: str, streams: list[Any]) -> None:
    """It says that it is as new as that, and is asked for no second stream."""

    def newest(method: str, _request: bytes) -> Any:
        if method.endswith("/Status"):
            return messages.StatusResponse(version="3.7.3").SerializeToString()
        if method.endswith("/RangeStream"):
            return grpc.StatusCode.UNIMPLEMENTED, "unknown method RangeStream"
        return None

    parsed = parse_url(url)
    with (
        imitated(parsed.hosts[0], newest) as address,
        bk.open_store(url.replace(parsed.hosts[0], address)) as store,
    ):
        for _ in range(2):
            assert len(contents(store, "/t", end="/t/05000")) == 5_000
    assert len(streams) == 1


def test_a_permission_that_is_taken_away_ends_a_scan(own_etcd: Callable[..., EtcdServer]) -> None:
    """A stream with a login that has changed is not complete."""
    server = own_etcd()
    secured(server)
    with (
        bk.open_store(server.url + "/ok", username="limited", password="limited's") as store,
        grpc.insecure_channel(server.address) as channel,
    ):
        put_all(store, dict([*LARGE.items()][:12_000]))
        scan = store.scan("/t", timeout=PATIENCE)
        next(scan)
        stub = grpc_stubs.AuthStub(channel)
        login = stub.Authenticate(messages.AuthenticateRequest(name="root", password="root's"))
        stub.UserRevokeRole(
            messages.AuthUserRevokeRoleRequest(name="limited", role="some"),
            metadata=(("token", login.token),),
        )
        with pytest.raises(bk.AuthenticationError):
            list(scan)

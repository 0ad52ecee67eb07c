"""Hosts whose names nobody knows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

import grpc
import pytest

import batchkeeper as bk
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.hosts import lookup_failure

from ..waiting import PATIENCE


class OutOfTimeError(grpc.RpcError):
    """The error of a call that had too little time."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "Deadline Exceeded"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_a_host_that_nobody_knows_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same words on every store, also if the last attempt had too little time to say so."""
    greet, attempts = EtcdConnection._greet, count()

    def greet_once(*arguments: Any) -> Any:
        if next(attempts):
            raise OutOfTimeError
        return greet(*arguments)

    monkeypatch.setattr(EtcdConnection, "_greet", greet_once)
    with pytest.raises(bk.StoreUnavailableError) as caught:
        bk.open_store(f"{scheme}://nobody.invalid:1", connect_timeout=4)
    assert str(caught.value).endswith(": no such host nobody.invalid")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_each_host_has_its_reason(scheme: str) -> None:
    """One that nobody knows is named beside one that refuses connections."""
    with pytest.raises(bk.StoreUnavailableError) as caught:
        bk.open_store(f"{scheme}://127.0.0.1:1,nobody.invalid:1", connect_timeout=4)
    assert ": no such host nobody.invalid" in str(caught.value)


@pytest.mark.parametrize("name", ["etcd", "zookeeper"])
def test_an_unknown_host_among_others_does_no_harm(
    name: str, fresh_url: Callable[[str], str]
) -> None:
    """The client uses the other, at the first attempt."""
    scheme, _, rest = fresh_url(name).partition("://")
    with bk.open_store(f"{scheme}://nobody.invalid:1,{rest}") as store:
        store.put("/a", b"1").result()


@pytest.mark.server
def test_a_host_that_moves_is_looked_up_again(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC asks the server of names again within seconds, while it cannot connect."""
    asked = threading.Event()
    address = "127.0.0.2"  # where nobody listens
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        names.bind(("127.0.0.1", 0))

        def answer() -> None:
            with suppress(OSError):
                while True:
                    query, client = names.recvfrom(512)
                    end = query.index(b"\0", 12) + 5  # of the question
                    known = query[end - 4 : end - 2] == b"\0\1"  # A, and not AAAA
                    reply = query[:2] + b"\x81\x80\0\1" + bytes([0, known]) + b"\0" * 4
                    reply += query[12:end]
                    if known:
                        reply += b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(address)
                        asked.set()
                    names.sendto(reply, client)

        threading.Thread(target=answer, daemon=True).start()
        server, make = names.getsockname(), grpc.insecure_channel
        monkeypatch.setattr(
            "grpc.insecure_channel",
            lambda target, **more: make(f"dns://{server[0]}:{server[1]}/{target}", **more),
        )
        url = fresh_url("etcd").replace("127.0.0.1", "moves.test")
        with ThreadPoolExecutor(1) as threads:
            opening = threads.submit(bk.open_store, url, connect_timeout=20)
            assert asked.wait(PATIENCE)
            address = "127.0.0.1"
            opening.result().close()


def test_a_failure_that_passes_is_told_apart() -> None:
    """If the server of names does not answer, nobody knows whether there is such a host."""
    message = lookup_failure("there", "Temporary failure in name resolution")
    assert message == "cannot look up the host there: Temporary failure in name resolution"

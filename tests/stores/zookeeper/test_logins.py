"""Logins with SASL, on a server that demands them."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import ZooKeeperServer

from .altering import Altering, once

_JAAS: Final = """Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required {users};
}};"""
#: The opcode of a SASL login.
SASL: Final = 102
HEDWIG: Final[dict[str, Any]] = {"username": "hedwig", "password": "s3crét", "sasl": "digest-md5"}


@pytest.fixture
def jaas(tmp_path: Path) -> Path:
    """The users of the server, which reads them as it starts."""
    file = tmp_path / "jaas.conf"
    file.write_text(_JAAS.format(users='user_hedwig="s3crét"'))
    return file


@pytest.fixture
def server(own_zookeeper: Callable[..., ZooKeeperServer], jaas: Path) -> ZooKeeperServer:
    """A server that takes no client without a login."""
    return own_zookeeper(
        "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "-Dzookeeper.sessionRequireClientSASLAuth=true",
        f"-Djava.security.auth.login.config={jaas}",
    )


def test_a_login_with_sasl(server: ZooKeeperServer) -> None:
    """It gives the user's permissions; a wrong or missing one ends the opening at once."""
    with bk.open_store(f"{server.url}/sasl?acl=creator-all", **HEDWIG) as store:
        store.put("/a", b"1").result()
        assert store.get("/a").result() is not None
    threads = set(threading.enumerate())
    for change, reason in (
        ({"password": "wrong"}, "refuses the SASL login"),
        # ZooKeeper 3.6 would take the last user's password for that of one whom it does not know.
        ({"username": "nobody", "password": "wrong"}, "refuses the SASL login"),
        ({"sasl": None}, "requires a login with SASL"),
    ):
        with pytest.raises(bk.AuthenticationError, match=reason):
            bk.open_store(server.url, **{**HEDWIG, **change})
    assert set(threading.enumerate()) <= threads


def test_a_connection_that_breaks_during_the_login(server: ZooKeeperServer) -> None:
    """That is no refusal: the client connects again, at opening and later."""
    with closing(Altering(server.address)) as line:
        line.alter = once(SASL, lambda _: None)
        with bk.open_store(f"zookeeper://{line.address}", **HEDWIG) as store:
            line.alter = once(SASL, lambda _: None)
            line.cut()
            store.put("/a", b"1").result()


def test_a_login_that_is_refused_later(server: ZooKeeperServer, jaas: Path, tmp_path: Path) -> None:
    """A new password in the file is used; a wrong one ends the store, whose session has ended."""
    file = tmp_path / "password"
    file.write_text(HEDWIG["password"])
    login = {**HEDWIG, "password": None, "password_file": str(file)}
    with bk.open_store(server.url, **login, session_timeout=4) as store:
        server.kill()
        jaas.write_text(_JAAS.format(users='user_hedwig="second"'))
        file.write_text("second")
        server.start()
        store.put("/a", b"1").result()
        server.kill()
        # The client tries an empty server again when its session has ended.
        shutil.rmtree(server.directory / "data")
        jaas.write_text(_JAAS.format(users='user_hedwig="third"'))
        server.start()
        for _ in range(2):
            with pytest.raises(bk.AuthenticationError, match="refuses the SASL login") as raised:
                store.put("/a", b"2").result()
            assert not raised.value.retriable
        # It is not tried again and again.
        assert server.log.read_text().count("failed to SASL authenticate") == 1


def test_a_server_without_sasl(zookeeper_server: ZooKeeperServer) -> None:
    """Such a server would answer each step of a login with nothing, and let the client in."""
    with pytest.raises(bk.AuthenticationError, match="no SASL login"):
        bk.open_store(zookeeper_server.url, **HEDWIG)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, before anything is connected."""
    for sasl, module, extra in (
        ("digest-md5", "puresasl.client", "sasl"),
        ("gssapi", "kerberos", "kerberos"),
    ):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            with pytest.raises(bk.UnsupportedError, match=rf"batchkeeper\[{extra}\]"):
                bk.open_store("zk://127.0.0.1:1", **{**HEDWIG, "sasl": sasl})

"""The HBase store with TLS on a real server. It installs the server's jars first."""

from __future__ import annotations

import os
import shutil
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

import batchkeeper as bk
from batchkeeper.stores.hbase.cluster import answers
from batchkeeper.stores.tls import TlsFiles, TlsSettings
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.local import ServerMember
from batchkeeper.testing.servers.releases import parse_release

from ...forks import holds_in_a_child
from ...waiting import PATIENCE, error, result, until
from ..secured import Certificates

pytestmark = [pytest.mark.soak, pytest.mark.server]


class TlsHBase(HBaseServer):
    """An HBase that speaks TLS alone, and only with clients that have a certificate."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory / "certificates")
        self._keys = directory / "server.pem"
        super().__init__(
            directory / "server",
            settings={
                "hbase.server.netty.tls.enabled": "true",
                "hbase.server.netty.tls.supportplaintext": "false",
                "hbase.server.netty.tls.client.auth.mode": "NEED",
                # The region server is a client of the master.
                "hbase.client.netty.tls.enabled": "true",
                # The default is TLSv1.2 alone.
                "hbase.rpc.tls.enabledProtocols": "TLSv1.3,TLSv1.2",
                "hbase.rpc.tls.keystore.location": str(self._keys),
                "hbase.rpc.tls.truststore.location": str(self.certificates.ca),
            },
        )

    def _command(self, member: ServerMember) -> list[str]:
        cert, key = self.certificates.issue("server")
        # Java reads the key in this form, from the file of the certificates.
        self._keys.write_bytes(encoded(key) + cert.read_bytes())
        return super()._command(member)

    def _answers(self, member: ServerMember) -> bool:
        cert, key = self.certificates.issue("harness")
        files = TlsFiles(str(self.certificates.ca), str(cert), str(key))
        return answers(f"127.0.0.1:{member.ports[0]}", TlsSettings(files))

    def url_of(self, table: str, host: str = "127.0.0.1", **options: Path | str | None) -> str:
        """Return a client's URL, with a certificate unless the options say otherwise."""
        cert, key = self.certificates.issue("client")
        named = {"ca": self.certificates.ca, "cert": cert, "key": key} | options
        query = "&".join(f"{name}={value}" for name, value in named.items() if value is not None)
        return f"hbases://{host}:{self.members[0].ports[0]}/{table}?{query}"


def encoded(key: Path, passphrase: bytes | None = None) -> bytes:
    """Return a key in the form of PKCS 8, encrypted with a passphrase if there is one."""
    how = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    loaded = load_pem_private_key(key.read_bytes(), None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsHBase]:
    """An HBase for the tests of this module."""
    install(parse_release("hbase@2.6"))
    with TlsHBase(tmp_path_factory.mktemp("hbase")) as made:
        yield made


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ssl.TLSVersion:
    """The newest version that clients offer."""
    newest: ssl.TLSVersion = request.param
    context = TlsFiles.context

    def limited(files: TlsFiles) -> ssl.SSLContext:
        made = context(files)
        made.maximum_version = newest
        return made

    monkeypatch.setattr(TlsFiles, "context", limited)
    return newest


def reading() -> int:
    """Return how many threads of connections there are."""
    return sum(thread.name.startswith("hbase-") for thread in threading.enumerate())


def test_a_client_without_a_certificate_is_refused(
    server: TlsHBase, version: ssl.TLSVersion
) -> None:
    """At once, although TLS 1.3 tells it after the handshake; so is one of another authority."""
    strange = dict(zip(("cert", "key"), server.certificates.issue("b", "other"), strict=True))
    for options in ({"cert": None, "key": None}, strange):
        for _ in range(10):
            began = time.monotonic()
            with pytest.raises(bk.AuthenticationError, match="options 'cert' and 'key'"):
                bk.open_store(server.url_of("t", **options), connect_timeout=PATIENCE)
            assert time.monotonic() - began < 10.0
    until(lambda: not reading())


def test_a_server_that_is_not_trusted(server: TlsHBase, tmp_path: Path) -> None:
    """Its authority is another one, or its name; the message says what to do."""
    other = Certificates(tmp_path / "other").ca
    began = time.monotonic()
    for url, remedy in (
        (server.url_of("t", ca=other), "the option 'ca' names the authorities"),
        (server.url_of("t", ca=None), "the option 'ca' names the authorities"),
        (server.url_of("t", "localhost"), "not valid for 'localhost'; .*check_hostname=false"),
    ):
        with pytest.raises(bk.StoreUnavailableError, match=remedy):
            bk.open_store(url, connect_timeout=PATIENCE)
    assert time.monotonic() - began < 30.0
    # Another server may be trusted, once it is back.
    began = time.monotonic()
    with pytest.raises(bk.StoreUnavailableError, match="the option 'ca' names the authorities"):
        bk.open_store(server.url_of("t", "127.0.0.1:1,127.0.0.1", ca=other), connect_timeout=1.0)
    assert time.monotonic() - began > 0.9
    url = server.url_of("t", "localhost", check_hostname="false")
    with bk.open_store(url, connect_timeout=PATIENCE) as store:
        assert result(store.put("/a", b"1")).version >= 0
    until(lambda: not reading())


def test_tls_on_the_server_alone(server: TlsHBase) -> None:
    """The message names both schemes."""
    began = time.monotonic()
    with pytest.raises(bk.StoreUnavailableError, match="hbases:// is with TLS, hbase:// without"):
        bk.open_store(server.url, connect_timeout=2.0)
    assert time.monotonic() - began < 10.0
    until(lambda: not reading())


def test_an_encrypted_key(server: TlsHBase, tmp_path: Path) -> None:
    """It needs its passphrase, from a file."""
    cert, key = server.certificates.issue("other")
    encrypted, passphrase = tmp_path / "key", tmp_path / "passphrase"
    encrypted.write_bytes(encoded(key, b"secret"))
    passphrase.write_text("secret\n")
    files: dict[str, Path | str | None] = {"cert": cert, "key": encrypted}
    with pytest.raises(bk.InvalidSettingError, match="'key_passphrase_file'"):
        bk.open_store(server.url_of("t", **files))
    url = server.url_of("t", key_passphrase_file=passphrase, **files)
    with bk.open_store(url, connect_timeout=PATIENCE) as store:
        assert result(store.get("/none")) is None


def test_large_values_pass_both_ways_at_once(server: TlsHBase, version: ssl.TLSVersion) -> None:
    """Eight threads put and get values of up to 5 MiB, and each gets what it has put."""
    sizes = (5 * 1024 * 1024, 5 * 1024 * 1024, 0, 300_000, 16 * 1024, 1)
    with bk.open_store(server.url_of("large"), connect_timeout=PATIENCE) as store:

        def work(number: int) -> None:
            for turn, size in enumerate(sizes):
                value = bytes([number, turn]) * ((size + 1) // 2)
                put = store.put(f"/{number}/{turn}", value)
                if turn:  # Both ways: the value before comes while this one goes.
                    assert result(store.get(f"/{number}/{turn - 1}")) is not None
                result(put)
                found = result(store.get(f"/{number}/{turn}"))
                assert found is not None
                assert found.value == value

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))


def test_a_forked_child_leaves_the_connection_alone(server: TlsHBase) -> None:
    """It raises and closes at once; the parent's connection goes on."""
    with bk.open_store(server.url_of("forks"), connect_timeout=PATIENCE) as store:
        before = store.metrics().reconnects
        for number in range(3):
            assert result(store.put("/a", b"1")).version >= number

            def refused() -> bool:
                try:
                    store.get("/a").result(5.0)
                except bk.StoreClosedError:
                    store.close()
                    return True
                return False

            assert holds_in_a_child(refused)
        assert result(store.get("/a")) is not None
        assert store.metrics().reconnects == before


def test_a_store_goes_on_with_a_server_that_has_another_certificate(
    server: TlsHBase, tmp_path: Path
) -> None:
    """After a kill; first with the old authority, then with a new one, once the files have it."""
    names = ("ca", "cert", "key")

    def renew(*options: str) -> None:
        made = (server.certificates.ca, *server.certificates.issue("client"))
        for name, file in zip(names, made, strict=True):
            if name in options:
                shutil.copy(file, tmp_path / f"{name}.new")
                os.replace(tmp_path / f"{name}.new", tmp_path / name)

    renew(*names)
    files = {name: tmp_path / name for name in names}
    url = server.url_of("renewed", **files)
    with bk.open_store(url, connect_timeout=PATIENCE, operation_timeout=PATIENCE) as store:
        version = result(store.put("/a", b"1")).version
        server.kill()
        put = store.put("/a", b"2")
        server.restart()
        assert result(put).version == version + 1
        server.kill()
        server.certificates.renew()
        server.restart()
        failed = error(store.put("/a", b"3", timeout=2.0))
        assert isinstance(failed, bk.StoreUnavailableError)
        assert "the option 'ca' names the authorities" in str(failed)
        renew("ca")
        failed = error(store.put("/a", b"3", timeout=2.0))
        assert isinstance(failed, bk.AuthenticationError)
        renew("cert")  # which the key does not belong to: nothing changes
        assert isinstance(error(store.put("/a", b"3", timeout=1.0)), bk.MetadataStoreError)
        renew(*names)
        assert result(store.put("/a", b"3")).version == version + 2
        found = result(store.get("/a"))
        assert found is not None
        assert found.value == b"3"
    until(lambda: not reading())

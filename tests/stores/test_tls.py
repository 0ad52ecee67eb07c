"""The files of a TLS client, on every store that takes them."""

from __future__ import annotations

import codecs
import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import batchkeeper as bk
from batchkeeper.stores.tls import TlsFiles, TlsSettings

from .secured import Certificates


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files that are right, and some that are not."""
    certificates = Certificates(tmp_path / "certificates")
    cert, key = certificates.issue("a")
    _, other = certificates.issue("b")
    encrypted, garbage = tmp_path / "encrypted.pem", tmp_path / "garbage.pem"
    encrypted.write_bytes(
        load_pem_private_key(key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        )
    )
    garbage.write_text("-----BEGIN NONSENSE-----")
    marked = tmp_path / "marked.pem"
    marked.write_bytes(codecs.BOM_UTF8 + certificates.ca.read_bytes())
    return {
        "ca": certificates.ca,
        "cert": cert,
        "key": key,
        "other": other,
        "encrypted": encrypted,
        "garbage": garbage,
        "marked": marked,
        "missing": tmp_path / "missing",
    }


@pytest.mark.parametrize(
    "url", ["etcds://127.0.0.1:1?", "zk://127.0.0.1:1?use_ssl=true&", "hbases://127.0.0.1:1?"]
)
def test_files_are_checked_before_anything_connects(url: str, files: dict[str, Path]) -> None:
    """The error names the option, the file and the reason, and nothing asks for a passphrase."""
    right = {name: files[name] for name in ("ca", "cert", "key")}
    TlsFiles(**{name: str(file) for name, file in right.items()}).context()
    assert TlsFiles(ca=str(files["marked"])).read()[0] == files["ca"].read_bytes()
    for option, wrong, reason in (
        ("ca", "missing", "cannot read .*No such file"),
        ("ca", "garbage", "no valid PEM file"),
        ("cert", "garbage", "no valid PEM file"),
        ("cert", "key", "no valid PEM file"),
        ("key", "garbage", "no valid PEM file"),
        ("key", "other", "cannot be used with .*mismatch"),
        ("key", "encrypted", "is encrypted; name a key without a passphrase"),
    ):
        options = "&".join(f"{n}={f}" for n, f in (right | {option: files[wrong]}).items())
        with pytest.raises(bk.InvalidSettingError, match=reason) as caught:
            bk.open_store(url + options)
        assert f"option {option!r}" in str(caught.value)
        assert str(files[wrong]) in str(caught.value)


def test_the_passphrase_of_a_key(files: dict[str, Path], tmp_path: Path) -> None:
    """It is the first line of a file, which must be the right one."""
    names = {name: str(files[name]) for name in ("ca", "cert")} | {"key": str(files["encrypted"])}
    secret = tmp_path / "passphrase"
    names["key_passphrase_file"] = str(secret)
    for right in (b"secret", b"secret\r\nmore", codecs.BOM_UTF8 + b"secret\n"):
        secret.write_bytes(right)
        TlsFiles(**names).context()
    for wrong in (b"wrong", b"", b"x" * 2000):
        secret.write_bytes(wrong)
        with pytest.raises(bk.InvalidSettingError, match=r"option 'key': .* is not decrypted by"):
            TlsFiles(**names).context()
    secret.unlink()
    with pytest.raises(bk.InvalidSettingError, match="option 'key_passphrase_file' must name"):
        TlsFiles(**names).context()
    with pytest.raises(bk.InvalidSettingError, match="'key_passphrase_file' needs the option"):
        TlsFiles(key_passphrase_file=str(secret))


def test_settings_follow_their_files(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Files that have changed are used; what has become useless changes nothing, and is logged."""
    settings = TlsSettings(TlsFiles(ca=str(files["ca"])), check_hostname=False)
    first = settings.now()
    assert not first.check_hostname
    assert settings.now() is first
    content = files["ca"].read_bytes()
    files["ca"].write_bytes(content[:100])
    assert settings.now() is first
    assert settings.now() is first
    said = [record for record in caplog.records if "not renewed" in record.getMessage()]
    assert len(said) == 1
    files["ca"].write_bytes(content + content)
    second = settings.now()
    assert second is not first
    assert not second.check_hostname
    files["ca"].unlink()
    assert settings.now() is second


def test_a_zookeeper_that_asks_for_a_certificate_is_told_at_once(tmp_path: Path) -> None:
    """A missing certificate is no outage, although the server says so after the handshake."""
    certificates = Certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue(None))
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    with context.wrap_socket(
                        accepted, server_side=True, do_handshake_on_connect=False
                    ) as encrypted:
                        with suppress(ssl.SSLError):
                            encrypted.do_handshake()
                        while os.read(encrypted.fileno(), 4096):
                            pass

        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(bk.AuthenticationError, match="options 'cert' and 'key'"):
            bk.open_store(
                f"zk://127.0.0.1:{listener.getsockname()[1]}?use_ssl=true&ca={certificates.ca}",
                connect_timeout=60,
            )

"""A ZooKeeper that also listens with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from batchkeeper.testing.servers import ZooKeeperServer
from batchkeeper.testing.servers.processes import free_ports

__all__ = ["TlsZooKeeper"]


class TlsZooKeeper(ZooKeeperServer):
    """A ZooKeeper whose TLS port accepts only clients with a certificate of its authority.

    Attributes:
        tls_address: the address at which it listens with TLS.
    """

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        directory.mkdir(exist_ok=True)
        self._folder = directory.absolute()
        self._authority = trustme.CA()
        self._ca = self._folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self._ca))
        self._server_cert = self._issue("server")
        (self._port,) = free_ports(1)
        self.tls_address = f"127.0.0.1:{self._port}"

    def _issue(self, name: str) -> Path:
        """Write a certificate and its key into one file, as Java and Python both read it."""
        issued = self._authority.issue_cert("127.0.0.1", common_name=name)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        file = self._folder / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        )
        return file

    def _command(self, member: Any) -> list[str]:
        command = super()._command(member)
        with (self._folder / "zoo.cfg").open("a") as settings:
            settings.write(
                f"secureClientPort={self._port}\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={self._server_cert}\n"
                f"ssl.trustStore.location={self._ca}\n"
            )
        return command

    def tls_url(self, name: str) -> str:
        """Return a URL for a client with a certificate of this name, which is also its login."""
        client = self._issue(name)
        return (
            f"zookeeper://{self.tls_address}?use_ssl=true&ca={self._ca}&cert={client}&key={client}"
        )

"""An etcd that authenticates its clients, by a login or by a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import grpc
import trustme

from batchkeeper.stores import ConnectOptions
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer
from batchkeeper.testing.servers.local import ServerMember
from batchkeeper.testing.servers.processes import free_ports

LIMITED = ConnectOptions(username="limited", password="limited's")
ROOT = Credentials(username="root", password="root's")


def secured(server: EtcdServer, key: bytes = b"/ok", end: bytes = b"/ok0") -> None:
    """Turn on etcd's authentication, with a user that may only read and write below /ok."""
    with grpc.insecure_channel(server.address) as channel:
        stub = grpc_stubs.AuthStub(channel)
        permission = messages.AuthRoleGrantPermissionRequest(name="some")
        permission.perm.permType = 2  # READWRITE
        permission.perm.key, permission.perm.range_end = key, end
        for user, role in (("root", "root"), ("limited", "some")):
            stub.UserAdd(messages.AuthUserAddRequest(name=user, password=f"{user}'s"))
            stub.RoleAdd(messages.AuthRoleAddRequest(name=role))
            stub.UserGrantRole(messages.AuthUserGrantRoleRequest(user=user, role=role))
        stub.RoleGrantPermission(permission)
        stub.AuthEnable(messages.AuthEnableRequest())


class Certificates:
    """Certificates for 127.0.0.1 in a folder, of a trusted authority or of another one.

    Attributes:
        ca: the certificate of the trusted authority.
        expired: whether certificates that are issued from now on have expired.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.ca = folder / "ca.pem"
        self.expired = False
        self.renew()

    def renew(self) -> None:
        """Let another authority be the trusted one."""
        self._authorities = {"trusted": trustme.CA(), "other": trustme.CA()}
        self._authorities["trusted"].cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str | None, authority: str = "trusted") -> tuple[Path, Path]:
        """Return the files of a certificate with a common name, and of its key."""
        end = datetime(2020, 1, 1, tzinfo=UTC) if self.expired else None
        issued = self._authorities[authority].issue_cert(
            "127.0.0.1", common_name=name, not_after=end
        )
        cert, key = (self._folder / f"{authority}-{name}.{kind}" for kind in ("crt", "key"))
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return cert, key


class TlsEtcd(EtcdServer):
    """An etcd that also listens with TLS.

    Args:
        directory: see :class:`LocalServer`.
        asks: whether it accepts only clients with a certificate on the TLS port.

    Attributes:
        secured: whether it checks the permissions of users; tests set it.
    """

    secured = False

    def __init__(self, directory: Path, *, asks: bool) -> None:
        super().__init__(directory)
        directory.mkdir(exist_ok=True)
        self._asks = asks
        self.certificates = Certificates(directory / "certificates")
        self._tls_port = free_ports(1)[0]

    @property
    def tls_address(self) -> str:
        """The address at which it listens with TLS."""
        return f"127.0.0.1:{self._tls_port}"

    def _command(self, member: ServerMember) -> list[str]:
        cert, key = map(str, self.certificates.issue(None))
        clients = f"http://127.0.0.1:{member.ports[0]},https://{self.tls_address}"
        command = [
            *super()._command(member),
            *("--listen-client-urls", clients),
            *("--cert-file", cert, "--key-file", key),
        ]
        if self._asks:
            command += ["--client-cert-auth", "--trusted-ca-file", str(self.certificates.ca)]
        return command

    def tls_url(self, name: str | None = None, authority: str | None = None) -> str:
        """Return a URL for a client, with a certificate of an authority if one is given."""
        url = f"etcds://{self.tls_address}?ca={self.certificates.ca}"
        if authority is None:
            return url
        cert, key = self.certificates.issue(name, authority)
        return f"{url}&cert={cert}&key={key}"

"""Who may reach a hub: TLS, tokens, and what a connection has proved about its client."""

from __future__ import annotations

import os
import socket
import ssl
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import grpc

from ...ops.errors import AuthenticationError, InvalidSettingError
from ..errors import AccessDeniedError
from .errors import bad_address

__all__ = [
    "HubTLS",
    "Token",
    "Tokens",
    "address_text",
    "bearer",
    "check_loopback",
    "check_who",
    "identity_of",
    "named_by",
    "place",
]

#: Names the client of each token, or returns ``None`` for a token that nobody has.
Tokens: TypeAlias = Mapping[str, str] | Callable[[str], str | None]
#: The token of a client, or a function that returns the current one.
Token: TypeAlias = str | Callable[[], str]

_HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTLS:
    """TLS between hubs and clients: the paths of PEM files, for a hub or for a client.

    The files are read again for each new connection, so renewed files take effect without a
    restart.

    Attributes:
        certificate: the own certificate, with its chain. A hub needs one.
        key: its private key, not encrypted.
        ca: the certificates that have signed those of the other side. A hub with it accepts only
            clients that have such a certificate: mutual TLS. A client without it trusts the
            authorities that gRPC brings.

    Raises:
        InvalidSettingError: a file is missing or invalid, or the key is encrypted or belongs to
            another certificate. The error names the file.
    """

    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    ca: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidSettingError("a certificate needs its key, and a key its certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        files = f"certificate {str(self.certificate)!r} and key {str(self.key)!r}"
        try:
            self._contents()  # Its errors name the file, unlike those of the context.
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_encrypted)
            files = f"ca {str(self.ca)!r}"
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise InvalidSettingError(f"{files} cannot be used: {error}") from error
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            raise InvalidSettingError(f"a TLS file cannot be read: {error}") from error

    def of_client(self) -> grpc.ChannelCredentials:
        """Return the credentials of a client's connection, from the files as they are now.

        Raises:
            OSError: a file cannot be read.
        """
        certificate, key, ca = self._contents()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def of_server(self) -> grpc.ServerCredentials:
        """Return the credentials of a hub, which read the files again for each connection.

        Raises:
            InvalidSettingError: there is no certificate.
        """
        if self.certificate is None:
            raise InvalidSettingError("a hub's TLS needs a certificate and its key")

        def configuration() -> Any:
            try:
                certificate, key, ca = self._contents()
            except OSError:
                return None  # The last ones stay in use.
            pair: Any = (key, certificate)  # Both are there.
            return grpc.ssl_server_certificate_configuration([pair], ca)

        return grpc.dynamic_ssl_server_credentials(
            configuration(), configuration, require_client_authentication=self.ca is not None
        )

    def _contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        certificate, key, ca = (
            None if path is None else Path(path).read_bytes().removeprefix(BOM_UTF8)
            for path in (self.certificate, self.key, self.ca)
        )
        return certificate, key, ca


def _encrypted() -> NoReturn:
    raise InvalidSettingError("the key is encrypted: give one that is not")


def bearer(token: Token | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that present a token."""
    if token is None:
        return ()
    return ((_HEADER, f"{_SCHEME}{token() if callable(token) else token}"),)


def identity_of(context: Any, tokens: Tokens | None) -> str | None:
    """Return who a client has proved to be: by its token, or else by its certificate.

    With a certificate, that is its common name. ``None`` if the hub asks for no proof.

    Args:
        context: the call, as gRPC gives it to its handler.
        tokens: those that the hub knows.

    Raises:
        AuthenticationError: the token is missing or unknown, or the certificate has no name.
    """
    if tokens is not None:
        return named_by(context.invocation_metadata(), tokens)
    proof = context.auth_context()
    if "x509_pem_cert" not in proof:
        return None
    for name in proof.get("x509_common_name", ()):
        return str(name, "utf-8", "surrogateescape")
    raise AuthenticationError("the certificate of the client has no common name")


def named_by(metadata: Any, tokens: Tokens) -> str:
    """Return who a client is by the token in the metadata of its call.

    Raises:
        AuthenticationError: the token is missing or unknown.
    """
    header = dict(metadata).get(_HEADER)
    token = header.removeprefix(_SCHEME) if isinstance(header, str) else ""
    found = tokens(token) if callable(tokens) else tokens.get(token)
    if not token or found is None:
        raise AuthenticationError("the hub asks for a token, and does not know this one")
    return found


def check_who(identity: str | None, who: str) -> None:
    """Refuse a client that uses another name than its own.

    Raises:
        AccessDeniedError: it does.
    """
    if identity is not None and who != identity:
        raise AccessDeniedError(
            f"the client is {identity!r:.200}, and must not act as {who!r:.200}"
        )


def check_loopback(host: str, remedy: str) -> None:
    """Refuse a host that other machines can reach, or that is another machine.

    Raises:
        InvalidSettingError: the host is not a loopback address. The message ends in the remedy.
        OSError: the host cannot be looked up.
    """
    try:
        found = socket.getaddrinfo(host or "::", None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise bad_address(host) from error
    if not all(ip_address(str(where[0]).partition("%")[0]).is_loopback for *_, where in found):
        raise InvalidSettingError(f"{host!r:.200} is not on loopback: {remedy}")


def place(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConnectionAbortedError: the address has no port.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise bad_address(address)
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_text(host: str, port: int) -> str:
    """Return the address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

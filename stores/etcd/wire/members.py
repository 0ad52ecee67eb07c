"""The members of an etcd cluster: their addresses, the client's login, and their versions.

The client *greets* a member before it uses it. The login comes first: from 3.5.28 and 3.6.0 on,
etcd shows its version only to clients that have logged in (CVE-2026-33413), and some releases, such
as 3.6.11, only to root (etcd #21666).
"""

from __future__ import annotations

import importlib
import json
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import grpc

from ....ops.errors import AuthenticationError, InvalidSettingError
from ...tls import REFUSED_CERTIFICATE, TlsFiles
from .errors import Reason, Verdict, failure_of, short
from .protos import grpc_stubs, messages

__all__ = [
    "ANSWER_BYTES",
    "LOGIN_HELP",
    "REQUIRE_LEADER",
    "Credentials",
    "EtcdMember",
    "Link",
    "checks_nested_permissions",
    "greet",
    "may_lose_writes",
    "streams_ranges",
    "tells_leases",
    "tells_progress",
]

#: The largest answer that the client accepts, be it one value or a page of names.
ANSWER_BYTES: Final = 32 * 1024 * 1024
_CHANNEL_OPTIONS: Final = (
    # A read with a larger answer is repeated in parts. A write with one was applied, and its
    # results are read back.
    ("grpc.max_receive_message_length", ANSWER_BYTES),
    ("grpc.max_send_message_length", -1),
    # A dead peer is noticed after 15 s. etcd drops clients that ping more often than every 5 s,
    # or while they have no call open.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC measures the line by pings of its own. One that is under way holds back the others.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    # A host that moves gets a new address. By default, gRPC asks for it every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # This package decides about retries. Without gRPC's own machinery for them, a call is a few
    # percent faster.
    ("grpc.enable_retries", 0),
    # The store has its own connections, with their own back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

#: The help in a message if etcd requires a login.
LOGIN_HELP: Final = (
    "pass a username and a password, or a client certificate whose common name is a user name"
)

#: With this metadata, a member that loses its leader ends the stream, instead of saying nothing.
REQUIRE_LEADER: Final = ("hasleader", "true")

# Seconds for requests outside gRPC, which find out what gRPC does not report.
_PATIENCE: Final = 2.0


class Credentials:
    """The client's identity: a login, a certificate, or none.

    Args:
        username: for a login, together with ``password``.
        password: never part of a message or a representation.
        password_now: returns it as it is now; called at each login.
        tls: whether connections are encrypted.
        ca: a file with the certificates to trust; by default, gRPC's own.
        cert: a file with the client's certificate chain, together with ``key``.
        key: a file with its private key.

    Attributes:
        username: as given.
        identified: whether etcd knows the client's identity, and so may limit its permissions.
        channel: the credentials for gRPC; ``None`` without encryption.

    Raises:
        InvalidSettingError: half of a pair is missing, or a file is of no use.
    """

    def __init__(
        self,
        *,
        username: str | None = None,
        password: str | None = None,
        password_now: Callable[[], str | None] | None = None,
        tls: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        if (username is None) != (password is None):
            raise InvalidSettingError("a login needs both a username and a password")
        self.username = username
        self._password = password_now or (lambda: password)
        self._files = TlsFiles(ca, cert, key) if tls else None
        self._contents: tuple[bytes | None, ...] | None = None
        self.identified = username is not None or cert is not None
        self.channel: grpc.ChannelCredentials | None = None
        self.renew()

    def request(self) -> Any:
        """Return the request that logs in."""
        return messages.AuthenticateRequest(name=self.username, password=self._password())

    def renew(self) -> bool:
        """Read the files again; say whether they, and so ``channel``, have changed.

        Raises:
            InvalidSettingError: a file is of no use. The credentials are the old ones.
        """
        if self._files is None or (contents := self._files.read()) == self._contents:
            return False
        self._files.context()  # checks them
        ca, cert, key, _ = self._contents = contents
        self.channel = grpc.ssl_channel_credentials(ca, key, cert)
        return True

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings for HTTP, or ``None`` without encryption.

        Raises:
            InvalidSettingError: a file is of no use any more.
        """
        return None if self._files is None else self._files.context()


class Calls:
    """The calls on one channel to a member."""

    def __init__(self, channel: grpc.Channel) -> None:
        # etcd3's stub for transactions takes messages. These are bytes already, and the size of a
        # response matters, too.
        self.txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn", request_serializer=None, response_deserializer=None
        )
        # etcd3 does not know all fields of a watch's request, so these are bytes as well.
        self.watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=None,
            response_deserializer=messages.WatchResponse.FromString,
        )
        # A page is parsed when it is needed, into columns. etcd3 has no streams of ranges.
        asked = messages.RangeRequest.SerializeToString
        self.page = channel.unary_unary(
            "/etcdserverpb.KV/Range", request_serializer=asked, response_deserializer=None
        )
        self.range_stream = channel.unary_stream(
            "/etcdserverpb.KV/RangeStream", request_serializer=asked, response_deserializer=None
        )
        self.range = grpc_stubs.KVStub(channel).Range
        self.delete_range = grpc_stubs.KVStub(channel).DeleteRange
        self.grant = grpc_stubs.LeaseStub(channel).LeaseGrant
        self.revoke = grpc_stubs.LeaseStub(channel).LeaseRevoke
        self.time_to_live = grpc_stubs.LeaseStub(channel).LeaseTimeToLive
        self.keep_alive = grpc_stubs.LeaseStub(channel).LeaseKeepAlive
        self.status = grpc_stubs.MaintenanceStub(channel).Status
        self.authenticate = grpc_stubs.AuthStub(channel).Authenticate


class EtcdMember:
    """One member of the cluster: its channel and the calls on it.

    Attributes:
        connected: whether there is a connection, judging by the calls so far: the member has
            answered, and no later call has found the connection broken. Any thread sets it, without
            a lock.
        trouble: why the last attempt to connect failed, if the host's name could not be looked up
            or its certificate is not trusted; otherwise ``None``. Any thread sets it.
        distrust: why the certificate was not trusted at the last greeting, or ``None``.
    """

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.connected = False
        self.trouble: str | None = None
        self.distrust: str | None = None
        self._former: grpc.Channel | None = None
        self._open(credentials)

    def renew(self, credentials: grpc.ChannelCredentials | None) -> None:
        """Use other credentials for new calls. The calls under way go on, until the next change."""
        if self._former is not None:
            self._former.close()
        self._former = self.channel
        self._open(credentials)

    def close(self) -> None:
        """End the calls under way, and refuse new ones."""
        self.channel.close()
        if self._former is not None:
            self._former.close()

    def _open(self, credentials: grpc.ChannelCredentials | None) -> None:
        self.channel: grpc.Channel = (
            grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
            if credentials is None
            else grpc.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)
        )
        self.calls = Calls(self.channel)


class Link(NamedTuple):
    """A member that has answered, with its calls and their metadata.

    Attributes:
        address: the member's ``host:port``.
        calls: the calls on its channel.
        version: its version of etcd; ``None`` if it does not show it to this user.
        nesting: whether nested transactions are safe with respect to permissions.
        metadata: what each call carries: a token, if there is a login.
    """

    address: str
    calls: Calls
    version: str | None
    nesting: bool
    metadata: tuple[tuple[str, str], ...]


def greet(member: EtcdMember, credentials: Credentials, left: Callable[[], float]) -> Link:
    """Log in to a member, ask for its version, and return a link to it.

    Args:
        member: the member.
        credentials: the client's identity.
        left: returns the seconds that the next call may take.

    Raises:
        AuthenticationError: the login or the certificate was refused, or etcd requires one and none
            is given.
        grpc.RpcError: the member is of no use, for now or for good. ``member.distrust`` says why
            its certificate is not trusted, if it is not.
        ValueError: from gRPC, for a call on a closed channel.
    """
    member.distrust = None
    try:
        metadata = _log_in(member, credentials, left)
        version = _version_of(member, credentials, metadata, left)
    except grpc.RpcError as error:
        failure, _, message = failure_of(error, write=False)
        if failure.reason is Reason.UNREACHABLE:
            member.distrust = _distrust(member.address, credentials, left(), message, error)
        raise
    nesting = not credentials.identified or checks_nested_permissions(version)
    return Link(member.address, member.calls, version, nesting, metadata)


def _log_in(
    member: EtcdMember, credentials: Credentials, left: Callable[[], float]
) -> tuple[tuple[str, str], ...]:
    """Return the metadata that each call carries: a token, if there is a login."""
    if credentials.username is None:
        return ()
    try:
        answer = member.calls.authenticate(credentials.request(), timeout=left())
    except grpc.RpcError as error:
        failure, _, message = failure_of(error, write=False)
        if failure.reason is Reason.AUTH_DISABLED:
            return ()  # as in the Go client: no login is required
        if failure.verdict is not Verdict.REFUSED or failure.reason is Reason.NOT_ETCD:
            raise
        raise AuthenticationError(
            f"etcd at {member.address} refused the login of user "
            f"{credentials.username!r}: {short(message)}"
        ) from error
    # As metadata of our own: current gRPC refuses call credentials without TLS.
    return (("token", answer.token),)


def _version_of(
    member: EtcdMember,
    credentials: Credentials,
    metadata: tuple[tuple[str, str], ...],
    left: Callable[[], float],
) -> str | None:
    """Return the version of a member; ``None`` if it does not show it to this user."""
    try:
        status = member.calls.status(messages.StatusRequest(), timeout=left(), metadata=metadata)
    except grpc.RpcError as error:
        (verdict, reason), _, message = failure_of(error, write=False)
        if verdict is Verdict.LOGIN and credentials.username is None:
            raise AuthenticationError(
                f"etcd at {member.address} requires a login: {short(message)}; {LOGIN_HELP}"
            ) from error
        if verdict is not Verdict.REFUSED or reason is Reason.NOT_ETCD:
            raise
        if reason is not Reason.NOT_PERMITTED:
            # The common name of a certificate is no user's; some versions of etcd check it here.
            raise AuthenticationError(
                f"etcd at {member.address} refuses the user: {short(message)}"
            ) from error
    else:
        return str(status.version)
    if not credentials.identified:
        return None  # The version matters only for identified clients.
    return _version_over_http(member.address, credentials, min(left(), _PATIENCE))


def _version_over_http(address: str, credentials: Credentials, timeout: float) -> str | None:
    """Return the version that a member shows everyone at ``/version``; ``None`` without one."""
    http = importlib.import_module("http.client")  # It is slow to import, and few logins need it.
    host, port = _host_and_port(address)
    connection = None
    try:
        context = credentials.tls()
        connection = (
            http.HTTPConnection(host, port, timeout=timeout)
            if context is None
            else http.HTTPSConnection(host, port, timeout=timeout, context=context)
        )
        connection.request("GET", "/version")
        return str(json.load(connection.getresponse())["etcdserver"])
    except (OSError, http.HTTPException, ValueError, LookupError, TypeError):
        # InvalidSettingError is a ValueError.
        return None  # Another server answers there, or none does: the version stays unknown.
    finally:
        if connection is not None:
            connection.close()


def _distrust(
    address: str, credentials: Credentials, timeout: float, message: str, cause: grpc.RpcError
) -> str | None:
    """Say why a member's certificate is not trusted; ``None`` if that is not the reason.

    gRPC does not report it: with TLS 1.3, the refusal of the client's certificate comes after its
    handshake, as a lost connection; and why it does not trust a server stands in its log alone.

    Raises:
        AuthenticationError: the member refuses the client's certificate, or asks for one.
    """
    if credentials.channel is None:
        return None
    host, port = _host_and_port(address)
    timeout = min(timeout, _PATIENCE)
    # Without `ca`, gRPC has authorities of its own, and may refuse what this handshake accepts.
    fault = short(message) if "CERTIFICATE_VERIFY_FAILED" in message else None
    refusal = None
    try:
        context = credentials.tls()
        assert context is not None
        context.set_alpn_protocols(["h2"])  # With it, the server speaks first.
        with (
            socket.create_connection((host, port), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            encrypted.recv(1)
    except ssl.SSLCertVerificationError as error:
        fault = f"CERTIFICATE_VERIFY_FAILED: {error.verify_message}"
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "CERTIFICATE_REQUIRED" in reason:
            refusal = "requires a client certificate"
        elif REFUSED_CERTIFICATE.search(reason):
            refusal = f"refuses the client's certificate, or requires one ({reason})"
    except (OSError, InvalidSettingError):
        pass
    if refusal is not None:
        raise AuthenticationError(
            f"etcd at {address} {refusal}; name the client's certificate and its key in the "
            f"options 'cert' and 'key'"
        ) from cause
    return fault and (
        f"the certificate of etcd at {address} is not trusted: {fault}; the option 'ca' names the "
        f"authorities to trust"
    )


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def checks_nested_permissions(version: str | None) -> bool:
    """Say whether an etcd of this version checks permissions inside nested transactions.

    Source: CVE-2026-33343 and CVE-2026-44283, fixed in 3.4.44, 3.5.30, 3.6.11 and 3.7.0-beta.0.
    """
    if version is None or version.startswith("3.7.0-alpha"):
        return False
    return _reaches(version, {(3, 4): 44, (3, 5): 30, (3, 6): 11}, since=(3, 7))


def may_lose_writes(version: str | None) -> bool:
    """Say whether an etcd of this version can lose writes that it has acknowledged.

    Source: etcd #13766 (3.5.0 to 3.5.2) and #14370 (a single member; fixed in 3.4.21 and 3.5.5).
    """
    if version is None or not re.match(r"\d+\.\d+\.\d", version):
        return False
    return not _reaches(version, {(3, 4): 21, (3, 5): 5}, since=(3, 6))


def tells_progress(version: str | None) -> bool:
    """Say whether an etcd of this version reports the progress of a watch correctly, and always.

    Source: etcd #15220, fixed in 3.4.31, 3.5.13 and 3.6.0. An etcd that hides its version from some
    users is 3.5.28 or newer.
    """
    return version is None or _reaches(version, {(3, 4): 31, (3, 5): 13}, since=(3, 6))


def tells_leases(version: str | None) -> bool:
    """Say whether an etcd of this version returns the lease of a key without its value.

    Source: etcd #22209, a fault of 3.7 and newer. An etcd that hides its version from some users is
    older.
    """
    return version is None or not _reaches(version, {}, since=(3, 7))


def streams_ranges(version: str | None) -> bool:
    """Say whether an etcd of this version answers a range in a stream of chunks (RangeStream)."""
    return version is not None and _reaches(version, {}, since=(3, 7))


def _reaches(version: str, mended: Mapping[tuple[int, int], int], since: tuple[int, int]) -> bool:
    """Say whether a version is one of the fixed patch releases, or at least the minor ``since``.

    Suffixes are ignored: a vendor's suffix does not mark a pre-release.
    """
    try:
        major, minor, patch = (int(part) for part in re.split("[-+]", version)[0].split("."))
    except ValueError:
        return False
    first = mended.get((major, minor))
    return (major, minor) >= since if first is None else patch >= first

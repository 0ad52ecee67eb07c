"""A store in one table of HBase: see ``layout`` for its rows, and ``writes`` for its writes."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from ...ops.errors import (
    InvalidSettingError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ..backend import Answer, Backend, Limits, ReadRequest, Scans, Tally, WriteRequest
from ..tls import TlsFiles, TlsSettings
from ..urls import ConnectOptions, StoreURL
from . import reads, tables
from .cluster import Cluster
from .layout import too_long
from .requests import Requests
from .scans import HBaseScans
from .sessions import HBaseSession
from .writes import Writer

__all__ = ["connect"]

_Request = TypeVar("_Request", ReadRequest, WriteRequest)

_PORT: Final = 16000
_FILES: Final = ("ca", "cert", "key", "key_passphrase_file")
_NAME: Final = re.compile(r"(?:([A-Za-z0-9_]+):)?([A-Za-z0-9_][A-Za-z0-9_.-]*)")
_TABLE: Final = "batchkeeper"
_MIB: Final = 1024 * 1024
# HBase refuses cells of more than 10 MiB (hbase.server.keyvalue.maxsize), with their keys.
DEFAULT_MAX_VALUE_BYTES: Final = 10 * _MIB - 64 * 1024

# Each write of a call is an append to the server's log of its own.
_WRITE_OPS: Final = 1_000
_READ_OPS: Final = 5_000
_CALL_BYTES: Final = 32 * _MIB
# What the messages of an operation add to its path and value.
_OP_BYTES: Final = 512


class _HBaseBackend:
    """The back end. Several threads send at a time, over one connection to each server."""

    history = None
    acls = None
    watches = None

    def __init__(self, cluster: Cluster, max_value_bytes: int, session_timeout: float) -> None:
        self._cluster = cluster
        self._requests = Requests(cluster)
        self._writer = Writer(cluster, self._requests)
        self.session = HBaseSession(cluster, self._requests, self._writer, session_timeout)
        self._writer.session = self.session
        self._requests.saw_sessions = self.session.observe
        self.tally = cluster.tally
        self.limits = Limits(
            write_ops=_WRITE_OPS,
            read_ops=_READ_OPS,
            request_bytes=_CALL_BYTES + max_value_bytes,
            op_bytes=_OP_BYTES,
            value_bytes=max_value_bytes,
            in_flight=4,
            singles=32,
        )
        self._scans = HBaseScans(self._requests, self._writer.remove, lambda: self.session.owner)

    @property
    def scans(self) -> Scans:
        return self._scans

    @property
    def connected(self) -> bool:
        return self._cluster.connected

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._cluster.check()
        return _fitting(self._writer.write, requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        self._cluster.check()
        read = partial(reads.read, self._requests, self.session.owner)
        return _fitting(read, requests, deadline)

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""
        self._cluster.check()

    def close(self) -> None:
        self.session.close()
        self._cluster.close()


def _fitting(
    call: Callable[[Sequence[_Request], float], Sequence[Answer]],
    requests: Sequence[_Request],
    deadline: float,
) -> Sequence[Answer]:
    """Let ``call`` answer the requests, but for those with paths that are too long.

    HBase would refuse the others with them.
    """
    refused = [
        too_long(request.path, numbered=request.options is not None and request.options.sequential)
        for request in requests
    ]
    if not any(refused):
        return call(requests, deadline)
    left = [request for request, error in zip(requests, refused, strict=True) if error is None]
    answers = iter(call(left, deadline) if left else ())
    return [next(answers) if error is None else error for error in refused]


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store ``hbase://HOST:PORT[,HOST:PORT...][/[NAMESPACE:]TABLE]``.

    The hosts are masters or region servers. The table ``batchkeeper`` is the default. A missing
    table is created, unless ``create`` is false.

    Options: ``user`` (the name of the client, by default that of the process's user) and
    ``max_value_bytes`` (just below 10 MiB). ``hbases`` uses TLS, with the options ``ca``, ``cert``,
    ``key`` and ``key_passphrase_file`` (names of files) and ``check_hostname`` (true).

    Raises:
        InvalidSettingError: an option is wrong, or the table is another one's.
        StoreUnavailableError: no server answers, or the table is missing and may not be created.
        UnsupportedError: the server is no HBase that this client knows.
        AuthenticationError: the user may not do this, or the server refuses the certificate.
    """
    encrypted = url.scheme == "hbases"
    url.check_options(
        ("user", "max_value_bytes", *((*_FILES, "check_hostname") if encrypted else ()))
    )
    if options.username is not None or options.password is not None:
        raise UnsupportedError(
            "the hbase store has no passwords: HBase knows names alone (?user=NAME), or Kerberos, "
            "which this client does not speak"
        )
    name = url.path.strip("/") or _TABLE
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidSettingError(
            f"a table of HBase must be named [NAMESPACE:]TABLE, in letters, digits, '_', '.' and "
            f"'-': {name!r} in {url.text}"
        )
    namespace, table = match[1] or "default", match[2]
    addresses = url.addresses(_PORT)
    largest = url.number("max_value_bytes", DEFAULT_MAX_VALUE_BYTES)
    tls = _tls(url) if encrypted else None
    cluster = Cluster(
        addresses,
        (namespace.encode(), table.encode()),
        url.options.get("user") or _user(),
        options.connect_timeout,
        Tally(),
        tls,
    )
    options.abandonment.ends_with(cluster.close)
    try:
        tables.prepare(cluster, time.monotonic() + options.connect_timeout, create=options.create)
    except StoreClosedError as error:
        cluster.close()
        raise StoreUnavailableError(f"HBase at {','.join(addresses)}: {error}") from error
    except StoreUnavailableError as error:
        cluster.close()
        if cluster.answered:
            raise
        raise StoreUnavailableError(
            f"{error} (the URL names masters or region servers of HBase 2.5 or newer, at the ports "
            "16000 and 16020 by default, and not its ZooKeeper)"
        ) from error
    except BaseException:
        cluster.close()
        raise
    return _HBaseBackend(cluster, largest, options.session_timeout)


def _tls(url: StoreURL) -> TlsSettings:
    files = TlsFiles(**{name: url.options.get(name) for name in _FILES})
    return TlsSettings(files, check_hostname=url.flag("check_hostname", True))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # No such user, and no variable names one.
        return "batchkeeper"

"""The ZooKeeper back end: a session, the reader and the writer that use it, and its limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ...ops.errors import (
    IndeterminateError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreUnavailableError,
)
from ...ops.steps import Step, lower
from ..backend import Answer, Backend, Limits, ReadRequest, Tally, WriteRequest, send_by
from ..refusals import NO_VALUE, decide, transaction_refused
from ..urls import ConnectOptions, StoreURL
from .access import ZooKeeperAcls
from .reads.reader import Reader
from .scans import Scanner
from .session.connection import ZooKeeperConnection
from .session.fitness import check_reads, check_writes
from .session.logins import security
from .session.session import ZooKeeperSession
from .session.sizes import Sizes
from .session.write_ids import WriteIds
from .watches.placing import Placing
from .watches.watches import ZooKeeperWatches
from .wire.acls import needs_login, parse_acl
from .wire.errors import CONNECTION_LOSS, NO_AUTH, NO_NODE, NODE_EXISTS
from .wire.exchanges import Reply, parse_reply
from .wire.jute import (
    CREATE,
    END,
    EXISTS,
    MULTI,
    NO_DATA,
    Refused,
    acl,
    header_and_length,
    parse_multi,
    single_read,
)
from .wire.kazoo_client import Security
from .wire.nodes import Nodes
from .writes.forms import may_create
from .writes.groups import CREATE_OVERHEAD
from .writes.plan import REQUEST_OVERHEAD
from .writes.writer import Writer

__all__ = ["ZooKeeperBackend", "connect"]

_PORT: Final = 2181

# The server's default for jute.maxbuffer, which limits a request as a whole.
_PACKET: Final = 1_048_575
# The length of the shortest path, for the limit of values.
_SHORT_PATH: Final = 2

# The server executes one multi while the client makes the next; one more keeps both from waiting.
_IN_FLIGHT: Final = 3

# The most operations in a transaction: as many as in a batch.
_TRANSACTION_OPS: Final = 1000

_OPTIONS: Final = ("acl", "ca", "cert", "check_hostname", "jute_maxbuffer", "key", "use_ssl")


class ZooKeeperBackend:
    """Executes whole calls of reads or writes on ZooKeeper; see ``stores.backend.Backend``."""

    history = None

    def __init__(
        self,
        connection: ZooKeeperConnection,
        chroot: str,
        packet: int,
        acl: bytes,
        tally: Tally,
        chroot_made: bool,
        session_timeout: float,
    ) -> None:
        nodes = Nodes()
        write_ids = WriteIds(connection, chroot, acl)
        self.tally = tally
        self._connection = connection
        self._sizes = Sizes(connection, packet)
        self._reader = Reader(connection, self._sizes, nodes, chroot)
        self.session = session = ZooKeeperSession(connection, session_timeout)
        self._writer = Writer(
            connection, self._reader, nodes, self._sizes, write_ids, chroot, acl, tally, session
        )
        placing = Placing(connection, self._reader, self._sizes, chroot)
        self.watches = ZooKeeperWatches(connection, placing, chroot, self.session.restored)
        self.acls = ZooKeeperAcls(connection, chroot)
        self.scans = Scanner(connection, self._reader, self._writer, self._sizes, chroot)
        self._op_bytes = CREATE_OVERHEAD + len(acl) + len(chroot.encode())
        self._request_overhead = REQUEST_OVERHEAD + write_ids.room
        self._limits = self._limits_for(packet)
        self._chroot = chroot
        # Whether the chroot exists, as far as this client knows. Set once, by any thread.
        self._chroot_seen = chroot_made or not chroot

    @property
    def limits(self) -> Limits:
        limits, most = self._limits, self._sizes.most
        if most != limits.request_bytes + self._request_overhead:
            limits = self._limits = self._limits_for(most)
        return limits

    def _limits_for(self, packet: int) -> Limits:
        return Limits(
            write_ops=1000,
            read_ops=1000,
            request_bytes=packet - self._request_overhead,
            op_bytes=self._op_bytes,
            # A longer path leaves less room for the value; that shows when the plan is made.
            value_bytes=max(0, packet - self._request_overhead - self._op_bytes - _SHORT_PATH),
            in_flight=_IN_FLIGHT,
            singles=64,
            transaction_ops=_TRANSACTION_OPS,
        )

    @property
    def connected(self) -> bool:
        return self._connection.connected

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._connection.check_process()
        if not self._chroot_seen:
            # Other writes find nothing below a missing chroot, and must not create it.
            writes = [lower(request) for request in requests]
            creates = any(
                may_create(step)
                for write in writes
                for step in ([write] if isinstance(write, Step) else write)
            )
            if not creates and not _is_there(self._connection, self._chroot, send_by(deadline)):
                return [_refusal_of_nothing(write) for write in writes]
            self._chroot_seen = True
        return self._writer.write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        self._connection.check_process()
        return self._reader.read(requests, deadline)

    def sync(self, deadline: float) -> None:
        self._connection.check_process()
        self._reader.sync(deadline)

    def close(self) -> None:
        self.session.close()
        self.watches.close()
        self._connection.close()


def connect(
    url: StoreURL,
    options: ConnectOptions,
    open_connection: Callable[..., ZooKeeperConnection] = ZooKeeperConnection,
) -> Backend:
    """Open a session with the ensemble of ``zookeeper://host:port[,host:port...][/chroot]``.

    A missing chroot is created, unless ``create`` is false. It then reads as empty, and the first
    write creates it. Options of the URL:

    - ``use_ssl``: TLS, off by default. ``ca``, ``cert`` and ``key`` are PEM files; without ``ca``,
      the system's authorities are trusted. ``check_hostname`` is on by default.
    - ``acl``: the permissions of new nodes, as ``wire.acls`` parses them; ``open`` by default, as
      with kazoo and ZooKeeper's command line.
    - ``jute_maxbuffer``: the server's own setting, in bytes, if it is not the default.

    Tests pass a connection that records or loses requests as ``open_connection``.

    ``username`` and ``password`` are sent with the scheme ``digest``. ZooKeeper does not check them
    at login: it accepts any, and a wrong password shows only as a lack of permission on nodes with
    an access list. A server on which the scheme is switched off refuses the login.

    Raises:
        InvalidSettingError: an option, a host or the credentials are invalid.
        InvalidPathError: the chroot is not a valid path.
        StoreUnavailableError: no server answered within ``connect_timeout``.
        AuthenticationError: the login was refused, or creating the chroot is not permitted.
        UnsupportedError: the server is older than ZooKeeper 3.6, or not a real ZooKeeper.
    """
    deadline = time.monotonic() + options.connect_timeout
    url.check_options(_OPTIONS)
    chroot = url.prefix()
    packet = url.number("jute_maxbuffer", _PACKET, lowest=1024)
    login = security(url, options)
    new = _acl(url, options, login)
    tally = Tally()
    connection = open_connection(
        url.addresses(_PORT),
        options.connect_timeout,
        options.session_timeout,
        login,
        tally,
        options.abandonment,
    )
    try:
        check_reads(connection, deadline)
        if options.create:
            if chroot:
                _make_chroot(connection, chroot, new, deadline)
            check_writes(connection, chroot, new, deadline)
        return ZooKeeperBackend(
            connection,
            chroot,
            packet,
            new,
            tally,
            options.create,
            options.session_timeout,
        )
    except (OperationTimeoutError, IndeterminateError) as error:
        # The server accepts connections but answers no request, or its answer cannot be read.
        connection.close()
        raise StoreUnavailableError(str(error)) from error
    except BaseException:
        connection.close()
        raise


def _acl(url: StoreURL, options: ConnectOptions, login: Security) -> bytes:
    """Return the permissions of new nodes, encoded."""
    in_url = url.options.get("acl")
    if in_url is not None and "digest:" in in_url:
        raise InvalidSettingError(
            "a store's URL must not contain the hash of a password; pass acl as an argument"
        )
    if in_url is not None and options.acl not in (None, in_url):
        raise InvalidSettingError(
            f"acl differs from the URL's option acl={in_url!r}; one of them is enough"
        )
    given = in_url if options.acl is None else options.acl
    rights = parse_acl("open" if given is None else given)
    if needs_login(rights) and not (login.digest or login.sasl or login.files.cert):
        raise InvalidSettingError(
            "acl (creator-all, read-all, auth) gives permissions to the client's own login, but it "
            "has none: pass username and password, sasl, or a certificate (options cert and key)"
        )
    return acl(rights)


def _refusal_of_nothing(write: Step | list[Step]) -> Answer:
    """Return the error of a write that creates nothing, in a store without any path."""
    if isinstance(write, Step):
        return decide(write, NO_VALUE)
    # Its first step does not hold: a check for ABSENT would create a node.
    first = decide(write[0], NO_VALUE)
    assert first is not None
    return transaction_refused(0, first)


def _make_chroot(connection: ZooKeeperConnection, chroot: str, acl: bytes, deadline: float) -> None:
    # One level after the other, and only missing ones: creating an existing node fails for lack of
    # permission before it fails because the node exists.
    made = False
    end = chroot.find("/", 1)
    while end:
        path = chroot[:end] if end > 0 else chroot
        if not _is_there(connection, path, deadline):
            if not made:  # with permissions that shut this client out, it could not even remove it
                check_writes(connection, path.rpartition("/")[0], acl, deadline)
            made = True
            _make(connection, path, acl, deadline)
        end = 0 if end < 0 else chroot.find("/", end + 1)


def _is_there(connection: ZooKeeperConnection, path: str, deadline: float) -> bool:
    while True:
        (reply,) = connection.exchange(
            [(EXISTS, single_read(path.encode()))], deadline, repeat=True
        )
        if isinstance(reply, MetadataStoreError):
            raise reply
        if isinstance(reply, tuple) or reply == NO_AUTH:
            return True
        if reply == NO_NODE:
            return False
        if reply != CONNECTION_LOSS:
            raise connection.refused(reply, path)


def _make(connection: ZooKeeperConnection, path: str, acl: bytes, deadline: float) -> None:
    raw = path.encode()
    body = header_and_length(CREATE, len(raw)) + raw + NO_DATA + acl + END
    # If the answer is lost, the request is sent again. The node then exists, which is as good.
    reply: Reply = CONNECTION_LOSS
    while reply == CONNECTION_LOSS:
        (reply,) = connection.exchange([(MULTI, body)], deadline, repeat=True)
    answer = parse_reply(reply, partial(parse_multi, [(CREATE, 0, len(raw))]), write=True)
    if isinstance(answer, MetadataStoreError):
        raise answer
    if isinstance(answer, Refused):
        answer = answer.codes[0]
    if isinstance(answer, int) and answer != NODE_EXISTS:
        raise connection.refused(answer, path)

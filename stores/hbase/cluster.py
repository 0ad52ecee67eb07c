"""The servers of a cluster: who has which region of the table, and one connection to each."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, NamedTuple

from ...ops.backoff import Backoff
from ...ops.errors import (
    AuthenticationError,
    MetadataStoreError,
    StoreClosedError,
    StoreUnavailableError,
)
from ..backend import Tally
from ..tls import TlsSettings
from .wire.connection import Connection, LostError, Pending, RemoteError
from .wire.errors import meaning_of, repeatable
from .wire.fields import field, number
from .wire.messages import MESSAGES

__all__ = ["Cluster", "Region", "held"]

_BACKOFF: Final = Backoff(first=0.05, longest=1.0)
# Seconds for a server that is asked where others are, also if the time is over.
_LEAST: Final = 0.01
# Seconds for a server to refuse a message for its size, which it does at once.
_PROBE: Final = 1.0
# Bytes before a message that HBase has stored.
_MAGIC: Final = b"PBUF"
# The services: of regions, of masters, and the one that tells where others are.
_REGIONS: Final = "ClientService"
_MASTER: Final = "MasterService"
_REGISTRY: Final = "ClientMetaService"
_BY_NAME: Final = number(1, 1)
_DISABLED: Final = (number(1, 1), number(1, 2))  # or being disabled
_META_BYTES: Final = 2 * 1024 * 1024


class Region(NamedTuple):
    """A region of the table.

    Attributes:
        name: its name.
        start: the first key that may lie in it.
        end: the key after it; empty for the last region.
        address: the server that has it.
        field: the region as the first field of requests.
    """

    name: bytes
    start: bytes
    end: bytes
    address: str
    field: bytes

    @classmethod
    def of(cls, name: bytes, start: bytes, end: bytes, address: str) -> Region:
        return cls(name, start, end, address, _specifier(name))


class Cluster:
    """The servers of a cluster, for one table.

    Args:
        addresses: servers to ask where others are: masters or region servers.
        table: the table's namespace and name.
        user: the name of the client.
        connect_timeout: seconds for one connection.
        tally: counts reconnections and repetitions.
        tls: the settings of TLS; ``None`` without it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        table: tuple[bytes, bytes],
        user: str,
        connect_timeout: float,
        tally: Tally,
        tls: TlsSettings | None = None,
    ) -> None:
        self.addresses = tuple(addresses)
        self.table = table
        self.tally = tally
        #: The address that has answered last, of those that are asked where others are.
        self.answered: str | None = None
        namespace, name = table
        self._table_name = name if namespace == b"default" else namespace + b":" + name
        self._user = user
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards the following fields
        self._connections: dict[tuple[str, str], Connection] = {}
        self._known: set[tuple[str, str]] = set()  # those that there was a connection to
        self._closed = threading.Event()
        self._locating = threading.Lock()  # held by whoever reads the locations
        self._regions: list[Region] = []
        self._located = 0  # how often they were read

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a server of regions."""
        return any(
            service == _REGIONS and connection.broken is None
            for (_, service), connection in [*self._connections.items()]
        )

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # In a forked child, the lock may be held for ever.
        self._closed.set()
        with self._lock:
            connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def check(self) -> None:
        """Refuse a call after the close, or in a forked process.

        Raises:
            StoreClosedError: it is one.
        """
        if self._closed.is_set():
            raise StoreClosedError("the HBase store is closed")
        if os.getpid() != self._process:
            raise StoreClosedError(
                "the store was opened before this process was forked; open it here"
            )

    def pause(self, attempts: int, deadline: float) -> bool:
        """Wait before another attempt; return whether there is time for one."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._closed.wait(min(left, _BACKOFF.pause(attempts)))
        self.check()
        return True

    # Calls

    def begin(self, address: str, method: str, request: Any, response: type, by: float) -> Pending:
        """Send a request to a server of regions.

        Raises:
            LostError: it was not sent.
        """
        return self._connection(address, _REGIONS, by).begin(method, request, response, by)

    def refusal(self, address: str, size: int, deadline: float) -> RemoteError | None:
        """Return how a server of regions refuses all messages of a size, if it does.

        It closes the connection on one, and what it says is lost. This sends only the first bytes.
        """
        by = min(deadline, time.monotonic() + _PROBE)
        tls = None if self._tls is None else self._tls.now()
        wanted = address, _REGIONS, self._user, _PROBE, tls
        try:
            with suppress(LostError), closing(Connection(*wanted)) as made:
                made.begin("Multi", MESSAGES.Empty(), MESSAGES.Empty, by, announced=size).wait(by)
        except RemoteError as error:
            return error
        return None

    def ask_master(self, method: str, request: Any, response: type, deadline: float) -> Any:
        """Ask the active master, and find it again if it has changed.

        Raises:
            MetadataStoreError: it refuses, or there is none until the deadline.
        """

        def ask() -> Any:
            found = self._ask_registry(
                "GetActiveMaster", MESSAGES.GetActiveMasterResponse, deadline
            )
            connection = self._connection(_address(found.server_name), _MASTER, deadline)
            return connection.begin(method, request, response, deadline).wait(deadline).message

        return self._until(ask, deadline)

    def _ask_registry(self, method: str, response: type, deadline: float) -> Any:
        """Ask the first server that answers; a silent one leaves time for the others.

        Raises:
            LostError: none does.
            RemoteError: one refuses, or the last one is not ready.
        """
        last: LostError | RemoteError | None = None
        others = False  # whether one does not for another reason than certificates
        addresses = sorted(self.addresses, key=lambda address: address != self.answered)
        for place, address in enumerate(addresses):
            share = (deadline - time.monotonic()) / (len(addresses) - place)
            by = time.monotonic() + max(_LEAST, min(share, self._connect_timeout))
            try:
                connection = self._connection(address, _REGISTRY, by)
                found = connection.begin(method, MESSAGES.Empty(), response, by).wait(by).message
            except RemoteError as error:
                if meaning_of(error) == "refused":
                    raise
                others, last = True, error
            except LostError as error:
                others = others or error.refused is None
                last = LostError(str(error), sent=False, refused=None if others else error.refused)
            else:
                self.answered = address
                return found
        assert last is not None
        raise last

    def _until(self, ask: Callable[[], Any], deadline: float) -> Any:
        """Ask again, until there is an answer; what is asked may be asked twice."""
        attempts = 0
        said: LostError | RemoteError | None = None
        while True:
            self.check()
            try:
                return ask()
            except (LostError, RemoteError) as error:
                # The last one may only be that the time was over.
                said = error if said is None or time.monotonic() < deadline else said
                final = meaning_of(error) == "refused"
                if not self._located and isinstance(error, LostError):
                    final = error.refused is not None  # An open store waits for a renewed one.
                if final or not self.pause(attempts, deadline):
                    raise repeatable(said) from error
            attempts += 1

    def _connection(self, address: str, service: str, by: float) -> Connection:
        key = (address, service)
        with self._lock:
            connection = self._connections.get(key)
        if connection is not None and connection.broken is None:
            return connection
        timeout = max(0.001, min(self._connect_timeout, by - time.monotonic()))
        tls = None if self._tls is None else self._tls.now()
        made = Connection(address, service, self._user, timeout, tls)
        with self._lock:
            other = self._connections.get(key)
            kept, dropped = made, other
            if other is not None and other is not connection and other.broken is None:
                kept, dropped = other, made  # Another thread was faster.
            self._connections[key] = kept
            again = key in self._known
            self._known.add(key)
            closed = self._closed.is_set()
        if dropped is not None:
            dropped.close()
        if closed:
            made.close()
            self.check()
        if again and kept is made:
            self.tally.add("reconnect")
        return kept

    # Locations

    def regions(self, deadline: float) -> list[Region]:
        """Return the regions of the table, in order.

        Raises:
            MetadataStoreError: they cannot be read until the deadline.
        """
        return self._regions or self._locate(0, deadline)

    def region_of(self, key: bytes, deadline: float) -> Region:
        """Return the region of a key."""
        regions = self.regions(deadline)
        return regions[max(0, bisect_right(regions, key, key=lambda region: region.start) - 1)]

    def served(self, deadline: float) -> bool:
        """Say whether the table is there, and all its regions have servers; ask once."""
        try:
            self._regions = self._read_regions(deadline)
        except (LostError, RemoteError):
            return False
        self._located += 1
        return True

    def moved(self, deadline: float) -> None:
        """Read the locations again, because one was wrong, unless another call just has.

        Raises:
            MetadataStoreError: they cannot be read until the deadline.
        """
        self._locate(self._located, deadline)

    def _locate(self, seen: int, deadline: float) -> list[Region]:
        # Another call may have more time than this one.
        late = StoreUnavailableError("HBase: no server has said in time where the table is")
        with held(self._locating, deadline, late):
            if self._located == seen or not self._regions:
                self._regions = self._until(lambda: self._read_regions(deadline), deadline)
                self._located += 1
            return self._regions

    def _read_regions(self, deadline: float) -> list[Region]:
        rows = self._read_meta(deadline)
        state = rows.pop(self._table_name, {}).get(b"table:state")
        name = self._table_name.decode()
        if state in _DISABLED:
            text = f"the table {name} is disabled; HBase's shell enables it with: enable '{name}'"
            raise RemoteError("TableNotEnabledException", text)
        if self._located and not rows:  # A new one is not there at once.
            text = f"the table {name} was deleted; to open the store again creates it"
            raise RemoteError("TableNotFoundException", text)
        regions = [
            region
            for row, columns in rows.items()
            if (region := _region_in(row, columns)) is not None
        ]
        _check_whole(regions)
        return regions

    def _read_meta(self, deadline: float) -> dict[bytes, dict[bytes, bytes]]:
        """Return the rows of this table in the table of regions, each as its columns.

        Raises:
            LostError: nobody answers.
            RemoteError: a server refuses.
        """
        found = self._ask_registry(
            "GetMetaRegionLocations", MESSAGES.GetMetaRegionLocationsResponse, deadline
        )
        meta = next(
            (place for place in found.meta_locations if not place.region_info.replica_id), None
        )
        if meta is None or not meta.server_name.host_name:
            raise LostError("no server has the table of regions yet", sent=False)
        # The row of the table itself, then those of its regions. They compare by table, key and
        # time. No name has a space, which is before all that it can have.
        start, stop = self._table_name, self._table_name + b" ,,"
        rows: dict[bytes, dict[bytes, bytes]] = {}
        while True:
            request = MESSAGES.ScanRequest(
                scan=MESSAGES.Scan(
                    start_row=start,
                    stop_row=stop,
                    column=[MESSAGES.Column(family=b"info"), MESSAGES.Column(family=b"table")],
                    max_result_size=_META_BYTES,
                ),
                number_of_rows=2**31 - 1,
                close_scanner=True,
            )
            request.MergeFromString(_specifier(b"hbase:meta,,1"))
            address, response = _address(meta.server_name), MESSAGES.ScanResponse
            reply = self.begin(address, "Scan", request, response, deadline).wait(deadline)
            for cell in reply.cells:
                rows.setdefault(cell.row, {})[cell.column] = cell.value
            if not reply.message.more_results_in_region:
                return rows
            if reply.cells:
                start = reply.cells[-1].row + b"\0"


def _specifier(region: bytes) -> bytes:
    """Return a region's name as the first field of requests."""
    return field(1, _BY_NAME + field(2, region))


@contextmanager
def held(lock: Any, by: float, late: MetadataStoreError) -> Iterator[None]:
    """Hold a lock in a block, or raise ``late`` if another thread holds it until then."""
    if not lock.acquire(timeout=max(0.0, by - time.monotonic())):
        raise late
    try:
        yield
    finally:
        lock.release()


def answers(address: str, tls: TlsSettings | None = None) -> bool:
    """Say whether a cluster serves requests: also its master, which takes longer to begin."""
    namespace, name = b"hbase", b"meta"
    cluster = Cluster([address], (namespace, name), "batchkeeper", 1.0, Tally(), tls)
    by = time.monotonic() + 2.0
    table = MESSAGES.TableName(namespace=namespace, qualifier=name)
    try:
        cluster._read_meta(by)
        cluster.ask_master(
            "GetTableDescriptors",
            MESSAGES.GetTableDescriptorsRequest(table_names=[table]),
            MESSAGES.GetTableDescriptorsResponse,
            by,
        )
    except AuthenticationError:
        return True  # This user may not see it.
    except (LostError, RemoteError, MetadataStoreError):
        return False
    else:
        return True
    finally:
        cluster.close()


def _region_in(row: bytes, columns: dict[bytes, bytes]) -> Region | None:
    """Return the region of a row of the table of regions; ``None`` if it was split or is a copy."""
    stored, server = columns.get(b"info:regioninfo"), columns.get(b"info:server")
    if stored is None:
        return None
    info = MESSAGES.RegionInfo.FromString(stored.removeprefix(_MAGIC))
    if info.offline or info.split:
        return None
    return Region.of(row, info.start_key, info.end_key, (server or b"").decode())


def _check_whole(regions: list[Region]) -> None:
    """Refuse locations with a hole, which a split or a start shows for a moment."""
    if not regions:
        raise LostError("the table has no regions yet", sent=False)
    ends = [b"", *(region.end for region in regions)]
    if ends[-1] or any(
        region.start != end or not region.address
        for region, end in zip(regions, ends, strict=False)
    ):
        raise LostError("a region of the table has no server yet", sent=False)


def _address(server: Any) -> str:
    return f"{server.host_name}:{server.port}"

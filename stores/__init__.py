"""Back ends: their protocol, the records of their kinds, and a module or folder for each store.

- ``backend``: the protocol between engine and back ends
- ``refusals``: decides the error of a write, for all back ends
- ``kinds``: the record of each kind of store
- ``urls``: the parts of a URL, and the options for opening a store
- ``registry``: finds the kind of a URL, and opens its back end
- ``rates``: a limit of operations per second, of one store or shared
- ``memory``: the store in this process's memory
- ``rocksdb``: the embedded store on disk
- ``etcd``: etcd 3
- ``zookeeper``: ZooKeeper
- ``hbase``: HBase, by an entry point
- ``hosts``: messages about hosts whose names cannot be looked up
- ``tls``: the files of a TLS client
- ``session``: the state machine of sessions with a server
- ``local``: sessions and watches of stores without a server
- ``keys``: separates valid paths from keys of other clients
- ``spans``: the stretches of the order of paths that a scan covers
"""

from ..ops.steps import At, PutNext, PutValue, Step, lower, step_of
from .backend import (
    Answer,
    Backend,
    Deadline,
    History,
    Limits,
    PassingBackend,
    ReadRequest,
    Request,
    RequestRefusedError,
    Scans,
    Tally,
    WriteRequest,
    send_by,
    to_its_end,
)
from .kinds import BUILT_IN, StoreKind
from .rates import RateLimit
from .refusals import State, decide, partly_removed
from .registry import connect, parse_url, store_kind
from .spans import evenly, spans
from .urls import ConnectOptions, StoreURL

__all__ = [
    "BUILT_IN",
    "Answer",
    "At",
    "Backend",
    "ConnectOptions",
    "Deadline",
    "History",
    "Limits",
    "PassingBackend",
    "PutNext",
    "PutValue",
    "RateLimit",
    "ReadRequest",
    "Request",
    "RequestRefusedError",
    "Scans",
    "State",
    "Step",
    "StoreKind",
    "StoreURL",
    "Tally",
    "WriteRequest",
    "connect",
    "decide",
    "evenly",
    "lower",
    "parse_url",
    "partly_removed",
    "send_by",
    "spans",
    "step_of",
    "store_kind",
    "to_its_end",
]

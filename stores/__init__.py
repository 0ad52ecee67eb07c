"""Back ends: their protocol, the records of their kinds, and a module or folder for each store."""

from .backend import (
    Answer,
    Backend,
    History,
    Limits,
    PassingBackend,
    Request,
    RequestRefusedError,
    Scans,
    Tally,
)
from .kinds import BUILT_IN, StoreKind
from .registry import connect, parse_url, store_kind
from .urls import ConnectOptions, StoreURL

__all__ = [
    "BUILT_IN",
    "Answer",
    "Backend",
    "ConnectOptions",
    "History",
    "Limits",
    "PassingBackend",
    "Request",
    "RequestRefusedError",
    "Scans",
    "StoreKind",
    "StoreURL",
    "Tally",
    "connect",
    "parse_url",
    "store_kind",
]

"""Back ends: the protocol they follow, the URL registry, and a module or folder for each store."""

from .backend import Answer, Backend, Limits, Request, RequestRefusedError, Tally
from .registry import ConnectOptions, StoreURL, connect, parse_url

__all__ = [
    "Answer",
    "Backend",
    "ConnectOptions",
    "Limits",
    "Request",
    "RequestRefusedError",
    "StoreURL",
    "Tally",
    "connect",
    "parse_url",
]

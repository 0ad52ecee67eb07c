"""The errors that several modules of this package raise, with their texts."""

from __future__ import annotations

from ...ops.errors import StoreClosedError, shape
from ..errors import IllegalOperationError

__all__ = ["bad_address", "check_message", "of_parent", "reader_closed"]


def check_message(message: object) -> None:
    """Refuse a message that is not bytes.

    Raises:
        IllegalOperationError: it is something else.
    """
    if not isinstance(message, bytes):
        raise IllegalOperationError(f"a message must be bytes, not {shape(message)}")


def reader_closed() -> StoreClosedError:
    """Return the error of a call of a reader that was closed."""
    return StoreClosedError("the reader was closed")


def bad_address(address: str) -> ConnectionAbortedError:
    """Return the error of an address without a host or a port."""
    return ConnectionAbortedError(f"no address of a hub: {address!r:.200}")


def of_parent(address: str) -> ConnectionAbortedError:
    """Return the error of a request of a forked process on a connection of its parent."""
    return ConnectionAbortedError(f"the connection to {address} is that of the parent")

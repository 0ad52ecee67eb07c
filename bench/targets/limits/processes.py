"""Another process that takes part in a measurement.

It runs a function of this package, whose first argument is its end of a pipe. The two agree on what
they send: the function sends something when it is ready, and waits for something before it begins.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from batchkeeper.ops.errors import StoreUnavailableError


class Other:
    """Another process, as seen from this one."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self._connection = connection
        self.kill = process.kill
        self.pid: int = process.pid

    def begin(self) -> None:
        """Let the process go on."""
        self._connection.send(None)

    def has_sent(self, seconds: float) -> bool:
        """Wait for the next thing that it sends, or for its end; say whether it has come."""
        return self._connection.poll(seconds)

    def receive(self) -> Any:
        """Return the next thing that it sends."""
        try:
            return self._connection.recv()
        except EOFError as error:
            raise StoreUnavailableError("the other client has failed") from error


@contextmanager
def other_process(work: Callable[..., None], *arguments: Any) -> Iterator[Other]:
    """Let a function run in another process, and wait until it is ready.

    The process ends with the block: the function notices that by an ``EOFError`` of its pipe.
    """
    # Not by a fork: the client has threads.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(work, theirs, arguments), daemon=True)
    process.start()
    theirs.close()
    other = Other(process, ours)
    try:
        other.receive()
        yield other
    finally:
        ours.close()
        process.join()


def _run(work: Callable[..., None], connection: Connection, arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError):
        work(connection, *arguments)

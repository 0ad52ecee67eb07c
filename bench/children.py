"""Another process that takes part in a measurement.

It runs a function whose first argument is its end of a pipe. The two agree on what they send: the
function sends something when it is ready, and waits for something before it begins.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from ..ops.errors import StoreUnavailableError


class Child:
    """Another process, as seen from this one."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self._connection = connection
        self.kill = process.kill
        self.send = connection.send

    def begin(self) -> None:
        """Let the process go on."""
        self.send(None)

    def receive(self) -> Any:
        """Return the next thing that it sends.

        Raises:
            StoreUnavailableError: it has ended.
        """
        try:
            # Python handles a signal that comes as a wait begins only after the wait.
            while not self._connection.poll(0.5):
                pass
            return self._connection.recv()
        except EOFError as error:
            raise StoreUnavailableError("a process of the benchmark has ended by itself") from error


@contextmanager
def child(work: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Let a function run in another process, and wait until it is ready.

    The process ends with the block: the function notices that by an ``EOFError`` of its pipe. After
    an error, it is terminated, because it may be in the middle of something.
    """
    # Not by a fork: the client has threads.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(work, theirs, arguments), daemon=True)
    process.start()
    theirs.close()
    started = Child(process, ours)
    try:
        started.receive()
        yield started
    except BaseException:
        process.terminate()
        raise
    finally:
        ours.close()
        process.join()


def _run(work: Callable[..., None], connection: Connection, arguments: tuple[Any, ...]) -> None:
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError):
        work(connection, *arguments)

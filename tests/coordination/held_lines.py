"""A line between client and server that keeps requests back, and processes that tests stop."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..proxy import Proxy

__all__ = ["HeldLine", "child"]


class HeldLine(Proxy):
    """A proxy that keeps all requests back while ``hold`` is in force, and then passes them on.

    ``held`` is set when a request is kept back.
    """

    def __init__(self, address: str) -> None:
        self._passes = threading.Event()
        self._passes.set()
        self.held = threading.Event()
        super().__init__(address)

    def hold(self) -> None:
        """Keep the requests back from now on."""
        self.held.clear()
        self._passes.clear()

    def release(self) -> None:
        """Pass on what was kept back, and all that follows."""
        self._passes.set()

    def close(self) -> None:
        self.release()
        super().close()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, sent: bytearray | None
    ) -> None:
        if sent is None:
            super()._pass_on(source, target, sent)
            return
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._passes.is_set():
                    self.held.set()
                    self._passes.wait()
                target.sendall(data)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextmanager
def child(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process of its own, with pipes; kill it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()

"""Faults on the connection between client and server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Proxy"]


class Proxy:
    """Passes bytes between clients and a server on loopback, and can lose them.

    While ``swallows`` is set, it discards the server's answers: requests arrive and are executed,
    but their answers are lost. ``swallowed`` is set when it has discarded an answer, and ``lost``
    has all that it has discarded. Clients also get answers that nobody has asked for. While
    ``drops`` is set, it discards requests. A connection that has lost bytes is unusable: call
    ``restore`` to end both. ``answered`` is the number of bytes that the server has sent so far.
    ``sent`` has what clients have sent, by connection, also what has not reached the server, and
    ``on_request`` is called when that has grown, before the server gets it.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._lock = threading.Lock()  # guards _pairs and answered
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        # The system would let the buffer grow to 32 MiB. What does not get through waits in the
        # client, as it would on a network. Accepted connections inherit it.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallows = False
        self.drops = False
        self.swallowed = threading.Event()
        self.lost = b""
        self.answered = 0
        self.sent: list[bytearray] = []
        self.on_request: Callable[[], object] = lambda: None
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """End all connections, as a broken network does. New ones are accepted."""
        with self._lock:
            self._end_all()

    def restore(self) -> None:
        """End all connections, and discard nothing any more.

        In one step: no connection that has lost bytes is left, and no new one is ended.
        """
        with self._lock:
            self.swallows = self.drops = False
            self._end_all()

    def lose_an_answer(self, patience: float) -> None:
        """Wait until an answer is lost, and end all connections. Set ``swallows`` before the call.

        Requests that have arrived are executed first: etcd before 3.5.5 crashes if a client goes
        away during its reading transaction (#14110).
        """
        assert self.swallowed.wait(patience), "nothing was answered"
        self.drops = True
        time.sleep(0.1)
        self.restore()

    def close(self) -> None:
        """End all connections, and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()

    def _end_all(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for side in pair:
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            sent = bytearray()
            self.sent.append(sent)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._serve, args=(client, server, sent), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket, sent: bytearray) -> None:
        with client, server:
            back = threading.Thread(target=self._pass_on, args=(server, client, None), daemon=True)
            back.start()
            self._pass_on(client, server, sent)
            back.join()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, sent: bytearray | None
    ) -> None:
        """Pass on answers, or add requests to ``sent`` and pass them on."""
        answers = sent is None
        with suppress(OSError):
            while data := source.recv(65536):
                if sent is not None:
                    sent += data
                    self.on_request()
                with self._lock:  # `restore` is one step for all connections.
                    lost = self.swallows if answers else self.drops
                    if answers:
                        self.answered += len(data)
                if not lost:
                    target.sendall(data)
                elif answers:
                    self.lost += data
                    self.swallowed.set()
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

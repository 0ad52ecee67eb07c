"""A small HTTP server that shows what a store does: for Prometheus, and for ``batchkeeper top``."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

from ..batching.engine import engine_of
from ..ops.errors import InvalidSettingError, StoreClosedError, UnsupportedError
from ..ops.log import get_logger
from .extras import import_of_extra
from .observed import AnyStore, check_store, name_of
from .prometheus import PrometheusCollector

__all__ = ["FORMAT", "MetricsServer", "serve_metrics"]

log = get_logger("batchkeeper.observability")

#: The version of the JSON. It changes if a name gets another meaning, or is gone.
FORMAT: Final = 1

# Seconds between two looks at whether the server is to end.
_POLL: Final = 0.1
# Seconds that a client has for its request and the answer, however it spreads its bytes.
_PATIENCE: Final = 5.0
# Connections at a time. Prometheus and `top` need one each.
_MOST: Final = 32

_PATHS: Final = """\
/metrics.json  the metrics of the store as JSON
/metrics       the same for Prometheus
"""


def serve_metrics(
    store: AnyStore,
    *,
    port: int,
    host: str = "127.0.0.1",
    allow_remote: bool = False,
    name: str | None = None,
) -> MetricsServer:
    """Show the metrics of a store over HTTP until the store, or the result, is closed.

    ``/metrics.json`` has the metrics as JSON, and ``/metrics`` has them for Prometheus, which needs
    the extra ``prometheus``. There is no login and no encryption, so the server accepts connections
    from this machine only, unless ``allow_remote`` is set. Nobody can change anything by it. It
    shows the URL of the store and numbers, and neither paths nor values.

    A web page could give its own name this machine's address, and have a browser read the metrics.
    So without ``allow_remote``, a request must name an IP address, ``localhost`` or ``host``.

    The server has one thread, and one more for each request under way, 32 at most. A request has
    five seconds. The threads are daemons.

    Args:
        store: an open store, for threads or for tasks.
        port: the port, or 0 for a free one, which the result names.
        host: the address of this machine at which it listens.
        allow_remote: whether the address may be one that other machines reach.
        name: the name of the store in what is shown; by default, its URL without options.

    Raises:
        InvalidSettingError: an argument is invalid, ``host`` can be reached from other machines, or
            the port is in use.
        StoreClosedError: the store is closed.
    """
    check_store(store)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65536:
        raise InvalidSettingError(f"port must be an int from 0 to 65535, not {port!r:.80}")
    shown = name_of(store, name)
    family, address = _resolved(host, port)
    if not allow_remote and not ip_address(address[0].partition("%")[0]).is_loopback:
        raise InvalidSettingError(
            f"other machines can reach {host!r}, and there is no login: use 127.0.0.1, or pass "
            f"allow_remote=True"
        )
    try:
        known = None if allow_remote else frozenset({"localhost", host.lower()})
        server = MetricsServer(store, shown, family, address, known)
    except OSError as error:
        raise InvalidSettingError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port, or 0 "
            f"for a free one"
        ) from error
    try:
        engine_of(store).attachments.add(server)
    except BaseException:
        server.close()
        raise
    return server


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, TypeError) as error:
        raise InvalidSettingError(f"not an address of this machine: {host!r:.80}") from error
    family, *_, address = found[0]
    return family, (str(address[0]), int(address[1]))


class MetricsServer:
    """Shows the metrics of a store over HTTP; :func:`serve_metrics` makes it.

    It is also a context manager.

    Attributes:
        host: the address at which it listens.
        port: the port.
        url: the URL of both.
    """

    def __init__(
        self,
        store: AnyStore,
        name: str,
        family: socket.AddressFamily,
        address: tuple[str, int],
        known: Collection[str] | None = None,
    ) -> None:
        self._store = store
        self._process = os.getpid()
        self._http = _Http(_Page(store, name), family, address, known)
        self.host, self.port = str(self._http.server_address[0]), self._http.server_address[1]
        self.url = (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else (f"http://{self.host}:{self.port}")
        )
        self._closing = threading.Lock()  # held by the call of `close` that does the work
        self._thread = threading.Thread(
            target=self._http.serve_forever,
            args=(_POLL,),
            name="batchkeeper-metrics",
            daemon=True,
        )
        try:
            self._thread.start()
        except RuntimeError:
            self._http.server_close()
            raise
        log.info("metrics are served", store=name, url=self.url)

    def close(self) -> None:
        """Stop listening. The store does this when it is closed; twice does no harm."""
        if os.getpid() != self._process or not self._closing.acquire(blocking=False):
            return
        engine_of(self._store).attachments.remove(self)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def abandon(self) -> None:
        """Close the copy of the socket in a forked child, which would keep the port in use."""
        self._http.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}>"


class _Page:
    """What the server shows of one store."""

    def __init__(self, store: AnyStore, name: str) -> None:
        self._store = store
        self._name = name
        self._client: Any = None
        self._missing: UnsupportedError | None = None
        try:
            self._client = import_of_extra("prometheus_client", "prometheus")
        except UnsupportedError as error:
            self._missing = error
        else:
            self._registry = self._client.CollectorRegistry()
            self._registry.register(PrometheusCollector(store, name=name))

    def json(self) -> bytes:
        """Return the metrics as JSON."""
        store = self._store
        shown = {
            "format": FORMAT,
            "store": self._name,
            "version": version("batchkeeper"),
            "pid": os.getpid(),
            "time": time.time(),
            "session": _session(store) if "ephemerals" in store.capabilities else None,
            "metrics": store.metrics().to_dict(),
        }
        return json.dumps(shown).encode()

    def prometheus(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics for Prometheus, and their content type.

        Raises:
            UnsupportedError: ``prometheus_client`` cannot be imported.
        """
        if self._missing is not None:
            raise UnsupportedError(str(self._missing))
        encode, content_type = self._client.exposition.choose_encoder(accept)
        return encode(self._registry), content_type


def _session(store: AnyStore) -> Mapping[str, Any]:
    session = store.session
    left = session.valid_until() - time.monotonic()
    return {
        "id": session.id,
        "state": session.state,
        "timeout": session.timeout if math.isfinite(session.timeout) else None,
        "valid_seconds": left if math.isfinite(left) else None,
    }


class _Http(ThreadingHTTPServer):
    allow_reuse_port = False  # Some versions of Python would share the port with other processes.

    def __init__(
        self,
        page: _Page,
        family: socket.AddressFamily,
        address: tuple[str, int],
        known: Collection[str] | None,
    ) -> None:
        self.page = page
        self.known = known  # the names that requests may use beside addresses; ``None`` for all
        self.address_family = family
        # Open connections, by the time at which they began. The server's thread adds them, and the
        # one that handles a request takes it out.
        self._begun: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind the socket."""
        # Not HTTPServer's, which also looks up the name of the machine; that may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection beyond the most."""
        return len(self._begun) < _MOST

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request on a thread of its own."""
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection. Either thread may call this."""
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off the clients that have had their time; runs after each look."""
        overdue = time.monotonic() - _PATIENCE
        for request, begun in self._begun.copy().items():
            if begun < overdue:
                with suppress(OSError):  # It has just ended.
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what would be printed."""
        error = sys.exception()
        log.debug("a request for metrics has failed", client=client_address[0], reason=repr(error))


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = _PATIENCE
    server_version = "batchkeeper"
    sys_version = ""

    def do_GET(self) -> None:
        page = self.server.page
        if not self._names_us(self.headers.get("Host")):
            name = "use an IP address or localhost, or serve with allow_remote=True\n"
            self._send_text(HTTPStatus.MISDIRECTED_REQUEST, name)
            return
        try:
            match self.path.partition("?")[0]:
                case "/metrics.json":
                    self._send(HTTPStatus.OK, page.json(), "application/json")
                case "/metrics":
                    body, content_type = page.prometheus(self.headers.get("Accept", ""))
                    self._send(HTTPStatus.OK, body, content_type)
                case "/":
                    self._send_text(HTTPStatus.OK, _PATHS)
                case _:
                    self._send_text(HTTPStatus.NOT_FOUND, f"not found; there are\n{_PATHS}")
        except UnsupportedError as error:
            self._send_text(HTTPStatus.NOT_IMPLEMENTED, f"{error}\n")
        except StoreClosedError as error:
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")

    def _names_us(self, host: str | None) -> bool:
        # Browsers always say a host; a name may be one that an attacker has pointed here.
        if host is None or self.server.known is None:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self.server.known or bool(ip_address(name.partition("%")[0]))
        except ValueError:
            return False

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log a request."""
        log.debug("metrics were requested", request=format % args)

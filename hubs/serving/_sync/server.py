# Made from async_server.py by `python tools/faces.py`: change that file, and run this command.
"""A gRPC server that makes a hub reachable over the network; ``schema`` has the messages.

gRPC runs each request in its own task (or thread). A subscriber is connected as long as its request
lasts: when its client cancels or goes, its connection is closed, and the wait for messages ends.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import grpc
from grpc import StatusCode

from ....batching.background import Signal
from ....coordination._sync.key_locks import KeyLocks
from ....ops.errors import (
    AuthenticationError,
    InvalidSettingError,
    MetadataStoreError,
    QueueFullError,
)
from ....ops.log import get_logger
from ...errors import TopicLostError
from ...names import name_text
from ..messages import Redirect
from ..schema import METHODS, SERVICE, messages
from ..security import (
    HubTLS,
    Tokens,
    address_text,
    check_loopback,
    check_who,
    identity_of,
    named_by,
)
from ..wire import (
    SERVER_OPTIONS,
    attempt_in,
    fitting,
    hub_of,
    messages_of,
    preferences_in,
    refusal_of,
)
from ..workers import Workers
from .hub import TopicHub
from .owned import Subscription

__all__ = ["HubServer"]

log = get_logger("batchkeeper.hubs")

# Seconds that `stop` gives to running requests.
_GRACE: Final = 5.0
# The limit of requests at a time, those of subscribers included. gRPC refuses more.
_MOST_REQUESTS: Final = 4_096
# The limit of subscriptions per connection.
_MOST_SUBSCRIPTIONS: Final = 1_000
# The limit of messages per reply.
_MOST_MESSAGES: Final = 1_000
# Seconds after which a request that waits for a hub looks whether its client has gone.
_LOOK: Final = 1.0


class HubServer:
    """Makes a hub reachable by gRPC. Listen, serve, and stop.

    Listen first, because the hub's address needs the port::

        server = HubServer()
        address = await server.listen()
        hub = TopicHub(store, region, address, logs)
        await hub.start()
        server.serve(hub)

    Without arguments, it listens on loopback only, and believes each client's name. Beyond
    loopback, it needs TLS and a proof of who its clients are: certificates, or tokens. A client can
    then publish and subscribe as itself only, so access rules hold.

    Args:
        tls: the hub's certificate and key. With ``ca``, each client needs a certificate that it has
            signed, and is named by its common name.
        tokens: the name of the client by its token, as a mapping or as a function that returns
            ``None`` for an unknown token. The function is called for each request.

    Raises:
        InvalidSettingError: ``tls`` has no certificate.
    """

    def __init__(self, *, tls: HubTLS | None = None, tokens: Tokens | None = None) -> None:
        self._credentials = None if tls is None else tls.of_server()
        self._proves = tokens is not None or (tls is not None and tls.ca is not None)
        self._tokens = tokens
        self._process = os.getpid()
        self._ready = Signal()  # Set when there is a hub, or never will be.
        self._key_locks = KeyLocks()  # for each subscriber of a topic
        self._lock = threading.Lock()  # guards the following fields
        self._hub: TopicHub | None = None
        self._server: Any = None
        self._connected: dict[bytes, _Connected] = {}
        self._peers: Counter[str] = Counter()  # the subscriptions of each connection
        self._stopped = False

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start listening, and return the address. Requests wait until there is a hub.

        Args:
            host: the host to listen on.
            port: the port; 0 for any free port.

        Raises:
            OSError: listening on the port failed.
            InvalidSettingError: the server already listens, or was stopped; or the host is not on
                loopback, and the server has no TLS, or no proof of who its clients are.
        """
        if not (self._credentials and self._proves):
            remedy = "listen there with tls=, and with its ca or with tokens="
            check_loopback(host, remedy)
        with self._lock:
            if self._server is not None or self._stopped:
                raise InvalidSettingError("a server listens once")
        server = self._made()
        where = address_text(host, port)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise OSError(f"{where} cannot be listened on: {error}") from error
        with self._lock:
            self._server = server
        server.start()
        return address_text(host, port)

    def serve(self, hub: TopicHub) -> None:
        """Answer requests with this hub.

        Raises:
            InvalidSettingError: the server already has a hub.
        """
        with self._lock:
            if self._hub is not None:
                raise InvalidSettingError(f"the server serves {self._hub.address!r}")
            self._hub = hub
        self._ready.set()

    def stop(self) -> None:
        """Stop listening, and end all connections. Stopping twice is harmless.

        Running requests have 5 seconds to finish and get their answers. Later requests get no
        answer. Subscribers must subscribe elsewhere, and continue from their consume marks.
        """
        if os.getpid() != self._process:  # The connections are the parent's.
            return
        with self._lock:
            self._stopped = True
            server, connected = self._server, [*self._connected.values()]
        self._ready.set()
        for one in connected:
            one.subscription.close()
        if server is not None:
            server.stop(_GRACE).wait()

    def _made(self) -> Any:
        handlers = {name: self._handler(name) for name in METHODS}
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        interceptors: Any = [] if self._tokens is None else [_Guard(self._tokens)]
        return grpc.server(
            Workers(),  # type: ignore[arg-type]  # It takes any executor.
            handlers=[generic],
            interceptors=interceptors,
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=_MOST_REQUESTS,
        )

    def _handler(self, name: str) -> Any:
        """Return what runs the requests of a method."""
        read = messages[f"{name}Request"].FromString
        write = messages[f"{name}Reply"].SerializeToString
        if METHODS[name]:
            return grpc.unary_stream_rpc_method_handler(self._subscribe, read, write)
        calls: dict[str, Callable[[Any, Any], Any]] = {
            "Publish": self._publish,
            "Consumed": self._consumed,
            "Close": self._close,
            "Unsubscribe": self._unsubscribe,
        }
        call = calls[name]

        def answered(request: Any, context: Any) -> Any:
            try:
                return call(request, context)
            except Exception as error:
                failure = error
            return _refuse(context, failure)

        return grpc.unary_unary_rpc_method_handler(answered, read, write)

    def _publish(self, request: Any, context: Any) -> Any:
        who = name_text(request.who)
        hub = self._admitted(context, who)
        done = hub.publish(who, request.topic, request.body, request.redirected)
        if isinstance(done, Redirect):
            return messages["PublishReply"](redirect=hub_of(done.hub))
        return messages["PublishReply"](number=done.number, hub=hub_of(done.hub))

    def _subscribe(self, request: Any, context: Any) -> Iterator[Any]:
        reply = messages["SubscribeReply"]
        try:
            made = self._attached(request, context)
            if isinstance(made, Redirect):
                yield reply(redirect=hub_of(made.hub))
                return
            key = secrets.token_bytes(16)
            try:
                self._connect(key, made, request, context)
                yield reply(subscription=key)
                while True:
                    found = made.take(_MOST_MESSAGES)
                    while found:
                        count = fitting(found)
                        yield messages_of(found[:count])
                        found = found[count:]
            finally:
                self._disconnect(key)
                made.close()
        except Exception as error:
            failure = error
        _refuse(context, failure)

    def _attached(self, request: Any, context: Any) -> Subscription | Redirect:
        who = name_text(request.who)
        hub = self._admitted(context, who)
        # Requests that begin or remove one subscription are executed by their arrival. A client
        # without an answer asks again. If its first request ended last, it would replace the
        # connection that the client uses.
        key = _key(request)
        self._key_locks.lock(key)
        try:
            return hub.subscribe(
                who,
                request.topic,
                request.redirected,
                request.mode,
                preferences_in(request.preferences),
                attempt_in(request),
            )
        finally:
            self._key_locks.unlock(key)

    def _unsubscribe(self, request: Any, context: Any) -> Any:
        who = name_text(request.who)
        hub = self._admitted(context, who)
        key = _key(request)
        self._key_locks.lock(key)
        try:
            gone = hub.unsubscribe(who, request.topic, request.redirected)
        finally:
            self._key_locks.unlock(key)
        if isinstance(gone, Redirect):
            return messages["UnsubscribeReply"](redirect=hub_of(gone.hub))
        return messages["UnsubscribeReply"](removed=gone)

    def _consumed(self, request: Any, context: Any) -> Any:
        self._found(request, context).consumed(request.number)
        return messages["ConsumedReply"]()

    def _close(self, request: Any, context: Any) -> Any:
        self._found(request, context).close()
        self._disconnect(request.subscription)
        return messages["CloseReply"]()

    def _admitted(self, context: Any, who: str) -> TopicHub:
        """Return the hub for a client, as soon as there is one."""
        check_who(identity_of(context, self._tokens), who)
        while context.is_active() and not self._ready.wait(_LOOK):
            pass
        with self._lock:
            hub = None if self._stopped else self._hub
        if hub is None:
            raise ConnectionAbortedError("the server has no hub, or stops")
        return hub

    def _connect(self, key: bytes, made: Subscription, request: Any, context: Any) -> None:
        peer = context.peer()
        # As `_admitted` has checked.
        identity = name_text(request.who) if self._proves else None
        with self._lock:
            stopped = self._stopped
            full = self._peers[peer] >= _MOST_SUBSCRIPTIONS
            if not (stopped or full):
                self._connected[key] = _Connected(made, peer, identity)
                self._peers[peer] += 1
        if stopped:
            raise TopicLostError("the server stops")
        if full:
            raise QueueFullError(
                f"a connection has at most {_MOST_SUBSCRIPTIONS} subscriptions: open another"
            )
        if not context.add_callback(made.close):
            raise TopicLostError("the client has gone")

    def _disconnect(self, key: bytes) -> None:
        with self._lock:
            one = self._connected.pop(key, None)
            if one is not None:
                self._peers[one.peer] -= 1
                if not self._peers[one.peer]:
                    del self._peers[one.peer]

    def _found(self, request: Any, context: Any) -> Subscription:
        with self._lock:
            one = self._connected.get(request.subscription)
        if one is None or one.identity != identity_of(context, self._tokens):
            raise TopicLostError("the hub has no such subscription any more")
        return one.subscription


class _Connected(NamedTuple):
    """A subscriber that is connected: by which connection, and who it has proved to be."""

    subscription: Subscription
    peer: str
    identity: str | None


_Interceptor: Any = grpc.ServerInterceptor


class _Guard(_Interceptor):  # type: ignore[misc]  # The stubs differ in their parameters.
    """Refuses clients without a token before their requests are read."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

        def refuse(_: Iterator[Any], context: Any) -> None:
            context.abort(StatusCode.UNAUTHENTICATED, "a token that this hub knows is needed")

        self._refusal = grpc.stream_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        """Return what handles a call."""
        try:
            named_by(call.invocation_metadata, self._tokens)
        except AuthenticationError:
            return self._refusal
        return continuation(call)


def _refuse(context: Any, error: Exception) -> Any:
    """End a call with an error; gRPC raises one of its own for that."""
    if not isinstance(error, MetadataStoreError | OSError):  # Of a listener, for example.
        log.error("a request has failed", exc_info=error)
    code, text, trailing = refusal_of(error)
    context.set_trailing_metadata(trailing)
    return context.abort(code, text)


def _key(request: Any) -> str:
    """Return the key of the lock of a subscription."""
    return repr((request.topic, request.who))

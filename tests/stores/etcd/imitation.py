"""Servers with a part of etcd's API: a proxy before a real etcd that refuses some requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from batchkeeper.stores.etcd.wire.protos import messages

#: Returns the answer to a request of a method: an error, bytes, or ``None`` to pass it on.
Imitation: TypeAlias = Callable[[str, bytes], "tuple[grpc.StatusCode, str] | bytes | None"]


class _Passing(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, imitation: Imitation) -> None:
        self._channel = channel
        self._imitation = imitation

    def service(self, details: Any) -> Any:
        def unary(request: bytes, context: Any) -> bytes:
            answer = self._imitation(details.method, request)
            if isinstance(answer, tuple):
                context.abort(*answer)
            if isinstance(answer, bytes):
                return answer
            try:
                return bytes(self._channel.unary_unary(details.method)(request))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())  # type: ignore[attr-defined]
                raise

        return grpc.unary_unary_rpc_method_handler(unary)


@contextmanager
def imitated(address: str, imitation: Imitation) -> Iterator[str]:
    """Have a server in place of an etcd, without streams; return its address."""
    server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="imitation"))
    with grpc.insecure_channel(address) as channel:
        server.add_generic_rpc_handlers((_Passing(channel, imitation),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def kine(method: str, request: bytes) -> tuple[grpc.StatusCode, str] | None:
    """Refuse what kine refuses: all transactions but those that change one key at a revision."""
    if method.endswith("/Txn"):
        refusal = "etcdserver: unsupported operations in txn request"
        return grpc.StatusCode.INVALID_ARGUMENT, refusal
    return None


def without_nesting(method: str, request: bytes) -> tuple[grpc.StatusCode, str] | None:
    """Refuse nested transactions."""
    if method.endswith("/Txn"):
        txn = messages.TxnRequest.FromString(request)
        if any(operation.HasField("request_txn") for operation in (*txn.success, *txn.failure)):
            return grpc.StatusCode.UNIMPLEMENTED, "nested transactions are not supported"
    return None


def without_conditions(method: str, request: bytes) -> bytes | None:
    """Answer each transaction as if its conditions held."""
    if not method.endswith("/Txn"):
        return None
    return bytes(messages.TxnResponse(succeeded=True).SerializeToString())

"""A line to etcd on which a script loses requests and answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from batchkeeper.ops import IndeterminateError
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages

from ...waiting import soon


class Line:
    """Does to each request that writes what a script says, on the way to a real etcd.

    - ``lost``: it does not arrive before it is ``deliver``ed, and the caller cannot know.
    - ``executed``: it is carried out, and its answer is lost.
    - ``twice``: it arrives twice, and the caller gets the second answer.
    - a callable: called instead; to raise something, or to meddle and be followed by the request.

    What the script does not reach passes.
    """

    def __init__(self, connection: EtcdConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script: deque[str | Callable[[], None]] = deque()
        self.late: list[bytes] = []
        self._connection = connection
        self._call = self._connection.call
        monkeypatch.setattr(self._connection, "call", self._intercept)

    def deliver(self) -> None:
        """Deliver the lost request."""
        for request in self.late:
            self._call("txn", request, soon(), write=True)

    def revoke(self) -> None:
        """End all leases, and with them the write ids."""
        stub = grpc_stubs.LeaseStub(grpc.insecure_channel(self._connection.open(soon()).address))
        for lease in stub.LeaseLeases(messages.LeaseLeasesRequest()).leases:
            stub.LeaseRevoke(messages.LeaseRevokeRequest(ID=lease.ID))

    def _intercept(self, method: Any, request: Any, deadline: float, **more: Any) -> Any:
        step = self.script.popleft() if more["write"] and self.script else None
        if step == "lost":
            self.late.append(request)
            raise IndeterminateError("a straggler")
        if callable(step):
            step()
        if step == "twice":
            self._call(method, request, deadline, **more)
        response = self._call(method, request, deadline, **more)
        if step == "executed":
            raise IndeterminateError("the answer was lost")
        return response

"""The facet that reads and sets the access control lists of nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    NotFoundError,
    OperationTimeoutError,
)
from ...ops.results import Acl
from .session.connection import ZooKeeperConnection
from .wire.acls import acl_request, format_acl, parse_acl, read_acl, read_acl_version
from .wire.errors import BAD_VERSION, CONNECTION_LOSS, NO_NODE
from .wire.exchanges import Reply, parse_reply
from .wire.jute import GET_ACL, SET_ACL

__all__ = ["ZooKeeperAcls"]


class ZooKeeperAcls:
    """Access control lists of single nodes; see ``stores.backend.Acls``."""

    def __init__(self, connection: ZooKeeperConnection, chroot: str) -> None:
        self._connection = connection
        self._chroot = chroot

    def get(self, path: str, timeout: float) -> Acl:
        request = (GET_ACL, acl_request(self._node(path)))
        deadline = time.monotonic() + timeout
        reply: Reply = CONNECTION_LOSS
        while reply == CONNECTION_LOSS:
            (reply,) = self._connection.exchange([request], deadline, repeat=True)
        found = parse_reply(reply, read_acl)
        if isinstance(found, tuple):
            rights, version = found
            return Acl(path, format_acl(rights), version)
        raise self._error(found, path)

    def set(
        self, path: str, acl: str | Sequence[str], expected_version: int | None, timeout: float
    ) -> int:
        version = -1 if expected_version is None else expected_version  # -1: at any version
        request = (SET_ACL, acl_request(self._node(path), parse_acl(acl), version))
        deadline = time.monotonic() + timeout
        (reply,) = self._connection.exchange([request], deadline, repeat=False)
        if isinstance(reply, OperationTimeoutError):
            # Only multis are not sent any more when their caller has given up.
            raise IndeterminateError(f"{reply}: the acl of {path!r} may still be set") from reply
        if reply == BAD_VERSION:
            raise BadVersionError(
                f"the acl of {path!r} is not at version {version}", path=path, expected=version
            )
        found = parse_reply(reply, read_acl_version, write=True)
        if isinstance(found, list):
            return found[0]
        raise self._error(found, path)

    def _node(self, path: str) -> bytes:
        return (f"{self._chroot}{path}".rstrip("/") or "/").encode()

    def _error(self, found: int | MetadataStoreError, path: str) -> MetadataStoreError:
        if isinstance(found, MetadataStoreError):
            return found
        if found == NO_NODE:
            return NotFoundError(f"there is no node at {path!r}", path=path)
        return self._connection.refused(found, path)

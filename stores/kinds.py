"""The kinds of stores. Each has one record, which everything else reads.

Code that depends on the kind of a store reads its record, which ``registry.store_kind(url)`` finds.
The command takes its help from it, the pipeline learns whether tasks can share a store, and the
bench and the tests learn how to create one. No other code examines the scheme of a URL.

To add a store, write its back end and add its record to :data:`BUILT_IN`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias

from ..ops.capabilities import CAPABILITIES, Capability
from ..ops.errors import InvalidSettingError, UnsupportedError
from .backend import Backend
from .urls import ConnectOptions, StoreURL

__all__ = ["BUILT_IN", "Connect", "StoreKind", "load_name"]

#: Opens a store. Raises ``StoreUnavailableError`` with the address if the store cannot be reached.
Connect: TypeAlias = Callable[[StoreURL, ConnectOptions], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """The properties of a kind of store, known before a store is opened.

    Some attributes are names to import, ``"package.module:attribute"``. They are imported when
    needed.

    Attributes:
        scheme: the scheme of its URLs, in lower case; also the kind's name.
        title: the name shown to users.
        url_form: the form of its URLs, for messages and help.
        connect: the function that opens a store, or its name to import.
        capabilities: the features of its stores beyond the operations that all stores have.
            ``store.capabilities`` is this set.
        aliases: further schemes.
        url_note: a note on the URL for the help, for example about aliases.
        package: the package to install if ``connect`` cannot be imported.
        extra: the extra of batchkeeper that installs the package; ``None`` if every installation
            contains it.
        in_process: whether its stores live in one process and end with it, so that processes cannot
            share them.
        local_directory: whether its stores are directories of this machine, each open for writing
            in one process at a time. ``url?read_only=true`` then opens one beside its writer.
        sasl: whether its servers have logins with SASL.
        parents_count: whether the first put of a path with values below it may create version 1
            instead of 0.

    Raises:
        InvalidSettingError: a scheme is invalid, or a capability is unknown.
    """

    scheme: str
    title: str
    url_form: str
    connect: str | Connect
    capabilities: frozenset[Capability]
    aliases: tuple[str, ...] = ()
    url_note: str = ""
    package: str | None = None
    extra: str | None = None
    in_process: bool = False
    local_directory: bool = False
    sasl: bool = False
    parents_count: bool = False

    def __post_init__(self) -> None:
        for scheme in self.schemes:
            if not re.fullmatch("[a-z][a-z0-9+.-]*", scheme):
                raise InvalidSettingError(f"not a valid URL scheme in lower case: {scheme!r}")
        object.__setattr__(self, "capabilities", frozenset(self.capabilities))
        if unknown := self.capabilities - CAPABILITIES:
            raise InvalidSettingError(
                f"{self.scheme} states unknown capabilities: {', '.join(sorted(unknown))} "
                f"(known: {', '.join(sorted(CAPABILITIES))})"
            )

    @property
    def schemes(self) -> tuple[str, ...]:
        """All schemes of its URLs; ``scheme`` is the first."""
        return (self.scheme, *self.aliases)

    def load(self) -> Connect:
        """Import the function that opens its stores.

        Raises:
            UnsupportedError: it cannot be imported. The message says what to install, or that a
                module of this package is missing.
        """
        if not isinstance(self.connect, str):
            return self.connect
        try:
            found: Connect = load_name(self.connect)
        except ImportError as error:
            if own_module(error):
                raise UnsupportedError(
                    f"the {self.scheme} store cannot be imported from this installation of "
                    f"batchkeeper ({error}); what bundled it must include all of its modules"
                ) from error
            wanted = f"'batchkeeper[{self.extra}]'" if self.extra else self.package
            mend = f"; install it with: pip install --upgrade {wanted}" if wanted else ""
            raise UnsupportedError(
                f"the {self.scheme} store needs the package {self.package or self.connect}, which "
                f"cannot be imported ({error}){mend}"
            ) from error
        return found


def own_module(error: ImportError) -> bool:
    """Say whether an import failed for a module of batchkeeper, which no other package brings."""
    return (error.name or "").partition(".")[0] == (__package__ or "").partition(".")[0]


def load_name(name: str) -> Any:
    """Import the attribute that ``"package.module:attribute"`` names.

    Raises:
        ImportError: the module cannot be imported, or lacks the attribute.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError as error:
        raise ImportError(f"{module} has no attribute {attribute!r}", name=module) from error


_RECORDS: Final = (
    StoreKind(
        scheme="rocksdb",
        title="RocksDB",
        url_form="rocksdb:///ABSOLUTE/DIRECTORY",
        connect="batchkeeper.stores.rocksdb:connect",
        capabilities=frozenset(
            {
                "ephemerals",
                "sequences",
                "watches",
                "transactions",
                "expected_revisions",
                "linearizable_reads",
                "times",
            }
        ),
        package="rocksdict",
        local_directory=True,
    ),
    StoreKind(
        scheme="etcd",
        title="etcd",
        url_form="etcd://HOST:PORT[,HOST:PORT...][/PREFIX]",
        connect="batchkeeper.stores.etcd:connect",
        capabilities=frozenset(
            {
                "snapshots",
                "history",
                "ephemerals",
                "sequences",
                "watches",
                "transactions",
                "expected_revisions",
                "linearizable_reads",
            }
        ),
        aliases=("etcds",),
        url_note="etcds:// for TLS",
        package="etcd3",
    ),
    StoreKind(
        scheme="zookeeper",
        title="ZooKeeper",
        url_form="zookeeper://HOST:PORT[,HOST:PORT...][/CHROOT]",
        connect="batchkeeper.stores.zookeeper:connect",
        capabilities=frozenset(
            {"ephemerals", "sequences", "watches", "transactions", "acls", "times"}
        ),
        aliases=("zk",),
        url_note="or zk://",
        package="kazoo",
        sasl=True,
        parents_count=True,
    ),
    StoreKind(
        scheme="hbase",
        title="HBase",
        url_form="hbase://HOST:PORT[,HOST:PORT...][/[NAMESPACE:]TABLE]",
        connect="batchkeeper.stores.hbase.backend:connect",
        capabilities=frozenset(
            {"ephemerals", "sequences", "expected_revisions", "linearizable_reads"}
        ),
        aliases=("hbases",),
        url_note="hbases:// for TLS",
        package="protobuf",
    ),
    StoreKind(
        scheme="memory",
        title="memory",
        url_form="memory://NAME",
        connect="batchkeeper.stores.memory:connect",
        capabilities=frozenset(
            {
                "ephemerals",
                "sequences",
                "watches",
                "transactions",
                "expected_revisions",
                "linearizable_reads",
                "times",
            }
        ),
        in_process=True,
    ),
)

#: The kinds of this package, by scheme (not by alias).
BUILT_IN: Final[Mapping[str, StoreKind]] = {kind.scheme: kind for kind in _RECORDS}

"""What is measured: a store that is there, or one that is made for the measurement."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .. import open_store
from ..batching import BatchingConfig, MetadataStore
from ..ops.errors import InvalidSettingError, MetadataStoreError
from ..stores.registry import StoreURL, parse_url
from .baseline import PLAIN_CLIENTS, PlainClient
from .disk import Disk, examine
from .readback import remove_below
from .servers import EtcdServer, LocalServer, ZooKeeperServer

__all__ = ["BARE_TARGETS", "Target", "open_target"]

#: What can be named instead of a URL.
BARE_TARGETS: Final = ("rocksdb", "etcd", "zookeeper", "memory")

# A node of 100 bytes takes half a KiB of Java's heap, and every setting and round adds some ten
# thousand.
_ZOOKEEPER_HEAP_MIB: Final = 2048


@dataclass(frozen=True, slots=True)
class Target:
    """A store to be measured.

    Attributes:
        name: as the caller gave it.
        url: of the store.
        root: a folder in the store that nobody else uses.
        disk: below the data; ``None`` where they are in memory, or on somebody else's server.
        plain: what its puts are compared with; ``None`` where there is nothing.
        connect_timeout: seconds in which the store must have been reached.
    """

    name: str
    url: StoreURL
    root: str
    disk: Disk | None
    plain: PlainClient | None
    connect_timeout: float

    def open(self, batching: BatchingConfig | None = None) -> MetadataStore:
        """Open the store once more.

        Raises:
            StoreUnavailableError: it cannot be reached.
        """
        return open_store(self.url.text, batching=batching, connect_timeout=self.connect_timeout)


@contextmanager
def open_target(
    name: str, directory: Path, warn: Callable[[str], None], connect_timeout: float = 10.0
) -> Iterator[Target]:
    """Make what is needed to measure ``name``, and remove it afterwards, however that ends.

    Args:
        name: one of :data:`BARE_TARGETS`, or a store's URL. A bare ``etcd`` or ``zookeeper`` is a
            real server started here; ``rocksdb`` is a store of this process.
        directory: where the data of stores and servers made here lie; made if missing.
        connect_timeout: seconds in which the store must have been reached.
        warn: is told what makes the figures worth less, and what is left behind.

    Raises:
        InvalidSettingError: ``name`` is neither, or the directory cannot be used.
        StoreUnavailableError: the store cannot be reached.
        ServerMissingError: a part of the server is not on this machine.
        ServerStartError: the server does not start.
    """
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        if name not in BARE_TARGETS:
            if "://" not in name:
                raise InvalidSettingError(
                    f"neither a store's URL nor one of {', '.join(BARE_TARGETS)}: {name!r}"
                )
            url, disk = parse_url(name), None
        elif name == "memory":
            url, disk = parse_url(f"memory:/{root}"), None
        else:
            scratch = stack.enter_context(_scratch(directory, root.lstrip("/")))
            disk = examine(scratch)
            if disk.in_memory:
                warn(f"{directory} is memory ({disk.file_system}): nothing is ever synced there")
            if name == "rocksdb":
                url = parse_url(f"rocksdb://{quote(str(scratch / 'store'))}")
            else:
                url = parse_url(stack.enter_context(_server(name, scratch)).url)
        plain = None if os.environ.get("BATCHKEEPER_USERNAME") else PLAIN_CLIENTS.get(url.scheme)
        target = Target(name, url, root, disk, plain, connect_timeout)
        if url.scheme == "memory":
            # A memory store is dropped with its last opener; the harness opens one several times.
            stack.enter_context(target.open())
            if name not in BARE_TARGETS:
                warn(f"{name} lives in this process only: nothing is kept when the command ends")
        elif name not in BARE_TARGETS:
            target.open().close()  # Fails now, if it cannot be reached.
            stack.callback(_clean, target, warn)
        yield target


@contextmanager
def _scratch(directory: Path, name: str) -> Iterator[Path]:
    scratch = directory.absolute() / name
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise InvalidSettingError(
            f"the directory {directory} cannot be used: {error.strerror}"
        ) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _server(name: str, scratch: Path) -> LocalServer:
    if name == "etcd":
        return EtcdServer(scratch)
    return ZooKeeperServer(scratch, heap_mib=_ZOOKEEPER_HEAP_MIB)


def _clean(target: Target, warn: Callable[[str], None]) -> None:
    try:
        with target.open() as store:
            remove_below(store, target.root)
    except MetadataStoreError as error:
        # The figures are there all the same.
        warn(f"what is below {target.root} was not removed: {error}")

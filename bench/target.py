"""The store that is measured: an existing one, or one created for the measurement."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .. import open_store
from ..batching import BatchingConfig, MetadataStore
from ..ops.errors import InvalidSettingError, MetadataStoreError
from ..stores.kinds import BUILT_IN, StoreKind
from ..stores.registry import parse_url, store_kind
from ..stores.urls import StoreURL
from ..testing.servers import ALL_SERVERS, check_members
from .disk import Disk, examine

#: The names to use instead of a URL: the kinds of stores that the bench can create.
BARE_TARGETS: Final = tuple(
    name
    for name, kind in BUILT_IN.items()
    if kind.local_directory or kind.in_process or name in ALL_SERVERS
)


@dataclass(frozen=True, slots=True)
class Target:
    """A store to measure.

    Attributes:
        name: the name or URL that the caller gave.
        url: the URL of the store.
        root: a folder in the store that no other client uses.
        disk: the disk of the data; ``None`` if the data is in memory or on an existing server.
        connect_timeout: seconds within which the store must answer.
        members: the number of members of the server that was started for the measurement; ``None``
            if none was.
        groups: the process groups of these members.
    """

    name: str
    url: StoreURL
    root: str
    disk: Disk | None
    connect_timeout: float
    members: int | None = None
    groups: tuple[int, ...] = ()

    @property
    def kind(self) -> StoreKind:
        """The record of the store's kind."""
        return store_kind(self.url)

    def open(self, batching: BatchingConfig | None = None) -> MetadataStore:
        """Open another client of the store.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        return open_store(self.url.text, batching=batching, connect_timeout=self.connect_timeout)


@contextmanager
def open_target(
    name: str,
    directory: Path,
    warn: Callable[[str], None],
    connect_timeout: float = 10.0,
    members: int | None = None,
) -> Iterator[Target]:
    """Yield a target to measure, and remove what was created for it, even after an error.

    Args:
        name: one of :data:`BARE_TARGETS`, or a store's URL. For a kind of store with servers, a
            bare name starts a throw-away server. The other bare names stand for stores in this
            process.
        directory: the folder for the data of the stores and servers created here; created if
            missing.
        warn: a function that receives warnings about less reliable figures and about data left
            behind.
        connect_timeout: seconds within which the store must answer.
        members: the number of members of the server to start, 1 by default.

    Raises:
        InvalidSettingError: ``name`` is neither, the directory cannot be used, or ``members`` is
            given although no server is started, or is no size of a cluster.
        StoreUnavailableError: the store cannot be reached.
        ServerMissingError: a part of the server is not on this machine.
        ServerStartError: the server does not start.
    """
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    bare = BUILT_IN[name] if name in BARE_TARGETS else None
    if members is not None:
        if name not in ALL_SERVERS:
            raise InvalidSettingError(
                f"a number of members is only for the servers that the bench starts "
                f"({', '.join(ALL_SERVERS)}), and not for {name!r}"
            )
        check_members(members)
    if bare is None and "://" not in name:
        raise InvalidSettingError(
            f"neither a store's URL nor one of {', '.join(BARE_TARGETS)}: {name!r}"
        )
    disk: Disk | None = None
    groups: tuple[int, ...] = ()
    with ExitStack() as stack:
        if bare is None:
            text = name
        elif bare.in_process:
            text = f"{name}:/{root}"
        else:
            scratch = stack.enter_context(_scratch(directory, root.lstrip("/")))
            disk = examine(scratch)
            if disk.file_system in {"tmpfs", "ramfs"}:
                warn(f"{directory} is in memory ({disk.file_system}): no sync reaches a disk there")
            text, groups = _made(stack, bare, scratch, members or 1)
        size = (members or 1) if name in ALL_SERVERS else None
        target = Target(name, parse_url(text), root, disk, connect_timeout, size, groups)
        if target.kind.in_process:
            # A memory store ends with its last client, and the bench opens it several times. So
            # keep one client open.
            stack.enter_context(target.open())
            if bare is None:
                warn(f"{name} lives in this process: its data is lost when the command ends")
        elif bare is None:
            target.open().close()  # Fail now if the store cannot be reached.
            stack.callback(_clean, target, warn)
        yield target


@contextmanager
def _scratch(directory: Path, name: str) -> Iterator[Path]:
    scratch = directory.absolute() / name
    there = directory.exists()
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
        if not there:
            with suppress(OSError):  # It holds results.
                scratch.parent.rmdir()


def _made(
    stack: ExitStack, kind: StoreKind, scratch: Path, members: int
) -> tuple[str, tuple[int, ...]]:
    """Create a store, and return its URL, and the process groups of its server if it needs one."""
    if kind.local_directory:
        return f"{kind.scheme}://{quote(str(scratch / 'store'))}", ()
    server = ALL_SERVERS[kind.scheme].for_bench(scratch / "server", members=members)
    started = stack.enter_context(server)
    return started.url, tuple(member.process.pid for member in started.members)


def _clean(target: Target, warn: Callable[[str], None]) -> None:
    try:
        with target.open() as store:
            store.delete_recursive(target.root).result()
    except MetadataStoreError as error:
        # The figures are valid nevertheless.
        warn(f"the data below {target.root} was not removed: {error}")

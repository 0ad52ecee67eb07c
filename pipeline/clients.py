"""The client that a worker process keeps, and uses for one task after the other.

Spark's Python workers are forked, run one task at a time, serve tasks of several jobs, and end
without notice (``os._exit``). So this module does nothing at a worker's end: every task waits for
its writes before it returns, and the data that a server keeps for a client expires.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from .. import InvalidSettingError, MetadataStore, open_store
from .options import SourceOptions

__all__ = ["client", "opened"]

# How many clients a worker keeps that no task uses: a URL holds a prefix or chroot, so that an
# application may go through many.
_KEPT: Final = 4


class _Client(NamedTuple):
    options: SourceOptions  # Those that the store was opened with, and nothing of the task.
    store: MetadataStore


_lock = Lock()  # guards _idle; held to look and to change, never while a store opens or closes
_idle: OrderedDict[str, _Client] = OrderedDict()  # by URL; the one used last stands last


@contextmanager
def client(options: SourceOptions, *, read_only: bool = False) -> Generator[MetadataStore]:
    """Give a store for the time of a task, in the process that runs it.

    The client stays open for the next task with the same URL, if this one ends without an error. An
    embedded store is opened for this task and closed. When the block ends, with an error too,
    everything that was submitted in it has ended, so that a later attempt of the task meets nothing
    of this one.

    Args:
        options: which store, and with what settings.
        read_only: nothing will be written, and no store is made. A directory may then be open in
            several processes.

    Raises:
        InvalidSettingError: a named variable or file with a login is not there.
        MetadataStoreError: as for :func:`batchkeeper.open_store`.
    """
    if options.embedded:
        with opened(options, read_only=read_only) as store:
            yield store
        return
    asked = _connection(options)
    kept = _take(asked)
    store = kept.store if kept is not None else _open(options, create=not read_only)
    succeeded = False
    try:
        yield store
        succeeded = True
    finally:
        if succeeded:
            store.flush()
            _keep(_Client(asked, store))
        else:
            # What is wrong may be the client. This sends what is queued and waits for it, too.
            store.close()


@contextmanager
def opened(options: SourceOptions, *, read_only: bool = False) -> Generator[MetadataStore]:
    """Give a store for the time of the block, and close it: for the driver, and for its commits.

    Raises:
        InvalidSettingError: a named variable or file with a login is not there.
        MetadataStoreError: as for :func:`batchkeeper.open_store`.
    """
    with _open(_reading(options) if read_only else options, create=not read_only) as store:
        yield store


def _connection(options: SourceOptions) -> SourceOptions:
    """Return the options that an open store depends on, and no others."""
    return SourceOptions(
        url=options.url,
        batching=options.batching,
        connect_timeout=options.connect_timeout,
        session_timeout=options.session_timeout,
        operation_timeout=options.operation_timeout,
        username=options.username,
        username_env=options.username_env,
        password_env=options.password_env,
        password_file=options.password_file,
    )


def _take(asked: SourceOptions) -> _Client | None:
    with _lock:
        found = _idle.pop(asked.url, None)
    if found is None or found.options == asked:
        return found
    found.store.close()  # Other settings: there is one client for a URL.
    return None


def _keep(used: _Client) -> None:
    with _lock:
        before = _idle.pop(used.options.url, None)
        _idle[used.options.url] = used
        surplus = [_idle.popitem(last=False)[1] for _ in range(len(_idle) - _KEPT)]
    for other in (before, *surplus):
        if other is not None:
            other.store.close()


def _forget_in_child() -> None:
    """Leave the clients of the parent alone: their threads and connections are not the child's."""
    global _lock  # noqa: PLW0603 - Another thread of the parent may have held it.
    _lock = Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _reading(options: SourceOptions) -> SourceOptions:
    """Return options that open a directory without its lock."""
    if not options.embedded:
        return options
    address, _, query = options.url.partition("?")
    if any(name == "read_only" for name, _ in parse_qsl(query)):
        return options
    return replace(options, url=f"{address}?{query}{'&' if query else ''}read_only=true")


def _open(options: SourceOptions, *, create: bool) -> MetadataStore:
    return open_store(
        options.url,
        options.batching,
        connect_timeout=options.connect_timeout,
        session_timeout=options.session_timeout,
        operation_timeout=options.operation_timeout,
        username=_username(options),
        password=_password(options),
        create=create,
    )


def _username(options: SourceOptions) -> str | None:
    if options.username_env is None:
        return options.username
    return _variable("username_env", options.username_env)


def _password(options: SourceOptions) -> str | None:
    if options.password_env is not None:
        return _variable("password_env", options.password_env)
    if options.password_file is None:
        return None
    try:
        with open(options.password_file, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError(f"cannot read the password_file: {error}") from error


def _variable(option: str, name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise InvalidSettingError(
        f"{option} names {name!r}, but that environment variable is not set in this process (on "
        "executors, set it with spark.executorEnv)"
    )

"""The client that a worker process keeps and uses for one task after the other.

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
from threading import RLock
from typing import Final, NamedTuple
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

from .. import InvalidSettingError, MetadataStore, RateLimit, open_store
from .options import SourceOptions

__all__ = ["client", "limit_of", "opened"]

# The most idle clients that a worker keeps. A URL contains a prefix or chroot, so one application
# may use many URLs.
_KEPT: Final = 4


class _Client(NamedTuple):
    options: SourceOptions  # Only those that the store was opened with, none of the task.
    store: MetadataStore


_lock = RLock()  # guards _idle; never held while a store opens or closes
_limits: Final[WeakKeyDictionary[MetadataStore, RateLimit]] = WeakKeyDictionary()
_idle: OrderedDict[str, _Client] = OrderedDict()  # by URL; the most recently used is last


@contextmanager
def client(options: SourceOptions, *, read_only: bool = False) -> Generator[MetadataStore]:
    """Yield a store for the duration of a task, in the process that runs the task.

    If the task ends without an error, the client stays open for the next task with the same URL. An
    embedded store is opened for this task, and closed after it. When the block ends, even with an
    error, all operations submitted in it have ended. So a later attempt of the task runs beside no
    operation of this one.

    Args:
        options: the store and its settings.
        read_only: the task only reads, and a missing store is not created. Several processes may
            then have a directory open.

    Raises:
        InvalidSettingError: an environment variable or file with the login is missing.
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
            # The client itself may be at fault. `close` also sends queued operations and waits.
            store.close()


@contextmanager
def opened(options: SourceOptions, *, read_only: bool = False) -> Generator[MetadataStore]:
    """Yield a store for the duration of the block, and close it. The driver uses it.

    Raises:
        InvalidSettingError: an environment variable or file with the login is missing.
        MetadataStoreError: as for :func:`batchkeeper.open_store`.
    """
    with _open(_reading(options) if read_only else options, create=not read_only) as store:
        yield store


def _connection(options: SourceOptions) -> SourceOptions:
    """Return only the options that an open store depends on."""
    return SourceOptions(
        url=options.url,
        batching=options.batching,
        connect_timeout=options.connect_timeout,
        session_timeout=options.session_timeout,
        operation_timeout=options.operation_timeout,
        rate_limit=options.rate_limit,
        rate_tasks=options.rate_tasks,
        rate_budget=options.rate_budget,
        username=options.username,
        username_env=options.username_env,
        password_env=options.password_env,
        password_file=options.password_file,
        sasl=options.sasl,
        sasl_service=options.sasl_service,
        acl=options.acl,
    )


def _take(asked: SourceOptions) -> _Client | None:
    with _lock:
        found = _idle.pop(asked.url, None)
    if found is None or found.options == asked:
        return found
    found.store.close()  # Its settings differ, and there is one client for each URL.
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
    """Forget the parent's clients in a forked child, which does not have their threads."""
    global _lock  # noqa: PLW0603 - Another thread of the parent may have held it.
    _lock = RLock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _reading(options: SourceOptions) -> SourceOptions:
    """Return options that open a directory for reading, without its lock."""
    if not options.embedded:
        return options
    address, _, query = options.url.partition("?")
    if any(name == "read_only" for name, _ in parse_qsl(query)):
        return options
    return replace(options, url=f"{address}?{query}{'&' if query else ''}read_only=true")


def limit_of(store: MetadataStore) -> RateLimit | None:
    """Return the limit of a store's writes, if it was opened here with one."""
    return _limits.get(store)


def _open(options: SourceOptions, *, create: bool) -> MetadataStore:
    limit = None
    if options.rate_limit is not None:
        # A task of a known share has it alone, and an embedded store has one task.
        alone = options.embedded or options.rate_tasks is not None
        rate = options.rate_limit / (1 if options.embedded else options.rate_tasks or 1)
        limit = RateLimit(rate, None if alone else options.rate_budget, writes_only=True)
    store = open_store(
        options.url,
        options.batching,
        connect_timeout=options.connect_timeout,
        session_timeout=options.session_timeout,
        operation_timeout=options.operation_timeout,
        username=_username(options),
        password=options.password_env and _variable("password_env", options.password_env),
        password_file=options.password_file,
        sasl=options.sasl,
        sasl_service=options.sasl_service,
        acl=options.acl,
        create=create,
        rate_limit=limit,
    )
    if limit is not None:
        _limits[store] = limit
    return store


def _username(options: SourceOptions) -> str | None:
    if options.username_env is None:
        return options.username
    return _variable("username_env", options.username_env)


def _variable(option: str, name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise InvalidSettingError(
        f"{option} names {name!r}, but that environment variable is not set in this process (on "
        "executors, set it with spark.executorEnv)"
    )

"""Opens the stores that callers hold: checks the settings, connects, and wraps the back end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from .batching import AsyncMetadataStore, BatchingConfig, Hook, MetadataStore
from .batching.checks import check_capability
from .batching.hooks import check_hooks
from .batching.lifetime import on_thread
from .batching.reentry import in_back_end, refused
from .batching.settings import check_seconds
from .ops import InvalidSettingError, UnsupportedError
from .ops.log import get_logger
from .stores import Backend, ConnectOptions, RateLimit, connect, store_kind
from .stores.urls import SASL, Abandonment, Sasl, read_password

__all__ = ["Wrapper", "open_async_store", "open_store"]

_log = get_logger(__name__)

# Seconds that a task which gives up leaves to the thread that opens, to end what it has begun.
_LAST_WORDS: Final = 0.5

# The attributes that a back end must have.
_BACKEND = tuple(name for name in vars(Backend) if not name.startswith("_"))

#: Takes a back end and returns another around it. Closing the outer one closes the inner one.
Wrapper: TypeAlias = Callable[[Backend], Backend]


def open_store(
    url: str,
    batching: BatchingConfig | None = None,
    *,
    connect_timeout: float = 10.0,
    session_timeout: float = 30.0,
    operation_timeout: float = 30.0,
    username: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    sasl: Sasl | None = None,
    sasl_service: str | None = None,
    acl: str | Sequence[str] | None = None,
    create: bool = True,
    wrap: Wrapper | Sequence[Wrapper] = (),
    hooks: Hook | Sequence[Hook] = (),
    rate_limit: float | RateLimit | None = None,
) -> MetadataStore:
    """Open a store for the threads of this process.

    Args:
        url: ``memory://NAME``, ``rocksdb:///path``, ``etcd://host:port[,host:port...][/prefix]``
            (``etcds://`` for TLS) or ``zookeeper://host:port[,host:port...][/chroot]`` (``zk://``).
        batching: the settings of batches and queues; ``BatchingConfig()`` by default.
        connect_timeout: seconds within which the store must answer.
        session_timeout: seconds of silence after which the server ends the client's session.
        operation_timeout: seconds from the call to the deadline of an operation. The ``timeout`` of
            a call takes precedence.
        username: the user name of the login. By default, the login comes from the environment:
            from ``BATCHKEEPER_USERNAME`` with ``BATCHKEEPER_PASSWORD``, or with
            ``BATCHKEEPER_PASSWORD_FILE``, the name of a file whose first line is the password. A
            URL with a password is refused.
        password: the password of the login.
        password_file: the name of a file whose first line is the password, instead of ``password``.
            It is read again at each login.
        sasl: the mechanism of a SASL login to ZooKeeper, ``"digest-md5"`` or ``"gssapi"``, by
            default ``BATCHKEEPER_SASL``. ``"gssapi"`` takes the login from Kerberos's ticket cache,
            and ``username``, if given, is its principal.
        sasl_service: the service that ZooKeeper's servers have in Kerberos, by default
            ``BATCHKEEPER_SASL_SERVICE`` or ``"zookeeper"``.
        acl: the permissions of everything that the store creates on ZooKeeper: ``"open"`` (the
            default), ``"creator-all"`` (only this login), ``"read-all"`` (this login; others may
            read), or entries as ``zkCli`` takes them, such as ``["auth::cdrwa", "ip:10.0.0.5:r"]``.
            By default, ``BATCHKEEPER_ACL``.
        create: whether opening creates a missing RocksDB directory, HBase table or ZooKeeper
            chroot. With ``False``, opening creates nothing: a directory without a store and a
            missing table raise ``StoreUnavailableError``, and a missing chroot reads as empty until
            the first write creates it. etcd and memory ignore it.
        wrap: a wrapper, or a sequence of them. A wrapper is a function that takes a back end and
            returns another around it, such as a ``testing.FaultInjector``. The first wrapper
            stands next to the store, and each later one around the one before; the engine calls
            the last. Closing the store closes the last, and each wrapper closes the back end that
            it wraps, as ``stores.PassingBackend`` does.
        hooks: an object, or a sequence of objects, with one or more of the methods
            ``on_batch_sent(Batch)``, ``on_batch_ended(EndedBatch)``, ``on_conflict(Conflict)`` and
            ``on_session(SessionChange)``. The first three run on the threads that send batches, so
            they must be quick and must not wait for the store; ``on_session`` runs on the thread of
            the done-callbacks, or on the loop for tasks. An exception in a method is logged the
            first time, and changes nothing.
        rate_limit: operations per second, or a ``RateLimit``, which several stores can share.

    Raises:
        InvalidSettingError: the URL or a setting is invalid.
        InvalidPathError: the prefix or chroot is not a valid path.
        UnsupportedError: the package that the store needs cannot be imported, or the store lacks
            what an argument asks for.
        StoreUnavailableError: the store did not answer in time, or cannot be opened.
        AuthenticationError: the store refuses the login.
    """
    timeout = check_seconds("operation_timeout", operation_timeout)
    config = _check_batching(batching)
    login = _login(url, username, password, password_file, sasl, sasl_service)
    login["acl"] = _where_offered(url, "acl", acl)
    options = _connect_options(connect_timeout, session_timeout, login, create)
    wrappers = [*_check_wrappers(wrap), *_limiting(rate_limit, url)]
    checked = check_hooks(hooks)
    backend = _connect(url, options, wrappers)
    with _closing_on_failure(backend):
        stated = store_kind(url).capabilities
        return MetadataStore(backend, config, timeout, url, stated, checked)


def open_async_store(
    url: str,
    batching: BatchingConfig | None = None,
    *,
    connect_timeout: float = 10.0,
    session_timeout: float = 30.0,
    operation_timeout: float = 30.0,
    username: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    sasl: Sasl | None = None,
    sasl_service: str | None = None,
    acl: str | Sequence[str] | None = None,
    create: bool = True,
    wrap: Wrapper | Sequence[Wrapper] = (),
    hooks: Hook | Sequence[Hook] = (),
    rate_limit: float | RateLimit | None = None,
) -> _Opening:
    """Open a store for the tasks of the running event loop.

    Use the result in ``async with``, or await it. The arguments and errors are those of
    :func:`open_store`. The call itself checks the settings; all other errors are raised when the
    result is awaited.
    """
    timeout = check_seconds("operation_timeout", operation_timeout)
    config = _check_batching(batching)
    login = _login(url, username, password, password_file, sasl, sasl_service)
    login["acl"] = _where_offered(url, "acl", acl)
    options = _connect_options(connect_timeout, session_timeout, login, create)
    wrappers = [*_check_wrappers(wrap), *_limiting(rate_limit, url)]
    return _Opening(url, options, config, timeout, wrappers, check_hooks(hooks))


@dataclass(eq=False, repr=False)
class _Opening:
    """An asynchronous store that ``await`` or ``async with`` opens."""

    _url: str
    _options: ConnectOptions
    _config: BatchingConfig
    _timeout: float
    _wrappers: Sequence[Wrapper]
    _hooks: Sequence[Hook]
    _store: AsyncMetadataStore | None = None

    async def _open(self) -> AsyncMetadataStore:
        abandonment = Abandonment()
        options = replace(self._options, abandonment=abandonment)

        def opened() -> Backend:
            backend = _connect(self._url, options, self._wrappers)
            abandonment.ends_with(backend.close)
            return backend

        opening = on_thread(copy_context().run, opened)
        try:
            backend = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            ending = map(asyncio.wrap_future, (opening, on_thread(abandonment.give_up)))
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*ending, return_exceptions=True), _LAST_WORDS)
            raise
        loop = asyncio.get_running_loop()
        with _closing_on_failure(backend):
            stated = store_kind(self._url).capabilities
            return AsyncMetadataStore(
                backend, self._config, self._timeout, self._url, loop, stated, self._hooks
            )

    def __await__(self) -> Generator[Any, Any, AsyncMetadataStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncMetadataStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.close()


def _connect(url: str, options: ConnectOptions, wrappers: Sequence[Wrapper]) -> Backend:
    """Open a back end and put the wrappers around it; if one fails, close the back end."""
    if in_back_end():
        raise refused()
    backend = connect(url, options)
    for wrap in wrappers:
        with _closing_on_failure(backend):
            wrapped = wrap(backend)
            if lacking := [name for name in _BACKEND if not hasattr(wrapped, name)]:
                raise InvalidSettingError(
                    f"a wrapper must return a back end; {wrap!r:.80} returned {wrapped!r:.80}, "
                    f"which has no {lacking[0]!r}"
                )
        backend = wrapped
    return backend


@contextmanager
def _closing_on_failure(backend: Backend) -> Iterator[None]:
    try:
        yield
    except BaseException:
        try:
            backend.close()
        except Exception:  # The caller receives the first error.
            _log.exception("could not close a back end", backend=type(backend).__name__)
        raise


def _limiting(rate_limit: float | RateLimit | None, url: str) -> Sequence[Wrapper]:
    """Return the wrapper that keeps a limit, if there is one; it stands next to the engine."""
    if rate_limit is None:
        return ()
    limit = rate_limit if isinstance(rate_limit, RateLimit) else RateLimit(rate_limit)
    kind = store_kind(url)
    if limit.budget is not None and (kind.in_process or kind.local_directory):
        raise UnsupportedError(
            f"the budget {limit.budget!r} is kept by a server, and {kind.scheme}:// has none: one "
            "process has the store, so share the store, or leave the budget out"
        )
    return (limit,)


def _check_batching(batching: BatchingConfig | None) -> BatchingConfig:
    if batching is None:
        return BatchingConfig()
    if isinstance(batching, BatchingConfig):
        return batching
    raise InvalidSettingError(f"batching must be a BatchingConfig, not {batching!r:.80}")


def _check_wrappers(wrap: Wrapper | Sequence[Wrapper]) -> Sequence[Wrapper]:
    if callable(wrap):
        return (wrap,)
    # These are sequences, too; an empty one has no element that could be refused.
    data = isinstance(wrap, str | bytes | bytearray | memoryview | range)
    if isinstance(wrap, Sequence) and not data and all(map(callable, wrap)):
        return tuple(wrap)
    raise InvalidSettingError(
        f"wrap must be a function from back end to back end, or a sequence of such functions, "
        f"not {wrap!r:.80}"
    )


def _login(
    url: str,
    username: str | None,
    password: str | None,
    password_file: str | None,
    sasl: str | None,
    sasl_service: str | None,
) -> dict[str, Any]:
    """Return the options of a login, with what the environment adds."""
    texts = (username, password, password_file, sasl, sasl_service)
    names = ("username", "password", "password_file", "sasl", "sasl_service")
    for name, text in zip(names, texts, strict=True):
        if text is not None and not isinstance(text, str):
            raise InvalidSettingError(f"{name} must be a str, not {type(text).__name__}")
    if password and password_file:
        raise InvalidSettingError("password and password_file exclude each other")
    sasl = _where_offered(url, "sasl", sasl)
    if sasl not in (None, *SASL):
        raise InvalidSettingError(f"sasl must be one of {', '.join(SASL)}, not {sasl!r}")
    if not password_file and sasl != "gssapi":  # which has no password
        password = password or os.environ.get("BATCHKEEPER_PASSWORD") or None
        variable = "BATCHKEEPER_PASSWORD_FILE"
        password_file = None if password else os.environ.get(variable) or None
    # The process may change its directory before a login.
    file = password_file and os.path.abspath(password_file)
    username = username or os.environ.get("BATCHKEEPER_USERNAME") or None
    for name, text in (("username", username), ("password", password)):
        if text is not None and text != text.encode(errors="ignore").decode():
            raise InvalidSettingError(f"{name} must be valid in UTF-8")
    return {
        "username": username,
        "password": read_password(file) if file else password,
        "password_file": file,
        "sasl": sasl,
        "sasl_service": sasl_service or os.environ.get("BATCHKEEPER_SASL_SERVICE") or "zookeeper",
    }


def _where_offered(url: str, name: Literal["sasl", "acl"], given: Any) -> Any:
    """Return an argument, or its variable, which may be meant for a store of another kind."""
    variable = os.environ.get(f"BATCHKEEPER_{name.upper()}") or None
    if given is None and variable is None:
        return None
    kind = store_kind(url)
    if kind.sasl if name == "sasl" else "acls" in kind.capabilities:
        return variable if given is None else given
    if given is None:
        return None
    if name == "acl":
        check_capability("acls", "acl", kind.capabilities, kind.title)
    raise UnsupportedError(f"{kind.title} has no logins with SASL")


def _connect_options(
    connect_timeout: float, session_timeout: float, login: dict[str, Any], create: bool
) -> ConnectOptions:
    if not isinstance(create, bool):
        raise InvalidSettingError(f"create must be a bool, not {create!r:.80}")
    return ConnectOptions(
        connect_timeout=check_seconds("connect_timeout", connect_timeout),
        session_timeout=check_seconds("session_timeout", session_timeout),
        create=create,
        **login,
    )

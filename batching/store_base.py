"""Passes the calls of threads to the engine; ``async_store_base.py`` does the same for tasks.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import ParamSpec, TypeVar

from ..ops.capabilities import Capability
from ..ops.operations import Operation
from ..ops.results import GetResult, Outcome
from ..stores.backend import Backend, BeginWatch
from .bulk import Collector, OutcomeStream
from .engine import Engine
from .feeds import AskedWatch
from .futures import Entrance, FutureSink, OperationFuture
from .hooks import Hook
from .reentry import owned
from .scans import ended
from .sessions import Listeners, listen_for_hooks
from .settings import BatchingConfig
from .watches import Watch

__all__ = ["StoreBase"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class StoreBase:
    """Submits operations for threads, which receive futures at once."""

    def __init__(
        self,
        backend: Backend,
        batching: BatchingConfig,
        operation_timeout: float,
        name: str,
        capabilities: frozenset[Capability] = frozenset(),
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._engine = engine = Engine(backend, batching, name, capabilities, hooks)
        self._sink = FutureSink(engine)
        self._run = Entrance(engine, self._sink, operation_timeout).enter
        self._timeout = operation_timeout
        # SystemExit as well: it would end the thread of all callbacks.
        self._listeners = Listeners(self._sink.dispatch, BaseException)
        listen_for_hooks(engine, self._listeners)

    def _sync(self, seconds: float) -> None:
        self._engine.sync(seconds)

    def _submit(self, op: Operation, seconds: float) -> OperationFuture:
        """Submit an operation that its caller has made."""
        return self._run(op.kind, op.path, seconds, op.value, op.expected_version, op.options)

    def _stream(self, ops: Iterable[Operation], seconds: float) -> OutcomeStream:
        return OutcomeStream(self._engine, ops, seconds)

    def _collect(self, ops: Iterable[Operation], seconds: float) -> list[Outcome]:
        return Collector[Outcome](self._engine, ops, seconds).collect()

    def _many(self, paths: list[str], seconds: float) -> list[GetResult | None]:
        return Collector[GetResult | None](self._engine, paths, seconds, bare=True).collect()

    def _walk(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call over many paths in this thread; return a future that has ended."""
        return ended(lambda: call(*args, **kwargs))

    def _watch(self, begin: BeginWatch, asked: AskedWatch, seconds: float) -> Watch:
        """Begin a watch, and wait until it is in place."""
        return Watch(self._engine.feeds, begin, asked, seconds, self._sink)

    def _close(self, timeout: float | None) -> None:
        if self._engine.not_closed_here():
            return
        if self._interrupted():
            # By a signal handler or a finalizer. What it has interrupted goes on afterwards.
            self._engine.refuse_soon()
            closing = Thread(target=self._close, args=(timeout,), daemon=True)
            with suppress(RuntimeError):  # The interpreter is ending, and drains the store.
                closing.start()
            return
        try:
            self._engine.close(timeout)
        finally:
            self._sink.close()

    def _check_caller(self) -> None:
        """Refuse a call whose requests the store would refuse, before it changes anything.

        Raises:
            StoreClosedError: this is a forked process, where any lock may be held.
        """
        self._engine.check_not_forked()

    def _interrupted(self) -> bool:
        return self._sink.interrupted() or owned(self._listeners.lock)

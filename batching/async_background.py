"""Background work, for tasks; ``background.py`` does the same for threads.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from ..ops.errors import UnsupportedError
from ..ops.log import get_logger

__all__ = ["AsyncGate", "AsyncSignal", "async_each", "async_finish", "async_spawn"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

log = get_logger("batchkeeper.coordination")

# A loop refers to its tasks weakly.
_RUNNING: Final[set[asyncio.Task[Any]]] = set()


def async_spawn(
    name: str, call: Callable[_P, Coroutine[Any, Any, None]], *args: _P.args, **kwargs: _P.kwargs
) -> None:
    """Run a coroutine function in its own task, and log its exceptions.

    The task starts only after the caller has continued, so the caller may hold a lock.
    """

    async def run() -> None:
        await asyncio.sleep(0)  # A loop with an eager task factory has already started it.
        await call(*args, **kwargs)

    task = asyncio.get_running_loop().create_task(run(), name=f"batchkeeper-{name}")
    _RUNNING.add(task)
    task.add_done_callback(_ended)


async def async_each(
    call: Callable[[_T], Awaitable[object]], items: Collection[_T], most: int
) -> None:
    """Call a function for each item, with bounded concurrency; return when all have ended.

    If some calls raise, the others still run, and the first exception is raised at the end.
    """
    rest = iter(items)
    failures: list[Exception] = []

    async def work() -> None:
        for item in rest:
            try:
                await call(item)
            except Exception as error:
                failures.append(error)

    await asyncio.gather(*[work() for _ in range(min(most, len(items)))])
    if failures:
        raise failures[0]


async def async_finish(
    call: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a coroutine function, which runs to its end even if the caller is cancelled."""
    task = asyncio.get_running_loop().create_task(call(*args, **kwargs))
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return await asyncio.shield(task)


def _ended(task: asyncio.Task[None]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a background task failed", task=task.get_name(), exc_info=error)


def _in_another_loop(error: RuntimeError) -> Exception:
    """Return the error of a wait for what tasks of another loop have waited for, or the error."""
    if "different event loop" not in str(error):
        return error
    return UnsupportedError(
        "this object is used in another event loop, and works only there. Open a store in each "
        "loop, or share one of open_store among loops, and use it from threads"
    )


class AsyncSignal:
    """An event that happens once, and that any number of tasks can await."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Say that it has happened."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most ``timeout`` seconds; return whether it has happened."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return self._event.is_set()
        except RuntimeError as error:
            raise _in_another_loop(error) from error
        return True


class AsyncGate:
    """Lets one task through at a time; also a context manager."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def enter(self, timeout: float | None = None) -> bool:
        """Wait for one's turn, at most ``timeout`` seconds; return whether it has come."""
        try:
            async with asyncio.timeout(timeout):
                await self._lock.acquire()
        except TimeoutError:
            return False
        except RuntimeError as error:
            raise _in_another_loop(error) from error
        return True

    def leave(self) -> None:
        """Let the next one through."""
        self._lock.release()

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, *_: object) -> None:
        self.leave()

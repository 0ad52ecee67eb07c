# async:
# `_sync/counters.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Unique, growing numbers across processes and restarts."""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Iterator
from typing import Final

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncGate
from ..ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    StoreClosedError,
    ValueDecodeError,
    shape,
)
from ..ops.operations import ABSENT
from ..ops.paths import check_path
from ..ops.results import GetResult
from .async_conflicts import AsyncConflicts
from .async_kinds import async_check_store

__all__ = ["AsyncCounter"]

# The largest value at the path, so that other clients can read it as a signed 64-bit integer.
_END: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")


class AsyncCounter:
    """Hands out numbers from 0 on, each once, to all processes that share its path.

    The counter takes a block of numbers with one conditional put, and hands it out without further
    requests. A number that :meth:`next` or :meth:`reserve` has returned is never returned again, in
    any process. Within one object, numbers grow: a call that starts after another has returned gets
    greater numbers. There is no order between objects. Numbers can be missing: the rest of a block
    is skipped if the process ends, a put has no answer, or ``reserve`` is called.

    The value at the path is the first number that no block contains, in ASCII digits. Do not delete
    or lower it: numbers would be handed out again. In a forked child, a counter hands out nothing
    and raises ``StoreClosedError``.

    Any number of threads or tasks can share one object.

    Args:
        store: the store.
        path: the path of the value.
        block: the number of numbers that one request takes, from 1 to 2**32. A larger block costs
            fewer requests, and leaves a larger gap when the process ends.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: ``block`` is out of range.
    """

    def __init__(self, store: AsyncMetadataStore, path: str, block: int = 1000) -> None:
        async_check_store(store, "a counter")
        self._store = store
        self._path = check_path(path)
        self._block = _check_count("block", block)
        self._gate = AsyncGate()  # guards the following fields, except for `next`
        self._numbers: Iterator[int] = iter(())  # the rest of the current block
        self._end = 0  # the end of the last block
        self._forked = False
        self._failed_at = 0.0
        self._failure: MetadataStoreError | None = None
        _counters.add(self)

    @property
    def path(self) -> str:
        """The path of the value."""
        return self._path

    async def next(self) -> int:
        """Return the next number.

        The first call and one call per ``block`` cost two requests; the others cost none.

        Raises:
            ValueDecodeError: the value at the path is not a counter value.
            OverflowError: fewer than ``block`` numbers below 2**63 - 1 are left.
            MetadataStoreError: a request has failed. No number is handed out twice after that.
        """
        # One step of this iterator, which is written in C, holds the GIL. So threads that race here
        # get different numbers, and at the end of the block all of them find it empty.
        for number in self._numbers:
            return number
        return await self._next_of_new_block()

    async def reserve(self, n: int) -> range:
        """Return ``n`` numbers in a row, at the cost of two requests.

        The call skips the rest of the current block, so that later numbers are greater.

        Args:
            n: how many, from 1 to 2**32.

        Raises:
            InvalidSettingError: ``n`` is out of its range.
            OverflowError: fewer than ``n`` numbers below 2**63 - 1 are left.
            MetadataStoreError: as with :meth:`next`.
        """
        _check_count("n", n)
        await self._enter()
        try:
            numbers = await self._take(n)
            self._numbers = iter(())
        finally:
            self._gate.leave()
        return numbers

    async def add(self, n: int) -> int:
        """Add ``n`` to the value at the path, and return the value after it: a shared sum.

        It costs two requests. The sum begins at 0, and may become negative. A path serves either
        for a sum or for unique numbers: a negative ``n`` would let numbers be handed out again.

        Args:
            n: an int between -2**63 and 2**63; a negative one subtracts.

        Raises:
            InvalidSettingError: ``n`` is not such an int.
            IndeterminateError: a put had no answer; ``n`` may have been added.
            OverflowError: the sum would leave the range of signed 64-bit integers.
            ValueDecodeError: the value at the path is not a number.
            MetadataStoreError: a request has failed, and nothing was added.
        """
        if type(n) is not int or not -_END <= n <= _END:
            raise InvalidSettingError(f"n must be an int of at most 64 bits, not {n!r:.80}")
        await self._enter()
        try:
            return (await self._take(n, adds=True)).stop
        finally:
            self._gate.leave()

    async def _next_of_new_block(self) -> int:
        await self._enter()
        try:
            for number in self._numbers:  # Another caller has taken a block meanwhile.
                return number
            numbers = iter(await self._take(self._block))
            number = next(numbers)  # Before others can see them: there may be only one.
            self._numbers = numbers
        finally:
            self._gate.leave()
        return number

    async def _enter(self) -> None:
        """Wait for one's turn to take a block.

        An error of one caller is raised for all callers that wait. Otherwise, each of them would
        wait for its own timeout in an outage, one after the other.
        """
        if self._forked:
            raise StoreClosedError(
                "the store was opened before this process was forked; open it here", path=self._path
            )
        began = time.monotonic()
        await self._gate.enter()
        if self._failure is not None and self._failed_at >= began:
            self._gate.leave()
            raise self._failure.for_path(self._path) from self._failure.__cause__

    async def _take(self, n: int, *, adds: bool = False) -> range:
        """Move the value at the path on by ``n``; return the numbers between.

        ``adds`` says that it is a sum, so that it must not move twice, and may be negative.
        """
        conflicts = AsyncConflicts(self._store.operation_timeout, self._path)
        while True:
            try:
                found = await self._store.get(self._path)
                start = self._number(found, -_END if adds else 0)
                if not adds:  # A value that was lowered by hand must not lower the numbers.
                    start = max(start, self._end)
                if abs(start + n) > _END:
                    raise OverflowError(f"{self._path} is at {start}, and has no room for {n} more")
                expected = ABSENT if found is None else found.stat.version
                try:
                    await self._store.put(self._path, b"%d" % (start + n), expected)
                except MetadataStoreError as error:
                    if adds and error.outcome == "unknown":
                        raise
                    # If the outcome is unknown, the block may be taken. If so, the next read of the
                    # path skips it.
                    await conflicts.pause(error)
                    continue
            except MetadataStoreError as error:
                if error.outcome != "unknown":  # The others have sent nothing yet.
                    self._failure, self._failed_at = error, time.monotonic()
                raise
            if not adds:
                self._end = start + n
            return range(start, start + n)

    def _number(self, found: GetResult | None, least: int) -> int:
        if found is None:
            return 0
        if _NUMBER.fullmatch(found.value) and least <= (number := int(found.value)) <= _END:
            return number
        raise ValueDecodeError(
            f"{self._path} holds {shape(found.value)}, which is no number of a counter",
            path=self._path,
            version=found.stat.version,
        )

    def _disown(self) -> None:
        """Drop the parent's block in a forked child, where the gate may stay held forever."""
        self._numbers = iter(())
        self._forked = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"


_counters: Final[weakref.WeakSet[AsyncCounter]] = weakref.WeakSet()


def _disown_all() -> None:
    for counter in _counters:
        counter._disown()


os.register_at_fork(after_in_child=_disown_all)


def _check_count(name: str, value: int) -> int:
    if type(value) is not int or not 1 <= value <= 2**32:
        raise InvalidSettingError(f"{name} must be an int from 1 to {2**32}, not {value!r:.80}")
    return value

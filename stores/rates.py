"""A limit of the operations per second of one store, or of all stores that share a budget.

Each operation has a time from which it may go, the next one ``1 / rate`` seconds later (the generic
cell rate algorithm). A shared budget keeps, in the store itself, the time up to which operations
have been given out. A client takes a block of that time with one conditional put, spends it alone,
and takes the next one when it is spent. So everybody who waits gets blocks in turn, and a client
that dies takes at most its block with it: the time goes on for the others.

Clients compare that time with their own clocks. Where these differ, those that are behind wait
longer, and the rate of all together stays what it is.
"""

from __future__ import annotations

import math
import os
import random
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ..ops.errors import (
    BadVersionError,
    IndeterminateError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    ValueDecodeError,
    passes,
    shape,
)
from ..ops.log import get_logger
from ..ops.operations import ABSENT
from ..ops.paths import OWN
from ..ops.results import GetResult, Stat
from .backend import (
    Answer,
    Backend,
    Deadline,
    Limits,
    PassingBackend,
    PlainRead,
    PlainWrite,
    ReadRequest,
    Request,
    WriteRequest,
    remaining,
    send_by,
    to_its_end,
)

__all__ = ["RateLimit"]

_log = get_logger("batchkeeper.rates")

# Seconds of the rate that one request may carry, and that one block has.
_REQUEST: Final = 0.1
_BLOCK: Final = 0.1
# Seconds of a budget that may be spent after they have passed, because a block takes a moment.
_SLACK: Final = 0.05
# Seconds for which nobody sends when the server has said that there are too many requests.
_REST: Final = 0.5
# Seconds that operations may go before their time, and that a request for a block has.
_EARLY: Final = 0.005
_PATIENCE: Final = 10.0
# Seconds between attempts at a block that another client was quicker to take.
_AGAIN: Final = 0.005
# Of a sum of times.
_TINY: Final = 1e-6

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_TIME: Final = re.compile(rb"[0-9]{1,19}")


class RateLimit:
    """A limit of operations per second, for ``open_store(url, rate_limit=...)``.

    Gets, puts and all other single operations count one each, a transaction one for each of its
    operations; scans and watches do not count. Operations wait in the store's queues for their
    time, so a full queue behaves as its settings say. One whose deadline comes first ends with
    ``OperationTimeoutError`` and was not sent. When a server says that there are too many requests,
    everybody who shares the budget sends nothing for half a second.

    Args:
        rate: operations per second, more than 0.
        budget: the name of a budget in the store, of letters, digits, ``-``, ``_`` and ``.``. All
            stores that name it, in any process, have ``rate`` together: etcd, ZooKeeper and HBase.
            ``None``: this store alone.
        writes_only: whether reads do not count, and do not wait.

    Raises:
        InvalidSettingError: an argument is invalid.
    """

    def __init__(
        self, rate: float, budget: str | None = None, *, writes_only: bool = False
    ) -> None:
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not number or not 0 < rate < math.inf:
            raise InvalidSettingError(
                f"rate must be a number of operations per second, more than 0, not {rate!r:.80}"
            )
        if budget is not None and not (isinstance(budget, str) and _NAME.fullmatch(budget)):
            raise InvalidSettingError(
                f"budget must be a name of up to 100 letters, digits, '-', '_' and '.', not "
                f"{budget!r:.120}"
            )
        if type(writes_only) is not bool:
            raise InvalidSettingError(f"writes_only must be a bool, not {writes_only!r:.80}")
        self.rate = float(rate)
        self.budget = budget
        self.writes_only = writes_only
        self._limited: _Limited | None = None

    def __call__(self, backend: Backend) -> Backend:
        """Return a back end that keeps the limit, around another one."""
        if self._limited is not None:
            raise InvalidSettingError(
                "a RateLimit is of one store: make one for each, of one budget"
            )
        self._limited = _Limited(backend, self)
        return self._limited

    def wait(self, count: int = 1) -> None:
        """Wait for the time of some operations, which then wait no more in the store.

        For programs that submit many: the deadline of an operation begins when it is submitted. Use
        it on threads, when the store is open.

        Raises:
            StoreClosedError: the store is not open.
            MetadataStoreError: the budget could not be read or changed.
        """
        if self._limited is None:
            raise StoreClosedError("no store was opened with this limit")
        self._limited.prepay(count)

    def __repr__(self) -> str:
        return f"RateLimit({self.rate:g}, {self.budget!r}, writes_only={self.writes_only})"


class _Limited(PassingBackend):
    """Lets the operations of a back end through at a rate."""

    def __init__(self, backend: Backend, limit: RateLimit) -> None:
        super().__init__(backend)
        self._rate = limit.rate
        self._writes_only = limit.writes_only
        self._path = None if limit.budget is None else f"/{OWN}/rates/{limit.budget}"
        self._most = max(1, int(limit.rate * _REQUEST))
        self._seen: Limits | None = None
        self._own: Limits | None = None
        self._closed = threading.Event()
        self._process = os.getpid()
        # Guards the following fields. Held while a block is taken, so that others wait for it.
        # Reentrant, because a signal handler may wait in the middle of another wait.
        self._lock = threading.RLock()
        self._next = 0.0  # when the next operation may go, by the monotonic clock
        self._end = 0.0  # of the block; without a budget, it has none
        self._prepaid = 0  # operations whose time has come before they were submitted
        self._busy = False  # set without the lock: the server has had too much
        self.tally.on_busy = self._note_busy

    @property
    def limits(self) -> Limits:
        """Those of the back end, with requests that do not take longer than they have to wait."""
        limits = self._backend.limits
        if limits is not self._seen or self._own is None:
            reads = limits.read_ops if self._writes_only else min(limits.read_ops, self._most)
            most = min(limits.write_ops, self._most)
            self._own = replace(limits, write_ops=most, read_ops=reads)
            self._seen = limits  # Last, because other threads read both.
        return self._own

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._wait(sum(map(_weight, requests)), deadline)
        return self._backend.write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        if not self._writes_only:
            self._wait(len(requests), deadline)
        return self._backend.read(requests, deadline)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _note_busy(self) -> None:
        self._busy = True

    def prepay(self, count: int) -> None:
        """Wait for the time of some operations before they are submitted."""
        if os.getpid() != self._process:  # Another thread of the parent may hold the lock.
            raise StoreClosedError("the store was opened before this process was forked")
        self._let(self._begin(count, math.inf))
        with self._lock:
            self._prepaid += count

    def _wait(self, count: int, deadline: float) -> None:
        """Wait for the time of some operations.

        Raises:
            OperationTimeoutError: it comes after their deadline.
            StoreClosedError: the store was closed meanwhile.
            MetadataStoreError: the budget could not be read or changed.
        """
        if self._prepaid:
            with self._lock:
                paid = min(count, self._prepaid)
                self._prepaid -= paid
            count -= paid
        if count:
            self._let(self._begin(count, send_by(deadline)))

    def _begin(self, count: int, until: float) -> float:
        if not self._lock.acquire(timeout=remaining(until)):
            raise self._late()
        try:
            return self._reserve(count, until)
        finally:
            self._lock.release()

    def _let(self, begin: float) -> None:
        wait = begin - time.monotonic()
        # A little early, because a sleep for each of many operations would make them late.
        if self._closed.is_set() or (wait > _EARLY and self._closed.wait(wait)):
            raise StoreClosedError("the store is closed")

    def _reserve(self, count: int, until: float) -> float:
        """Return the time from which some operations may go, and give the next one to others."""
        rest, self._busy = (_REST if self._busy else 0.0), False
        seconds = count / self._rate
        now = time.monotonic()
        if self._path is None:
            begin = max(self._next, now) + rest
        else:
            begin = self._next
            if rest or now > self._end + _SLACK or begin + seconds > self._end + _TINY:
                begin = now
                try:
                    take = partial(self._take_block, max(seconds, _BLOCK), rest, until)
                    begin, self._end = to_its_end(take)
                    self._next = begin
                except MetadataStoreError as error:
                    if isinstance(error, OperationTimeoutError) or not passes(error):
                        raise
                    # In an outage, operations go and end as they would without a limit.
                    _log.debug("no budget", path=self._path, reason=str(error))
        if begin > until:
            raise self._late()
        self._next = begin + seconds
        return begin

    def _take_block(self, seconds: float, rest: float, until: float) -> tuple[float, float]:
        """Take the next seconds of the budget; return their beginning and end."""
        path = self._path
        assert path is not None
        while True:
            if self._closed.is_set():
                raise StoreClosedError("the store is closed")
            if time.monotonic() > until:
                raise self._late()
            deadline = Deadline.of([min(until, time.monotonic() + _PATIENCE)])
            (found,) = self._backend.read([PlainRead(path)], deadline)
            if isinstance(found, MetadataStoreError):
                raise found
            assert found is None or isinstance(found, GetResult)
            now = time.time()
            here = time.monotonic() - now
            begin = max(_micros(found) / 1e6 if found else 0.0, now - _SLACK) + rest
            value = b"%d" % round((begin + seconds) * 1e6)
            version = ABSENT if found is None else found.stat.version
            (answer,) = self._backend.write([PlainWrite("put", path, value, version)], deadline)
            if isinstance(answer, Stat):
                return begin + here, begin + here + seconds
            if not isinstance(answer, BadVersionError | IndeterminateError):
                assert isinstance(answer, MetadataStoreError)
                raise answer
            self._closed.wait(_AGAIN * random.random())  # noqa: S311

    def _late(self) -> OperationTimeoutError:
        return OperationTimeoutError(
            f"the limit of {self._rate:g} operations per second lets it go only after its "
            "deadline; it was not sent"
        )


def _weight(request: Request) -> int:
    options = request.options
    return len(options.parts) or 1 if options is not None else 1


def _micros(found: GetResult) -> int:
    if _TIME.fullmatch(found.value):
        return int(found.value)
    raise ValueDecodeError(
        f"the budget holds {shape(found.value)}, which is no time in microseconds",
        version=found.stat.version,
    )

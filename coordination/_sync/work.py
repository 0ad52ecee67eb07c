# Made from async_work.py by `python tools/faces.py`: change that file, and run this command.
"""A queue of jobs, where each job belongs to one worker at a time."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Self

from ...batching import MetadataStore
from ...batching.background import Signal, spawn
from ...ops.backoff import Backoff
from ...ops.capabilities import Capability
from ...ops.errors import (
    InvalidSettingError,
    LockLostError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    TransactionRefusedError,
    check_conflict,
    is_conflict,
    passes,
    passes_anew,
)
from ...ops.log import get_logger
from ...ops.operations import ABSENT, Check, Delete, Put
from ...ops.paths import check_path
from ...ops.results import Stat, WatchEvent
from ..deadlines import Deadline
from ..job_board import ClaimedJob, JobBoard, is_job
from .following import Follower
from .kinds import check_store

__all__ = ["Job", "WorkQueue"]

log = get_logger("batchkeeper.coordination")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# The attempts at jobs that others have just claimed until the call pauses between them.
_MOST_REFUSALS: Final = 100
# Seconds for which a queue continues to watch after the last claim.
_LINGER: Final = 5.0
# Seconds for a `claim(timeout=0)` to read the queue if its view is not current.
_FIRST_READ: Final = 10.0


class WorkQueue:
    """A queue of jobs that survive restarts. One worker at a time can claim a job.

    Jobs are ordered by priority, and jobs of the same priority by arrival at the store. A claim
    belongs to the session of the worker's store: when the session ends, the next worker gets the
    job. So each job is done at least once; it may be done again if a worker dies, or loses its
    session, before :meth:`Job.done`. When several workers claim at the same time, they pick among
    the first few jobs, so that they do not all try the same one.

    Any number of threads or tasks can share one object, which watches the queue while they claim.

    Args:
        store: the store, with the capabilities ``"ephemerals"``, ``"sequences"``,
            ``"transactions"`` and ``"watches"``.
        path: the path of the queue. The jobs are values below ``path/jobs``, the claims below
            ``path/claims``. Put nothing else there.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        needed: tuple[Capability, ...] = ("ephemerals", "sequences", "transactions", "watches")
        check_store(store, "a work queue", *needed)
        self._store = store
        self._path = check_path(path)
        self._lock = threading.RLock()  # guards the following fields
        self._board = JobBoard()
        self._free = Signal()  # replaced when it is set
        self._followed: tuple[Follower, list[MetadataStoreError]] | None = None
        self._claiming = 0  # calls under way
        self._used = 0.0  # when the last call ended

    @property
    def path(self) -> str:
        """The path of the queue."""
        return self._path

    def put(self, value: bytes | bytearray | memoryview, priority: int = 100) -> str:
        """Add a job and return its path.

        Args:
            value: the bytes that the worker gets.
            priority: from 0, which comes first, to 999.

        Raises:
            InvalidSettingError: the priority is out of its range.
            MetadataStoreError: the put has failed. If its ``outcome`` is ``"unknown"``, the job may
                be in the queue.
        """
        path = self._new(priority)
        stat = self._store.put(path, value, sequential=True).result()
        return stat.path

    def put_all(
        self, values: Iterable[bytes | bytearray | memoryview], priority: int = 100
    ) -> list[str]:
        """Add jobs in batches and return their paths.

        This is faster than single puts, but not atomic, and the jobs of one call are in no
        particular order.

        Raises:
            InvalidSettingError: the priority is out of its range.
            MetadataStoreError: the first put that has failed. Other jobs may be in the queue.
        """
        path = self._new(priority)
        outcomes = self._store.apply([Put(path, value, sequential=True) for value in values])
        paths = []
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            assert isinstance(outcome.result, Stat)
            paths.append(outcome.result.path)
        return paths

    def size(self) -> int:
        """Return the number of unfinished jobs, including those that workers have."""
        return len([*filter(is_job, self._store.get_children(f"{self._path}/jobs").result())])

    def claim(self, timeout: float | None = None) -> Job:
        """Wait for a job and claim it.

        Outages are waited out.

        Args:
            timeout: seconds to wait; unlimited by default. With 0, the call takes only a job that
                the queue already knows. The first call, and the first one after a broken watch,
                waits up to 10 seconds for a read of the store.

        Raises:
            OperationTimeoutError: no job was free within ``timeout`` seconds.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        self._store.session  # noqa: B018 - it raises in a forked process, where locks may be held
        with self._lock:
            self._claiming += 1
        try:
            job = self._claim(deadline)
        finally:
            with self._lock:
                self._claiming -= 1
                self._used = time.monotonic()
        if job is None:
            raise OperationTimeoutError(
                f"no job of {self._path} was free within {timeout} s", path=self._path
            )
        return job

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"

    def _new(self, priority: int) -> str:
        """Return the path of a new job, to which the store appends a number."""
        if type(priority) is not int or not 0 <= priority <= 999:
            raise InvalidSettingError(
                f"priority must be an int from 0 to 999, not {priority!r:.80}"
            )
        return f"{self._path}/jobs/{priority:03d}-"

    # --- claiming

    def _claim(self, deadline: Deadline) -> Job | None:
        failures = refusals = 0
        while (name := self._pick(deadline)) is not None:
            job, claimed = None, None
            try:
                job = self._attempt(name, deadline.for_request())
                claimed = job is not None
            except MetadataStoreError as error:
                passing = passes_anew(error)
                if not passing or deadline.passed:
                    raise
                log.info("a claim is tried again", path=self._path, reason=str(error))
            finally:
                self._change(partial(self._board.tried, name, claimed))
            if job is not None:
                return job
            refusals += claimed is False
            if claimed is None or refusals > _MOST_REFUSALS:
                if deadline.passed:
                    break
                time.sleep(deadline.within(_BACKOFF.pause(failures)))
                failures += 1
        return None

    def _pick(self, deadline: Deadline) -> str | None:
        """Wait for a job that looks free, and pick it; return ``None`` at the deadline."""
        while True:
            follower, ended = self._follow()
            patience = deadline.left() if deadline.waits else _FIRST_READ
            if not follower.ready.wait(patience):
                return None
            with self._lock:
                name, free = self._board.pick(), self._free
            if name is not None:
                return name
            if not ended and not free.wait(deadline.left()):
                return None
            if ended:
                raise ended[0].for_path(self._path) from ended[0].__cause__

    def _attempt(self, name: str, timeout: float | None) -> Job | None:
        """Try to claim a job; return ``None`` if it is gone, or another worker has it.

        ``timeout`` applies to each request.
        """
        path, claim = f"{self._path}/jobs/{name}", f"{self._path}/claims/{name}"
        found = self._store.get(path, timeout=timeout).result()
        if found is None:
            return None
        token = uuid.uuid4().hex.encode()
        version = found.stat.version
        job = created = None
        # The claim belongs to this session if the session is the same afterwards.
        session = self._store.session.id
        try:
            # The put of the job changes its version, so that the version identifies this claim.
            created, _ = self._store.transaction(
                [Put(claim, token, ABSENT, ephemeral=True), Put(path, found.value, version)],
                timeout=timeout,
            ).result()
            there = True
            if session is None:
                # The transaction has started a session, which may have ended again.
                session = self._store.session.id
                shown = self._store.get(claim, timeout=timeout).result()
                there = shown is not None and shown.value == token and shown.stat.owned
            if there and created is not None and session == self._store.session.id:
                job = Job(self, name, found.value, version + 1, token, session, created)
        except TransactionRefusedError as refused:
            check_conflict(refused)
            return None
        except MetadataStoreError as error:
            if created is not None or error.outcome == "unknown":
                self._give_back(name, token)
            raise
        except BaseException:
            self._give_back(name, token)
            raise
        if job is None:
            self._give_back(name, token)
        return job

    def _give_back(self, name: str, token: bytes) -> None:
        """Remove a claim in the background, if it exists or may appear."""
        spawn(f"removal below {self._path}", self._keep_giving_back, name, token)

    def _keep_giving_back(self, name: str, token: bytes) -> None:
        path, claim = f"{self._path}/jobs/{name}", f"{self._path}/claims/{name}"
        failures = 0
        while True:
            try:
                # In this order: if another worker claims the job after the second read, its version
                # differs from the first read.
                job = self._store.get(path).result()
                found = self._store.get(claim).result()
                if found is None or found.value != token:
                    return
                version = ABSENT if job is None else job.stat.version
                self._store.transaction([Check(path, version), Delete(claim)]).result()
            except MetadataStoreError as error:
                if not (passes(error) or is_conflict(error)):
                    log.info("a claim stays until its session ends", path=claim, reason=str(error))
                    return
            else:
                return
            time.sleep(_BACKOFF.pause(failures))
            failures += 1

    # --- the view of the queue

    def _follow(self) -> tuple[Follower, list[MetadataStoreError]]:
        """Return the follower that watches the queue, and the error that ended it, if any.

        A new follower starts after a long time without claims, or after such an error.
        """
        with self._lock:
            if self._followed is not None:
                return self._followed
            ended: list[MetadataStoreError] = []
            follower = Follower(
                self._store,
                self._path,
                read=self._read,
                event=self._hear,
                ended=partial(self._end, ended),
                idle=self._idle,
                linger=_LINGER,
            )
            self._followed = follower, ended
        follower.start()
        return follower, ended

    def _read(self) -> None:
        jobs = self._store.get_children(f"{self._path}/jobs").result()
        claims = self._store.get_children(f"{self._path}/claims").result()
        self._change(partial(self._board.replace, jobs, claims))

    def _hear(self, event: WatchEvent) -> None:
        kind, _, name = event.path.removeprefix(f"{self._path}/").partition("/")
        there = event.kind != "deleted"
        if kind == "jobs":
            self._change(partial(self._board.job_event, name, there=there))
        elif kind == "claims":
            self._change(partial(self._board.claim_event, name, there=there))
        with self._lock:
            # While others keep the queue busy, `idle` is never asked.
            unused = self._followed if self._unused() else None
            if unused is not None:
                self._followed = None
        if unused is not None:
            unused[0].close()

    def _change(self, change: Callable[[], bool]) -> None:
        """Change the board, and wake waiting calls if another job looks free."""
        with self._lock:
            if not change():
                return
            free, self._free = self._free, Signal()
        free.set()

    def _idle(self) -> bool:
        with self._lock:
            if not self._unused():
                return False
            self._followed = None
            return True

    def _unused(self) -> bool:
        return not self._claiming and time.monotonic() > self._used + _LINGER

    def _end(self, ended: list[MetadataStoreError], error: MetadataStoreError) -> None:
        with self._lock:
            ended.append(error)
            self._followed = None
            free, self._free = self._free, Signal()
        free.set()


class Job(ClaimedJob):
    """A job that this worker has claimed. :meth:`WorkQueue.claim` returns it.

    The end of a ``with`` block calls ``done``, or ``release`` if the block raises.

    Attributes:
        path: the path of the job, the same for all workers.
        value: its value.
        attempt: how many times it has been claimed, including this time: 1 for the first worker.
        fencing_token: a number that is greater for each later claim of the job.
    """

    def __init__(
        self,
        queue: WorkQueue,
        name: str,
        value: bytes,
        version: int,
        token: bytes,
        session: str | None,
        created: Stat,
    ) -> None:
        self._queue = queue
        self._name = name
        self._token = token
        self._session = session
        self._ended = False
        self._unknown: MetadataStoreError | None = None  # of an unanswered request of `done`
        self._claim = f"{queue.path}/claims/{name}"
        self.path = f"{queue.path}/jobs/{name}"
        self.value = value
        self.attempt = version
        self.fencing_token = created.revision

    @property
    def held(self) -> bool:
        """Whether no other worker can have the job at this moment.

        It turns ``False`` when an outage may have outlasted the session, and true again if it has
        not.
        """
        return self.held_until() > time.monotonic()

    def held_until(self) -> float:
        """Return the time before which no other worker can get the job.

        It is a value of ``time.monotonic()``: ``math.inf`` on stores without a server,
        ``-math.inf`` if the claim has ended.
        """
        if self._ended:
            return -math.inf
        try:
            session = self._queue._store.session
            until = session.valid_until()
            # In this order: a new session's time must not count for the old one.
            same = session.id == self._session
        except MetadataStoreError:  # The store is closed, or this is a forked process.
            return -math.inf
        return until if same else -math.inf

    def check(self) -> Check:
        """Return the condition, for a transaction, that no other worker has claimed the job since.

        A transaction with it takes effect only for the current worker.
        """
        return Check(self.path, self.attempt)

    def done(self) -> None:
        """Remove the job, if this worker still has it.

        The store's ``operation_timeout`` applies to the whole call. After another error than
        ``LockLostError``, call it again or :meth:`release` the job.

        Raises:
            LockLostError: the claim has ended. Another worker has the job, or will have it.
            MetadataStoreError: the request has failed.
        """
        store = self._queue._store
        deadline, failures = Deadline(store.operation_timeout), 0
        while not self._ended:
            try:
                store.transaction(
                    # In this order: with the events in reverse order, the job would look free.
                    [Delete(self.path, self.attempt), Delete(self._claim)],
                    timeout=deadline.for_request(),
                ).result()
            except TransactionRefusedError as error:
                check_conflict(error)
                # It is also refused if an earlier request, without an answer, has removed the job.
                if self._unknown is None or self._is_there(deadline):
                    self._release(deadline.for_request())
                    raise self._lost() from error
                if not self.held:  # Another worker may have claimed the job, and removed it.
                    raise self._unknown.for_path(self.path) from error
            except MetadataStoreError as error:
                if error.outcome != "unknown":
                    raise
                self._unknown = error
                if deadline.passed:
                    raise
                time.sleep(deadline.within(_BACKOFF.pause(failures)))
                failures += 1
                continue
            self._ended = True
            return
        raise self._lost()

    def release(self) -> None:
        """Give the job back, so that the next worker gets it; do nothing if the claim has ended.

        If no server answers, that happens in the background.
        """
        self._release(None)

    def _release(self, timeout: float | None) -> None:
        if self._ended:
            return
        with suppress(StoreClosedError):  # a forked process, which holds no claim
            self._queue._store._check_caller()
        self._ended = True
        try:
            self._queue._store.transaction(
                [self.check(), Delete(self._claim)], timeout=timeout
            ).result()
        except MetadataStoreError:
            self._queue._give_back(self._name, self._token)
        except BaseException:
            self._queue._give_back(self._name, self._token)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            self.done()
        else:
            self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' held' if self.held else ''}>"

    def _is_there(self, deadline: Deadline) -> bool:
        """Return whether a worker has the job, or will have it."""
        store = self._queue._store
        store.sync(deadline.for_request())  # Another server may still show it.
        return store.get(self.path, timeout=deadline.for_request()).result() is not None

    def _lost(self) -> LockLostError:
        return LockLostError(f"this worker does not have {self.path} any more", path=self.path)

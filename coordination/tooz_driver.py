"""A driver for OpenStack's tooz: its groups, elections and locks, on stores of this package.

tooz finds it by the scheme of the URL (entry points in ``tooz.backends``)::

    from tooz import coordination

    coordinator = coordination.get_coordinator("batchkeeper+etcd://127.0.0.1:2379", b"host-1")
    coordinator.start()

Below ``/tooz``, or the ``namespace`` in the URL, there are::

    groups/GROUP           the group: an empty value
    groups/GROUP/MEMBER    a member: its capabilities, ephemeral
    leaders/GROUP          the line of a lock whose holder leads the group
    locks/NAME             the line of a lock

Ids and names are percent-encoded where a path cannot hold their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from threading import get_ident
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote, unquote_to_bytes, urlencode

import tooz
from tooz import coordination, locking, utils
from tooz.coordination import Characteristics, CoordinatorResult

from ..batching import MetadataStore
from ..opening import open_store
from ..ops.errors import (
    BadVersionError,
    LockBusyError,
    LockLostError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    StoreUnavailableError,
    TransactionRefusedError,
    check_conflict,
    passes_anew,
)
from ..ops.operations import ABSENT, Check, Put
from ..ops.results import GetResult
from ..stores import store_kind
from ._sync.locks import Lock

__all__ = ["Driver", "DriverLock"]

_T = TypeVar("_T")
_P = ParamSpec("_P")

_Data: TypeAlias = dict[str, Any]
# What an operation does between its requests: it yields a future, and goes on with its result.
_Steps: TypeAlias = Generator[Future[Any], Any, _T]

# Of all stores; of those that other processes can open; of those whose reads are linearizable.
# Locks and members end with sessions, which stores keep alive themselves.
_CHARACTERISTICS: Final = (
    Characteristics.NON_TIMEOUT_BASED,
    Characteristics.DISTRIBUTED_ACROSS_THREADS,
    Characteristics.SEQUENTIAL,
    Characteristics.CAUSAL,
)
_SHARED: Final = (
    Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
    Characteristics.DISTRIBUTED_ACROSS_HOSTS,
)
_LINEARIZABLE: Final = (Characteristics.LINEARIZABLE, Characteristics.SERIALIZABLE)


@contextmanager
def _as_tooz() -> Iterator[None]:
    """Raise the errors of this package as those of tooz."""
    try:
        yield
    except MetadataStoreError as error:
        kind = tooz.ToozError
        if isinstance(error, TimeoutError) or error.outcome == "unknown":
            kind = coordination.OperationTimedOut
        elif isinstance(error, StoreUnavailableError) or passes_anew(error):
            kind = coordination.ToozConnectionError
        raise kind(str(error), error) from error


def _result(
    steps: Callable[Concatenate[Driver, _P], _Steps[_T]],
) -> Callable[Concatenate[Driver, _P], CoordinatorResult[_T]]:
    """Begin an operation when it is called, and take each further step when a future is done."""

    @wraps(steps)
    def begin(driver: Driver, /, *args: _P.args, **kwargs: _P.kwargs) -> CoordinatorResult[_T]:
        outcome: Future[_T] = Future()
        running = steps(driver, *args, **kwargs)

        def go_on(done: Future[Any] | None) -> None:
            try:
                if done is None:
                    awaited = next(running)
                elif (error := done.exception()) is not None:
                    awaited = running.throw(error)
                else:
                    awaited = running.send(done.result())
            except StopIteration as end:
                outcome.set_result(end.value)
            except Exception as error:
                outcome.set_exception(error)
            else:
                awaited.add_done_callback(go_on)

        go_on(None)
        return CoordinatorResult(outcome, _as_tooz)

    return begin


def _part(name: bytes | str) -> str:
    """Return an id as one part of a path."""
    part = quote(name, safe="@:+=,")
    # Paths have no parts "." and "..", and stores keep things of their own behind a dot.
    return f"%2E{part[1:]}" if part.startswith(".") else part


class DriverLock(locking.Lock):
    """A lock of tooz: one :class:`batchkeeper.Lock` for each acquisition."""

    def __init__(self, driver: Driver, name: bytes) -> None:
        super().__init__(name)
        self._driver = driver
        self._path = driver.path(b"locks", name)
        self._held: dict[Lock, int] = {}  # by the threads that have acquired them
        self._latest: Lock | None = None  # It keeps what is known of the line.

    def acquire(
        self, blocking: bool | float = True, shared: bool = False, timeout: float | None = None
    ) -> bool:
        """Acquire the lock, first come, first served; return whether it was free in time.

        A blocking call waits out outages.
        """
        blocking, timeout = utils.convert_blocking(blocking, timeout)
        with _as_tooz(), suppress(LockBusyError):
            store, value = self._driver.store(locks=True), self._driver.member_id
            lock = self._latest = Lock(store, self._path, value, shared=bool(shared))
            if blocking:
                lock.acquire(timeout)
            elif not lock.try_acquire():
                return False
            self._held[lock] = get_ident()
            return True
        return False

    def release(self) -> bool:
        """Release this thread's latest acquisition; return whether it has held until now.

        Without one, it releases that of another thread. If no server answers, that happens in the
        background.
        """
        with _as_tooz(), suppress(LookupError, LockLostError):
            lock = self._latest_held()
            del self._held[lock]
            try:
                there = self._exists(lock)
            finally:
                lock.release()
            with suppress(MetadataStoreError):
                return there.result()
            return True
        return False

    def break_(self) -> bool:
        """Take the lock from its holder. Those that wait for it queue up again.

        Those of the holder's own coordinator wait until it has released the lock.
        """
        with _as_tooz():
            return self._driver.store(locks=True).delete_recursive(self._path).result() > 0

    def is_still_owner(self) -> bool:
        """Ask the server whether the latest acquisition still holds the lock."""
        with _as_tooz(), suppress(LookupError, LockLostError):
            lock = self._latest_held()
            return self._exists(lock).result() and lock.held
        return False

    @property
    def acquired(self) -> bool:
        """Whether this object certainly holds the lock at this moment, without a request."""
        return any(lock.held for lock in list(self._held))

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the latest acquisition, or ``None``; see ``batchkeeper.Lock``."""
        with suppress(LookupError, LockLostError):
            return self._latest_held().fencing_token
        return None

    def _latest_held(self) -> Lock:
        # A lost one must not stand for the one that another thread has acquired since.
        latest_first = list(self._held)[::-1]
        own = (lock for lock in latest_first if self._held.get(lock) == get_ident())
        return next(own, None) or latest_first[0]

    def _exists(self, lock: Lock) -> Future[bool]:
        # Its name occurs once, so whatever exists there is the value of this acquisition.
        return self._driver.store(locks=True).exists(lock.check().path)


class Driver(coordination.CoordinationDriverCachedRunWatchers):
    """A coordinator of tooz on a store: ``batchkeeper+etcd://``, ``batchkeeper+zookeeper://``, ...

    The rest of the URL, and its options, are those of the store, after a login if there is one
    (``user:password@``). These options are the driver's own:

    - ``timeout``: seconds that each operation has, and after which the server ends the session of a
      process that is silent, with its memberships, leaderships and locks. 30 by default.
    - ``membership_timeout``, ``lock_timeout``: seconds for those sessions; ``timeout`` by default.
      If the two differ, locks have a session of their own.
    - ``namespace``: the path below which everything is; ``tooz`` by default.

    The store keeps its sessions alive itself: ``heartbeat`` is not required, and asks whether a
    server answers. A membership or leadership that ended with its session is not restored;
    ``run_watchers`` reports the end of the membership, and stands for election again. A forked
    process needs a coordinator of its own, or stops and starts this one.
    """

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        self.member_id = utils.to_binary(member_id, "utf-8")
        super().__init__(self.member_id, parsed_url, options)
        rest = utils.collapse(options)
        timeout = float(rest.pop("timeout", 30))
        self._membership_timeout = float(rest.pop("membership_timeout", timeout))
        self._lock_timeout = float(rest.pop("lock_timeout", timeout))
        self._base = rest.pop("namespace", "tooz").strip("/")
        login, _, hosts = parsed_url.netloc.rpartition("@")
        user, _, password = map(unquote, login.partition(":"))
        query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
        url = f"{parsed_url.scheme.removeprefix('batchkeeper+')}://{hosts}{parsed_url.path}{query}"
        self._open = partial(
            open_store,
            url,
            connect_timeout=min(timeout, 10.0),
            operation_timeout=timeout,
            username=user or None,
            password=password or None,
        )
        self._opened = ExitStack()
        self._stores: tuple[MetadataStore, ...] = ()  # of groups and leaders, and of locks
        self._terms: dict[bytes, Lock] = {}
        self.requires_beating = False
        with _as_tooz():
            kind = store_kind(url)
        self.CHARACTERISTICS = (
            *_CHARACTERISTICS,
            *(() if kind.in_process else _SHARED),
            *(_LINEARIZABLE if "linearizable_reads" in kind.capabilities else ()),
        )

    def store(self, *, locks: bool = False) -> MetadataStore:
        """Return the open store of groups and leaders, or that of locks.

        Raises:
            ToozError: the coordinator is not started.
        """
        if not self._stores:
            raise tooz.ToozError("the coordinator is not started")
        return self._stores[-1 if locks else 0]

    def path(self, *names: bytes) -> str:
        """Return a path below the namespace."""
        return "/".join(["", self._base, *map(_part, names)])

    def _start(self) -> None:
        with _as_tooz(), ExitStack() as opened:
            # One store if the times are equal.
            times = dict.fromkeys([self._membership_timeout, self._lock_timeout])
            stores = [opened.enter_context(self._open(session_timeout=time)) for time in times]
            self._stores, self._terms, self._opened = tuple(stores), {}, opened.pop_all()

    def _stop(self) -> None:
        self._stores = ()
        with _as_tooz():
            self._opened.close()

    def heartbeat(self) -> float:
        """Ask the server for an answer; return the seconds after which its silence would count."""
        with _as_tooz():
            self.store().exists(self.path(b"groups")).result()
        return self._membership_timeout

    # --- groups

    @_result
    def create_group(self, group_id: bytes) -> _Steps[None]:
        try:
            yield self.store().put(self.path(b"groups", group_id), b"", ABSENT)
        except BadVersionError:
            raise coordination.GroupAlreadyExist(group_id) from None

    @_result
    def delete_group(self, group_id: bytes) -> _Steps[None]:
        try:
            yield self.store().delete(self.path(b"groups", group_id))
        except NotFoundError:
            raise coordination.GroupNotCreated(group_id) from None
        except NotEmptyError:
            raise coordination.GroupNotEmpty(group_id) from None

    @_result
    def get_groups(self) -> _Steps[list[bytes]]:
        return list(map(unquote_to_bytes, (yield self.store().get_children(self.path(b"groups")))))

    @_result
    def join_group(self, group_id: bytes, capabilities: _Data | None = None) -> _Steps[None]:
        path, value = self.path(b"groups", group_id, self.member_id), utils.dumps(capabilities)
        exists = Check(self.path(b"groups", group_id), 0)  # A group is written only once.
        try:
            yield self.store().transaction([exists, Put(path, value, ABSENT, ephemeral=True)])
        except TransactionRefusedError as refused:
            check_conflict(refused)
            if refused.index == 0:
                raise coordination.GroupNotCreated(group_id) from None
            raise coordination.MemberAlreadyExist(group_id, self.member_id) from None
        self._joined_groups.add(group_id)

    @_result
    def leave_group(self, group_id: bytes) -> _Steps[None]:
        while True:
            stat = (yield from self._find(group_id, self.member_id)).stat
            # Another process may have joined with this id since the session of this one has ended.
            if group_id in self._joined_groups and not stat.owned:
                raise coordination.MemberNotJoined(group_id, self.member_id)
            with suppress(BadVersionError, NotFoundError):
                # Versions begin again with each member of this name; revisions do not.
                exact = "expected_revisions" in self.store().capabilities
                revision = stat.revision if exact else None
                yield self.store().delete(stat.path, stat.version, expected_revision=revision)
                self._joined_groups.discard(group_id)
                return

    @_result
    def update_capabilities(self, group_id: bytes, capabilities: _Data) -> _Steps[None]:
        value = utils.dumps(capabilities)
        while True:
            stat = (yield from self._find(group_id, self.member_id)).stat
            if not stat.owned:
                raise coordination.MemberNotJoined(group_id, self.member_id)
            with suppress(BadVersionError):
                # Not in another session: that has lost the membership.
                yield self.store().put(stat.path, value, stat.version, ephemeral=True)
                return

    @_result
    def get_members(self, group_id: bytes) -> _Steps[set[bytes]]:
        return set((yield from self._member_ids(group_id)))

    @_result
    def get_members_with_capabilities(self, group_id: bytes) -> _Steps[dict[bytes, _Data | None]]:
        ids = yield from self._member_ids(group_id)
        # All reads are sent before the first answer.
        reads = [self.store().get(self.path(b"groups", group_id, member)) for member in ids]
        members = {}
        for member, read in zip(ids, reads, strict=True):
            if (found := (yield read)) is not None:
                members[member] = utils.loads(found.value)
        return members

    @_result
    def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> _Steps[_Data | None]:
        found = yield from self._find(group_id, member_id)
        return cast("_Data | None", utils.loads(found.value))

    @_result
    def get_member_info(self, group_id: bytes, member_id: bytes) -> _Steps[dict[str, Any]]:
        """Return the capabilities, and the times of the first and the last write.

        The times are ``None`` on a store that keeps none (etcd).
        """
        found = yield from self._find(group_id, member_id)
        times = {"created_at": found.stat.created, "updated_at": found.stat.modified}
        known = {key: time and utils.millis_to_datetime(time) for key, time in times.items()}
        return {"capabilities": utils.loads(found.value), **known}

    def _member_ids(self, group_id: bytes) -> _Steps[list[bytes]]:
        group = self.path(b"groups", group_id)
        names: list[str] = yield self.store().get_children(group)
        # A group that has members exists.
        if not names and not (yield self.store().exists(group)):
            raise coordination.GroupNotCreated(group_id)
        return list(map(unquote_to_bytes, names))

    def _find(self, group_id: bytes, member_id: bytes) -> _Steps[GetResult]:
        found: GetResult | None = yield self.store().get(self.path(b"groups", group_id, member_id))
        if found is None:
            raise coordination.MemberNotJoined(group_id, member_id)
        return found

    # --- locks and leaders

    def get_lock(self, name: bytes) -> DriverLock:
        """Return a lock: fair, held until ``release`` or the end of the session."""
        return DriverLock(self, name)

    @_result
    def get_leader(self, group_id: bytes) -> _Steps[Any]:
        """Return the id of the leader, or ``None``, for which tooz has no type."""
        yield from ()
        return self._term(group_id).holder()

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        """Give up the leadership; return whether this coordinator has led."""
        with _as_tooz(), suppress(KeyError, LockLostError):
            self._terms.pop(group_id).release()
            return True
        return False

    def run_elect_coordinator(self) -> None:
        """Become the leader of each group with a callback that has none, and run the callbacks."""
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            term = self._terms.get(group_id)
            if term is None or not term.held:
                term = self._term(group_id)
                with _as_tooz():
                    # A look leaves the line as it is.
                    elected = term.holder() is None and term.try_acquire()
                if elected:
                    self._terms[group_id] = term
                    hooks.run(coordination.LeaderElected(group_id, self.member_id))

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        """Run the callbacks of what has changed since the last run, and those of elections."""
        results = super().run_watchers(timeout)
        self.run_elect_coordinator()
        return results

    def _term(self, group_id: bytes) -> Lock:
        return Lock(self.store(), self.path(b"leaders", group_id), self.member_id)

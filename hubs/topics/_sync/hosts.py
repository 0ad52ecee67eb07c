# Made from async_hosts.py by `python tools/faces.py`: change that file, and run this command.
"""The hubs of a region: whether they are alive, their load, and whether they may get topics.

A hub has two values. ``hosts/ADDRESS`` records that it belongs to the region, and is permanent.
Below it, ``alive`` exists as long as the hub's session, and has its load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self, TypeAlias

from ....batching import MetadataStore
from ....batching.background import Signal
from ....coordination._sync.conflicts import Conflicts
from ....coordination._sync.groups import Group
from ....coordination._sync.kinds import check_store
from ....coordination._sync.memberships import Membership
from ....coordination.deadlines import Deadline
from ....coordination.members import decode, member_name, member_path
from ....ops.backoff import Backoff
from ....ops.errors import (
    BadVersionError,
    LockBusyError,
    MetadataStoreError,
    NotFoundError,
    StoreClosedError,
    TransactionRefusedError,
    ValueDecodeError,
    check_conflict,
    passes,
    passes_anew,
)
from ....ops.log import get_logger
from ....ops.operations import ABSENT, Check, Delete
from ....ops.paths import check_path
from ....ops.results import GetResult
from ...errors import HubsRegisteredError, IllegalOperationError
from ...managers.data import HubInfo, HubLoad
from ...names import escaped, text_of
from ..region import LEAF, Hub, HubMembership
from .views import View

__all__ = ["Hosts", "Registration"]


class _Alive(NamedTuple):
    """The decoded value of a live hub."""

    info: HubInfo
    load: HubLoad
    report: int


class _Shown(NamedTuple):
    """The live hubs, and the memberships of all hubs, by address."""

    hubs: Mapping[str, Hub]
    memberships: Mapping[str, HubMembership]


_Value: TypeAlias = _Alive | HubMembership

log = get_logger("batchkeeper.hubs")

# Seconds until a hub says that it waits for the end of another one.
_QUIET: Final = 2.0
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Stands for a missing or damaged membership.
_DAMAGED: Final = HubMembership(eligible=False)


class Registration:
    """A hub of this process, from ``Hosts.register`` to ``leave``; also a context manager.

    After a lost session, it registers again automatically, with a new incarnation.
    """

    def __init__(
        self,
        address: str,
        membership: Membership,
        view: View[_Value, _Shown],
    ) -> None:
        self._address = address
        self._membership = membership
        self._view = view
        self._info = HubInfo(address, membership.incarnation)

    @property
    def info(self) -> HubInfo:
        """Its address and its current incarnation, or the last one after a lost session."""
        info, incarnation = self._info, self._membership.incarnation
        if info.incarnation != incarnation:
            self._info = info = HubInfo(self._address, incarnation)
        return info

    @property
    def eligible(self) -> bool:
        """Whether it may get topics, according to the newest view. Sends no request.

        A hub that was forgotten while it was disconnected may not, until it is registered again.
        """
        return self._view.latest().memberships.get(self._address, _DAMAGED).eligible

    @property
    def draining(self) -> bool:
        """Whether it must hand its topics to others, according to the newest view."""
        return self._view.latest().memberships.get(self._address, _DAMAGED).draining

    @property
    def lost(self) -> Signal:
        """An event that is set when the current incarnation has ended.

        When the hub registers again, it gets a new event.
        """
        return self._membership.lost

    def held_until(self) -> float:
        """Return the time before which this incarnation cannot have ended.

        The time is a value of ``time.monotonic()``: ``math.inf`` on stores without a server, and
        ``-math.inf`` if the hub is not registered.
        """
        return self._membership.held_until()

    def update(self, load: HubLoad) -> None:
        """Report the load. After a lost session, it is reported when the hub registers again.

        Raises:
            IllegalOperationError: the load is invalid.
            LockLostError: the hub has left.
            MetadataStoreError: the write has failed; see its ``outcome``.
        """
        self._membership.update(_check_load(load).encoded())

    def leave(self) -> None:
        """End the registration. The membership stays. Leaving twice is harmless.

        If no server answers, this happens in the background, or with the end of the session.
        """
        self._membership.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address!r} of {self._membership!r}>"


class Hosts:
    """The hubs of a region. Close it, or use it as a context manager; the store stays open.

    From the first use on, one watch keeps a view of them current. During an outage, the view shows
    the last known state. An address is any non-empty text.

    Args:
        store: the store, with ``"ephemerals"``, ``"transactions"`` and ``"watches"``.
        region: the path of the region.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: MetadataStore, region: str) -> None:
        check_store(store, "a list of hubs", "ephemerals", "transactions", "watches")
        self.path = f"{check_path(region)}/hosts"
        self._store = store
        self._group = Group(store, self.path, LEAF)
        self._exact = "expected_revisions" in store.capabilities
        self._lags = "linearizable_reads" not in store.capabilities
        self._view: View[_Value, _Shown] = View(store, self.path, self._decoded, self._shown)
        self._lock = threading.RLock()  # guards the following fields
        self._memberships: list[Membership] = []
        self._closed = False
        # By address, an incarnation that has ended. Thousands of topics may have had the same
        # owner, and an end is final, so it is read once. Any thread may set it.
        self._ended: dict[str, int] = {}

    def register(
        self, address: str, load: HubLoad | None = None, timeout: float | None = None
    ) -> Registration:
        """Register a hub of this process: it is alive until it leaves, or its session ends.

        A missing membership is written as eligible. If a hub with that address is alive, for
        example this hub's previous process, the call waits for its end. After 2 s, it logs a
        warning.

        Args:
            address: its network address, such as ``"hub-1:4080"``.
            load: its load; that of an idle hub by default.
            timeout: seconds to wait; unlimited by default.

        Raises:
            LockBusyError: a hub with that address was alive for the whole ``timeout``.
            IllegalOperationError: the address or the load is invalid.
            StoreClosedError: the hosts or the store are closed.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        self._view.check_open()
        data = _check_load(HubLoad() if load is None else load).encoded()
        membership = self._join(address, data, deadline)
        attempts = 0
        try:
            # In this order: a live hub cannot be forgotten.
            while not self._entered(address, membership, deadline):
                time.sleep(deadline.within(_BACKOFF.pause(attempts)))
                attempts += 1
            registration = Registration(address, membership, self._view)
            with self._lock:
                closed = self._closed
                self._memberships.append(membership)
            if closed:
                raise StoreClosedError(f"{self.path} was closed meanwhile", path=membership.path)
        except BaseException:
            membership.drop()
            raise
        return registration

    def hubs(self, timeout: float | None = None) -> dict[str, Hub]:
        """Return the live hubs by address. Only the first call sends requests.

        A load that cannot be decoded counts as the load of an idle hub. A hub whose membership is
        missing or cannot be decoded is not eligible.

        Args:
            timeout: seconds that the first call waits for the view; the store's
                ``operation_timeout`` by default.

        Raises:
            OperationTimeoutError: the view was not complete in that time.
            StoreClosedError: the hosts or the store are closed.
            MetadataStoreError: the store has refused the watch or a read.
        """
        return dict(self._view.get(timeout).hubs)

    def memberships(self, timeout: float | None = None) -> dict[str, HubMembership]:
        """Return the memberships of all hubs of the region, alive or not, by address.

        A hub whose membership cannot be decoded is not eligible. The errors are those of
        :meth:`hubs`.
        """
        return dict(self._view.get(timeout).memberships)

    def is_alive(self, info: HubInfo) -> bool:
        """Read from the store whether this incarnation of a hub is alive.

        An incarnation that has ended never returns, and no further request is sent for it.

        Raises:
            MetadataStoreError: the read has failed.
        """
        self._view.check_open()
        part = _part(info.address)
        if self._lags and self._ended.get(info.address) != info.incarnation:
            self._store.sync()
        if self._ended.get(info.address) == info.incarnation:  # It was read meanwhile.
            return False
        found = self._store.get(member_path(self.path, part, LEAF)).result()
        alive = (
            found is not None
            and decode(part, found.value, found.stat).member.incarnation == info.incarnation
        )
        if not alive:
            self._ended[info.address] = info.incarnation
        return alive

    def set_draining(self, address: str, draining: bool) -> None:
        """Set whether a hub must hand its topics to others.

        Raises:
            NotFoundError: the region has no such hub.
            ValueDecodeError: its membership cannot be decoded; nothing is changed. Forget the hub
                while it is not alive, and register it again.
            MetadataStoreError: a request has failed; see its ``outcome``.
        """
        self._change(address, draining=draining)

    def set_eligible(self, address: str, eligible: bool) -> None:
        """Set whether a hub may get topics. The errors are those of :meth:`set_draining`."""
        self._change(address, eligible=eligible)

    def forget(self, address: str) -> None:
        """Remove a hub from the region.

        Raises:
            HubsRegisteredError: the hub is alive. Nothing is removed.
            NotFoundError: the region has no such hub.
            MetadataStoreError: a request has failed; see its ``outcome``.
        """
        self._view.check_open()
        path = self._path(address)
        alive = Check(member_path(self.path, _part(address), LEAF), ABSENT)
        try:
            self._store.transaction([alive, Delete(path)]).result()
        except TransactionRefusedError as refused:
            check_conflict(refused)
            if refused.index == 0:
                why = f"the hub {address!r} is alive: stop it before it is forgotten"
                raise HubsRegisteredError(why, path=path) from refused
            raise self._missing(address) from refused
        self._view.refresh(path)

    def close(self) -> None:
        """End the view, and leave with all hubs registered here.

        If the call is cancelled or interrupted, they leave in the background.

        Raises:
            MetadataStoreError: a hub cannot leave, for example for lack of permission. The others
                have left.
        """
        with self._lock:
            self._closed = True
            memberships, self._memberships = self._memberships, []
        self._view.close()
        failed: MetadataStoreError | None = None
        try:
            while memberships:
                try:
                    memberships.pop().leave()
                except MetadataStoreError as error:  # The others leave all the same.
                    failed = failed or error
        except BaseException:  # Nobody waits any more.
            for membership in memberships:
                membership.drop()
            raise
        if failed is not None:
            raise failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} of {self._store!r}>"

    def _join(self, address: str, data: bytes, deadline: Deadline) -> Membership:
        left = deadline.left()
        if left is None or left > _QUIET:
            try:
                return self._group.join(_part(address), data, _QUIET)
            except LockBusyError:
                log.warning(
                    "a hub with this address is alive: waiting for its end",
                    hub=address,
                    path=self._path(address),
                    timeout=left,
                )
            except MetadataStoreError as error:  # An outage, too, is waited out for the whole time.
                if not passes_anew(error):
                    raise
        return self._group.join(_part(address), data, deadline.left())

    def _entered(self, address: str, membership: Membership, deadline: Deadline) -> bool:
        """Write a missing membership, and show the hub; return ``False`` in an outage."""
        path = self._path(address)
        try:
            with suppress(BadVersionError):  # It exists.
                record = HubMembership().encoded()
                self._store.put(path, record, ABSENT, timeout=deadline.for_request()).result()
            self._view.get(deadline.for_request())
            self._view.refresh(path, membership.path)
        except MetadataStoreError as error:
            if not passes(error) or deadline.passed:
                raise
            return False
        return True

    def _path(self, address: str) -> str:
        return f"{self.path}/{_part(address)}"

    def _missing(self, address: str) -> NotFoundError:
        path = self._path(address)
        return NotFoundError(f"no hub {address!r} belongs to {self.path}", path=path)

    def _change(self, address: str, **flags: Any) -> None:
        """Change the membership of a hub, and keep the members that this program does not know."""
        self._view.check_open()
        path = self._path(address)
        conflicts = Conflicts(self._store.operation_timeout, path)
        while True:
            if self._lags:
                self._store.sync()
            found = self._store.get(path).result()
            if found is None:
                raise self._missing(address)
            changed = replace(HubMembership.decoded(found.value, path), **flags)
            revision = found.stat.revision if self._exact else None
            try:
                self._store.put(
                    path, changed.encoded(), found.stat.version, expected_revision=revision
                ).result()
            except BadVersionError as refused:
                conflicts.pause(refused)
                continue
            self._view.refresh(path)
            return

    def _decoded(self, path: str, found: GetResult) -> _Value | None:
        part = member_name(self.path, path, LEAF)
        address = text_of(path[len(self.path) + 1 :] if part is None else part)
        if address is None:
            return None  # Not ours, such as the second value of a member.
        if part is None:
            try:
                return HubMembership.decoded(found.value, path)
            except ValueDecodeError:
                return _DAMAGED
        card = decode(part, found.value, found.stat)
        try:
            info = HubInfo(address, card.member.incarnation)
        except IllegalOperationError:  # It is not an address.
            return None
        try:
            load = HubLoad.decoded(card.member.data, path)
        except ValueDecodeError:
            load = HubLoad()
        return _Alive(info, load, found.stat.revision)

    def _shown(self, values: Mapping[str, _Value]) -> _Shown:
        memberships = {
            text_of(path[len(self.path) + 1 :]) or "": value
            for path, value in values.items()
            if isinstance(value, HubMembership)
        }
        hubs = {}
        for value in values.values():
            if isinstance(value, _Alive):
                info, load, report = value
                of = memberships.get(info.address, _DAMAGED)
                hubs[info.address] = Hub(info, load, of.eligible, of.draining, report)
        return _Shown(hubs, memberships)


def _part(address: str) -> str:
    """Return an address as a path component."""
    return escaped(HubInfo(address, 0).address)


def _check_load(load: HubLoad) -> HubLoad:
    if not isinstance(load, HubLoad):
        raise IllegalOperationError(f"the load of a hub must be a HubLoad, not {load!r:.80}")
    return load

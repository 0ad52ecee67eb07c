"""Executes batches of writes: each in one transaction, and once more what needs another form."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

from ....ops.errors import (
    BadVersionError,
    InvalidSettingError,
    MetadataStoreError,
    SessionLostError,
    TransactionRefusedError,
    UnsupportedError,
)
from ....ops.log import get_logger
from ....ops.operations import ABSENT
from ....ops.paths import parent
from ....ops.results import Stat
from ....ops.steps import PutValue, Step, lower, steps_in
from ...backend import Answer, WriteRequest, send_by, without_options
from ...refusals import session_lost
from ..session.guard import Guard
from ..session.session import EtcdSession, SessionLease
from ..sizes.estimates import Refusals
from ..sizes.limits import Capacity
from ..wire.batches import errors_as_answers, halves, in_parts, packed, parsed, paths_of, readable
from ..wire.connection import EtcdConnection, FlatOnlyError
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.fields import delete, read_key, rebind, revision_is, then
from .counters import Counters
from .forms import crossing, sets_key
from .pending import (
    LeaseDetached,
    OtherForm,
    Pending,
    Terms,
    is_by_version,
    is_ephemeral,
    is_sequential,
)
from .plan import FlatPlan, NestedPlan, Plan, weight
from .settling import TxnSettler

__all__ = ["Writer"]

_log = get_logger(__name__)

# So many times, writes are sent again without a pause.
_AT_ONCE: Final = 3
# The types of answers that show that a condition did not hold.
_REFUSED: Final = (OtherForm, BadVersionError, TransactionRefusedError)
# Without options, they show without a step whether they overwrite a value.
_PLAIN_KINDS: Final = frozenset({"put", "delete"})
# The most ephemeral paths to remember.
_KEPT: Final = 4096


class Writer:
    """Executes batches of writes. Used by several threads at once.

    Args:
        connection: the calls to the cluster.
        capacity: the limits of the server.
        settler: finds out the outcomes of transactions without an answer.
        session: the session of ephemeral values.
        guard: the condition that there are no sessions.
        terms: the terms of transactions without ephemeral values.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        capacity: Capacity,
        settler: TxnSettler,
        session: EtcdSession,
        guard: Guard,
        terms: Terms,
    ) -> None:
        self._connection = connection
        self._capacity = capacity
        self._settler = settler
        self._session = session
        self._guard = guard
        self._terms = terms
        self._counters = Counters(terms.prefix)
        self._refusals = Refusals()
        # Held by the thread whose batch contains sequential puts, until their answers are there. If
        # several batches with numbers were under way, they would often overtake each other, and the
        # later numbers would refuse the earlier ones.
        self._numbering = threading.Lock()
        # Paths that were ephemeral when they were put last. Several threads add and remove them;
        # a missing or an outdated one costs another round.
        self._kept: dict[str, None] = {}

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes. Return an answer for each, and raise as for a transaction as a whole."""
        unusual = _with_options(requests)
        if not unusual:
            return self._rounds(requests, deadline, plain=True)
        alone = crossing(unusual)
        if not alone:
            return self._numbered(requests, deadline)
        # Each is sent alone, because it may cross another one of these, too.
        together = [request for place, request in enumerate(requests) if place not in alone]
        found = iter(errors_as_answers(self._numbered, together, deadline) if together else ())
        parts = [[requests[place]] for place in sorted(alone)]
        found_alone = iter(in_parts(self._rounds, parts, deadline))
        return [next(found_alone if place in alone else found) for place in range(len(requests))]

    def _numbered(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes. Those that take numbers from counters wait for earlier ones."""
        sequential = {place for place, request in _with_options(requests) if is_sequential(request)}
        if not sequential:
            return self._rounds(requests, deadline)
        if self._numbering.acquire(blocking=False):
            try:
                return self._rounds(requests, deadline)
            finally:
                self._numbering.release()
        children, others = (
            [request for place, request in enumerate(requests) if (place in sequential) is chosen]
            for chosen in (True, False)
        )
        in_turn = iter(errors_as_answers(self._rounds, others, deadline) if others else ())
        of_children = iter(errors_as_answers(self._in_turn, children, deadline))
        return [
            next(of_children if place in sequential else in_turn) for place in range(len(requests))
        ]

    def returns_old_value(self, request: WriteRequest) -> bool:
        """Say whether etcd probably answers a write with the value that it overwrites."""
        # With the guard, or with shared conditions, it is not asked for the value.
        asks = not (self._guard.free or self._refusals.rare)
        if (request.options is None and request.kind in _PLAIN_KINDS) or is_by_version(request):
            expected = request.expected_version
            unconditional = request.value is not None and expected is None
            return unconditional or (asks and expected != ABSENT)
        steps = steps_in(lower(request))
        return any(sets_key(step.effect) and step.condition != "absent" for step in steps)

    def _in_turn(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute sequential puts after the running ones."""
        if not self._numbering.acquire(timeout=max(0.0, send_by(deadline) - time.monotonic())):
            raise self._connection.late("earlier sequential puts are under way; nothing was sent")
        try:
            return self._rounds(requests, deadline)
        finally:
            self._numbering.release()

    def _rounds(
        self, requests: Sequence[WriteRequest], deadline: float, *, plain: bool = False
    ) -> Sequence[Answer]:
        """Execute writes, and once more those that need another form.

        ``plain`` says that none has options, so that nothing has to look for them again.
        """
        if not plain:
            requests = self._in_present_session(requests)
        if known := bool(self._kept):
            requests = [self._in_known_form(request) for request in requests]
        answers = self._round(requests, deadline, plain=plain and not known)
        if known:
            self._note(requests, answers)
        rounds = 0
        kinds = set(map(type, answers))
        self._refusals.saw(len(answers), refused=not kinds.isdisjoint(_REFUSED))
        while OtherForm in set(map(type, answers)):
            again = [
                (place, answer)
                for place, answer in enumerate(answers)
                if isinstance(answer, OtherForm)
            ]
            self._connection.tally.add("conflict")
            rounds += 1
            others = [answer for _, answer in again]
            # An error of this round is not one of the writes that have their answers.
            send = partial(self._next_round, rounds - _AT_ONCE)
            found = errors_as_answers(send, others, deadline)
            self._note(others, found)
            answers = [*answers]
            for (place, _), answer in zip(again, found, strict=True):
                answers[place] = answer
        return cast("Sequence[Answer]", answers)

    def _next_round(
        self, late: int, requests: Sequence[WriteRequest], deadline: float
    ) -> Sequence[Pending]:
        """Execute writes in another form; if ``late`` rounds were no use, after a pause."""
        if late > 0:
            self._connection.pause(late)
        # Other clients have moved the counters during a pause, and would do so each time.
        return self._round(requests, deadline, refresh=late > 0)

    def _in_present_session(self, requests: Sequence[WriteRequest]) -> Sequence[WriteRequest]:
        """Return the requests with a session for those that name none, also in further rounds."""
        changed = None
        for place, request in _with_options(requests):
            assert request.options is not None
            if request.options.ephemeral and request.session is None:
                changed = changed or [*requests]
                changed[place] = OtherForm(request, session=self._session.number)
        return changed or requests

    def _in_known_form(self, request: WriteRequest) -> WriteRequest:
        """Return a write whose keys are probably ephemeral in the form for it."""
        kept = self._kept
        if kept.keys().isdisjoint(paths_of(request)):
            return request
        lowered = lower(request)
        puts = [step for step in steps_in(lowered) if isinstance(step.effect, PutValue)]
        if not any(step.path in kept for step in puts):
            return request
        unconditional = isinstance(lowered, Step) and lowered.condition == "any"
        # What is sent in another form shares no conditions.
        return OtherForm(request, frozenset((0,) if unconditional else ()))

    def _note(self, requests: Sequence[WriteRequest], answers: Sequence[Pending]) -> None:
        """Remember which paths are ephemeral, and forget those that no longer are."""
        for request, answer in zip(requests, answers, strict=True):
            # Creations of ephemeral values would fill the memory.
            if not isinstance(request, OtherForm) or (is_ephemeral(request) and not request.there):
                continue
            for stat in answer if isinstance(answer, list) else (answer,):
                if not isinstance(stat, Stat):
                    continue
                if not stat.ephemeral:
                    self._kept.pop(stat.path, None)
                elif len(self._kept) < _KEPT:
                    self._kept[stat.path] = None

    def _round(
        self,
        requests: Sequence[WriteRequest],
        deadline: float,
        *,
        plain: bool = False,
        refresh: bool = False,
    ) -> Sequence[Pending]:
        """Execute writes; return answers, and other forms of those that have to be sent again.

        ``refresh`` says that what is known of the counters is old.
        """
        terms = self._terms
        if not plain:
            unusual = _with_options(requests)
            terms, lost = self._terms_of(unusual, deadline)
            if lost:
                rest = [request for place, request in enumerate(requests) if place not in lost]
                found = iter(errors_as_answers(self._round, rest, deadline) if rest else ())
                return [lost.get(place) or next(found) for place in range(len(requests))]
            self._learn_counters(unusual, deadline, refresh=refresh)
        try:
            if self._capacity.group:
                return self._nested(requests, terms, deadline, plain=plain)
            chunks = packed(requests, self._capacity.direct, weight)
            if len(chunks) == 1:
                return self._flat(terms, requests, deadline)
            return in_parts(partial(self._flat, terms), chunks, deadline)
        except FlatOnlyError:
            self._capacity.stop_nesting()
        except EtcdRefusedError as refusal:
            if refusal.reason is not Reason.LEASE_GONE or terms.lease is None:
                raise
            # Not the lease of the write ids; the settler has made sure of that.
            self._session.doubt(terms.lease.number)
            if self._session.number == terms.lease.number:
                raise
        return self._round(requests, deadline, plain=plain)

    def _terms_of(
        self, unusual: Sequence[tuple[int, WriteRequest]], deadline: float
    ) -> tuple[Terms, Mapping[int, MetadataStoreError]]:
        """Return the terms of a batch, and the errors of the writes that cannot have a session."""
        leases: dict[int, SessionLease | MetadataStoreError] = {}
        lost: dict[int, MetadataStoreError] = {}
        terms = self._terms
        for place, request in unusual:
            assert request.options is not None
            if not request.options.ephemeral:
                continue
            number = request.session
            assert number is not None
            lease = leases.get(number)
            if lease is None:
                lease = leases[number] = self._lease_of(number, deadline)
                if isinstance(lease, SessionLease):
                    terms = terms.within(lease)
            if isinstance(lease, SessionLostError):
                lost[place] = session_lost(request)
            elif isinstance(lease, MetadataStoreError):
                lost[place] = lease.for_path(request.path)
        return terms, lost

    def _lease_of(self, number: int, deadline: float) -> SessionLease | MetadataStoreError:
        """Return the lease of a session, or the reason why there is none."""
        try:
            lease = self._session.take(number, deadline)
        except EtcdRefusedError as refusal:
            return refusal.error
        except MetadataStoreError as error:
            return error
        self._guard.failed()  # This client itself has a session.
        return lease

    def _learn_counters(
        self, unusual: Sequence[tuple[int, WriteRequest]], deadline: float, *, refresh: bool
    ) -> None:
        """Read the counters of sequential puts that are not known, or all of them ``refresh``."""
        parents = {parent(request.path) for _, request in unusual if is_sequential(request)}
        unknown = [*parents] if refresh or not parents else self._counters.unknown(parents)
        step = self._capacity.max_txn_ops
        for some in (unknown[start : start + step] for start in range(0, len(unknown), step)):
            body = b"".join(then(read_key(self._counters.key(above), whole=True)) for above in some)
            answer = self._connection.call("txn", body, deadline, write=False)
            with readable(write=False):
                response = parsed(answer)
            for above, result in zip(some, response.responses, strict=True):
                kvs = result.response_range.kvs
                self._counters.learn(above, kvs[0].value if kvs else None)

    def _nested(
        self, requests: Sequence[WriteRequest], terms: Terms, deadline: float, *, plain: bool
    ) -> Sequence[Pending]:
        guard = self._guard.condition(deadline)
        # The group may have become 0 meanwhile. The connection then refuses to send this.
        group = self._capacity.group or 1
        plan = NestedPlan(
            requests, terms, group, guard, self._counters, plain=plain, joint=self._refusals.rare
        )
        if plan.depth > self._capacity.direct:
            if len(requests) == 1:
                return [_too_many_conditions(requests[0], self._capacity.max_txn_ops)]
            return in_parts(self._round, halves(requests), deadline)
        try:
            answers = self._settler.run(plan, deadline)
        except EtcdRefusedError as refusal:
            if not guard or refusal.reason is not Reason.NOT_PERMITTED:
                raise
            if not self._guard.forbidden(deadline):
                raise
            return self._round(requests, deadline)
        if plan.guard_failed:
            self._guard.failed()
        return self._completed(plan, answers, deadline)

    def _flat(
        self, terms: Terms, requests: Sequence[WriteRequest], deadline: float
    ) -> Sequence[Pending]:
        """Execute writes in one flat transaction, which is applied as a whole or not at all.

        If it is not applied, its answer shows, at a single revision, which writes cannot be
        applied: at least one. These are answered, and the others are sent again.
        """
        if len(requests) == 1 and weight(requests[0]) > self._capacity.direct:
            return [_too_many_conditions(requests[0], self._capacity.max_txn_ops)]
        plan = FlatPlan(requests, terms, self._counters)
        return self._completed(plan, self._settler.run(plan, deadline), deadline)

    def _completed(
        self, plan: Plan, answers: Sequence[Pending], deadline: float
    ) -> Sequence[Pending]:
        """Do what the answers of a plan ask for besides; return them."""
        if plan.doubted is not None:
            self._session.doubt(plan.doubted)
        if LeaseDetached in set(map(type, answers)):
            self._guard.met_lease()
            return [
                self._attached(answer, deadline) if isinstance(answer, LeaseDetached) else answer
                for answer in answers
            ]
        return answers

    def _attached(self, put: LeaseDetached, deadline: float) -> Stat:
        """Bind a key to its lease again, unless another client has changed it since.

        If the lease has ended meanwhile, remove the key, as its end would have done.
        """
        stat = put.stat
        key = (self._terms.prefix + stat.path).encode()
        unchanged = revision_is(key, stat.revision)
        try:
            # Both changes may be repeated: after the first one, the revision is another.
            again = unchanged + then(rebind(key, put.lease))
            try:
                answer = self._connection.call("txn", again, deadline, write=False)
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.LEASE_GONE:
                    raise
                gone = unchanged + then(delete(key))
                self._connection.call("txn", gone, deadline, write=False)
                return stat
        except MetadataStoreError as error:
            _log.warning("etcd key taken from its lease", path=stat.path, reason=str(error))
            return stat._replace(ephemeral=False)
        with readable(write=False):
            response = parsed(answer)
        if not response.succeeded:
            return stat
        return stat._replace(version=stat.version + 1, revision=response.header.revision)


def _with_options(requests: Sequence[WriteRequest]) -> list[tuple[int, WriteRequest]]:
    """Return the few requests with options, and their places."""
    if without_options(requests):
        return []
    return [
        (place, request) for place, request in enumerate(requests) if request.options is not None
    ]


def _too_many_conditions(request: WriteRequest, max_txn_ops: int) -> MetadataStoreError:
    parts = () if request.options is None else request.options.parts
    if not parts:
        return UnsupportedError(
            f"the operation has more conditions than etcd accepts (--max-txn-ops {max_txn_ops})",
            path=request.path,
        )
    return InvalidSettingError(
        f"the transaction of {len(parts)} operations has more conditions than etcd accepts at once "
        f"(--max-txn-ops {max_txn_ops}): a put or check has one, or two with an expected_revision; "
        f"a delete has two, and more if other parts delete paths below it",
        path=request.path,
    )

"""Finds out the outcome of a write whose answer was lost, by sending the write again.

The write id in each transaction (see ``write_ids``) makes that safe. While the outcome of a
transaction is unknown, the client sends the same bytes again, after pauses. Either they are applied
now, or the write id shows that they were applied before, and their results are read back at the
write id's revision. After the deadline, the client shuts the transaction out instead. Either way,
the call ends only when the transaction can no longer take effect. Later operations on its paths
wait for that, so the transaction never overtakes them.

A transaction that cannot be shut out ends as unknown, and may still take effect: there are no write
ids, etcd refuses the attempts or has no space after the deadline, or the store is closed.

A kill can cost a single etcd before 3.5.5 writes that it had acknowledged. Writes without an answer
are settled all the same, by the state that etcd remembers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from ....ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    passes,
)
from ....ops.log import get_logger
from ....ops.steps import lower
from ...backend import WriteRequest
from ..sizes.limits import Capacity
from ..sizes.requests import Requests
from ..wire.batches import readable
from ..wire.connection import EtcdConnection, FlatOnlyError
from ..wire.errors import EtcdRefusedError, Reason, UnansweredError, reason_of
from ..wire.fields import below_of
from ..wire.members import tells_leases
from ..wire.protos import messages
from .forms import Unclear, answer_at_revision, answer_from_before, changes_of
from .pending import Pending, Terms
from .plan import Plan
from .write_ids import WriteId, WriteIds

__all__ = ["TxnSettler"]

log = get_logger(__name__)

# Seconds that one attempt to settle a transaction waits for an answer.
_ATTEMPT: Final = 5.0


class TxnSettler:
    """Executes writes so that their outcome becomes known. Used by several threads at once.

    Args:
        connection: the cluster.
        requests: sends the transactions over ``connection``.
        write_ids: the write ids for the transactions.
        terms: the prefix of all keys, and which leases are the client's own.
        capacity: limits the ranges in a transaction that reads back.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        requests: Requests,
        write_ids: WriteIds,
        terms: Terms,
        capacity: Capacity,
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._write_ids = write_ids
        self._terms = terms
        self._capacity = capacity

    def run(self, plan: Plan, deadline: float) -> list[Pending]:
        """Execute the transaction of a plan; return its answers, or writes for another form.

        The engine may end the operations before that: ``deadline`` is the latest of them, and the
        call goes on until nothing of the transaction can take effect any more.

        Raises:
            IndeterminateError: it was sent, and its outcome cannot be known: the store was closed,
                etcd refuses the reads that would show it, the write id is gone, or there are no
                write ids.
            MetadataStoreError: as from ``Requests.txn``; nothing was applied.
        """
        try:
            while True:
                write_id = self._write_ids.take(deadline)
                if write_id is None:
                    outcome = self._send(plan, b"", deadline, None)
                    break
                try:
                    outcome = self._execute(write_id, plan, deadline)
                finally:
                    self._write_ids.end(write_id)
                if outcome is not None:
                    break
        except IndeterminateError as unknown:
            if not unknown.applied:
                raise _plain(unknown) from unknown.__cause__
            # The transaction was applied. Nothing shows that for each transaction nested in it.
            outcome = [_applied_somehow(request, plan, unknown) for request in plan.requests]
        if isinstance(outcome, list):
            return [plan.unsent.get(place, answer) for place, answer in enumerate(outcome)]
        with readable(write=True):
            return plan.answers(outcome)

    def _send(self, plan: Plan, fields: bytes, deadline: float, attempt: int | None) -> Any:
        """Send the transaction with some fields before its own, and return its response."""
        body = fields + plan.body
        answer = self._requests.txn(
            body,
            deadline,
            write=True,
            nested=plan.nested,
            attempt=attempt,
            writes=len(plan.requests),
        )
        with readable(write=True):
            return plan.parsed(answer, 1 if fields else 0)

    # Each of the following methods gives the slot back if its content is known and nothing under
    # way can change it. Other slots are not used again.

    def _execute(
        self, write_id: WriteId, plan: Plan, deadline: float
    ) -> Any | list[Pending] | None:
        """Return the response, without the write id's part.

        If an earlier attempt has applied the transaction, or its response was too large, it is the
        list of answers instead; ``None`` if the transaction must be sent with a new write id. A
        write that it has left out for a passing reason has its next attempt there.
        """
        try:
            response = self._send(plan, write_id.fields, deadline, 0)
        except IndeterminateError as unknown:
            if (
                reason_of(unknown) is Reason.NO_SPACE
                and (found := self._read(write_id)) is not None
            ):
                return self._without_space(write_id, plan, found, deadline)
            return self._settle(write_id, plan, deadline, unknown)
        except (MetadataStoreError, FlatOnlyError) as error:
            if reason_of(error) is Reason.LEASE_GONE and not self._write_ids.stands(
                write_id, deadline
            ):
                # The machine was asleep for long, or etcd was set up again. Nothing was applied,
                # and a new lease can be granted.
                self._write_ids.start_over(write_id)
                return None
            self._write_ids.give_back(write_id, write_id.before, write_id.since)
            # The engine splits a refused batch, so this looks once for each refused operation.
            if (
                len(plan.requests) == 1
                and reason_of(error) is Reason.NOT_PERMITTED
                and self._write_ids.forbidden(write_id, deadline)
            ):
                return None
            raise
        if response.succeeded:
            self._write_ids.give_back(write_id, write_id.value, response.header.revision)
            return _without_write_id(response)
        holds, revision = _held(response)
        if write_id.undecided(holds):  # This was the only attempt.
            self._write_ids.give_back(write_id, holds, revision)
            return _without_write_id(response)
        if holds == write_id.value:  # gRPC itself sent it twice
            return self._applied(write_id, plan, revision, deadline)
        self._forgotten(write_id)  # It logs that etcd has lost writes.
        return None

    def _settle(
        self, write_id: WriteId, plan: Plan, deadline: float, unknown: IndeterminateError
    ) -> Any | list[Pending] | None:
        """Find out the outcome of a transaction that was sent; return as ``_execute`` does."""
        response, shut_out, refusal_of_all = self._until_known(write_id, plan, deadline, unknown)
        holds: bytes | None
        if response.succeeded:
            holds, revision = write_id.void_value, response.header.revision
            if not shut_out:
                self._write_ids.give_back(write_id, write_id.value, revision)
                self._settled("applied", plan)
                return _without_write_id(response)
        else:
            holds, revision = _held(response)
        if holds == write_id.value:
            return self._applied(write_id, plan, revision, deadline)
        if holds == write_id.void_value:
            self._write_ids.give_back(write_id, holds, revision)
        elif self._never_happened(write_id):
            refusal_of_all = None
        else:
            # It may have been applied, and its write id may have gone since, with the lease.
            log.warning(
                "etcd lost a write id, and a write's outcome", operations=len(plan.requests)
            )
            raise unknown
        self._settled("not applied", plan)
        if refusal_of_all is not None:
            return _without_write_id(refusal_of_all)
        if time.monotonic() < deadline:
            return None
        raise OperationTimeoutError("the write was not applied by the deadline, and never will be")

    def _until_known(
        self, write_id: WriteId, plan: Plan, deadline: float, unknown: IndeterminateError
    ) -> tuple[Any, bool, Any | None]:
        """Send a transaction, or the one that shuts it out, until an answer shows the outcome.

        Returns the response; whether it belongs to the transaction that shuts out; and, if a flat
        transaction was refused before it was shut out, the response with the reasons.
        """
        wanted = True
        refusal_of_all = None
        for failures in count():
            try:
                self._connection.pause(failures)
                self._connection.tally.add("retry")
                until = time.monotonic() + _ATTEMPT
                if not wanted or time.monotonic() >= deadline:
                    void = self._txn(write_id.void(), until, write=True, attempt=failures + 1)
                    return void, True, refusal_of_all
                response = self._send(plan, write_id.fields, until, failures + 1)
                if response.succeeded or not write_id.undecided(_held(response)[0]):
                    return response, False, None
                # A condition other than the write id's did not hold. An earlier attempt may still
                # arrive at a time when it does, so the refusal is not final before that is ruled
                # out.
                refusal_of_all = response
                wanted = False
            except FlatOnlyError:
                wanted = False  # These bytes must not be sent any more.
            except MetadataStoreError as error:
                reason = reason_of(error)
                if reason is Reason.NO_SPACE:
                    # It cannot be shut out, but if it was applied, the slot shows that.
                    found = self._read(write_id)
                    if found is not None and _held(found)[0] == write_id.value:
                        return found, False, None
                if _hopeless(error, late=time.monotonic() >= deadline):
                    break
                if isinstance(error, EtcdRefusedError) and reason is not Reason.NO_SPACE:
                    wanted = False  # This attempt was refused, but maybe not an earlier one.
        raise unknown

    def _forgotten(self, write_id: WriteId) -> bool:
        """Say whether etcd has lost the slot's last transaction, which it had acknowledged."""
        try:
            until = time.monotonic() + _ATTEMPT
            request = write_id.read(write_id.since)
            then = self._requests.range(request, until).kvs
        except EtcdRefusedError as refused:
            forgotten = refused.reason is Reason.FUTURE
        except MetadataStoreError:
            return False
        else:
            forgotten = not then or then[0].value != write_id.before
        if forgotten:
            log.error(
                "etcd has lost writes that it had acknowledged (see etcd #14370)",
                revision=write_id.since,
            )
        return forgotten

    def _never_happened(self, write_id: WriteId) -> bool:
        """Say whether a transaction whose slot is gone was not applied, and never will be."""
        if write_id.before is None or not self._forgotten(write_id):
            return False
        try:
            until = time.monotonic() + _ATTEMPT
            void = self._txn(write_id.void(missing=True), until, write=True)
        except MetadataStoreError:
            return False
        return bool(void.succeeded) or _held(void)[0] == write_id.void_value

    def _without_space(
        self, write_id: WriteId, plan: Plan, found: Any, deadline: float
    ) -> list[Pending]:
        """Return the answers of a transaction if it was applied although etcd has no space.

        etcd checks its quota again when it applies a write, and then answers with an error after
        applying it. Because it has answered, nothing is under way any more.
        """
        holds, revision = _held(found)
        if holds == write_id.value:
            return self._applied(write_id, plan, revision, deadline)
        self._write_ids.give_back(write_id, holds, revision)
        raise EtcdRefusedError(
            MetadataStoreError("etcd refused: database space exceeded"), Reason.NO_SPACE
        )

    def _read(self, write_id: WriteId) -> Any | None:
        """Return the slot's content in the form of a failed transaction; ``None`` without one."""
        try:
            until = time.monotonic() + _ATTEMPT
            request = write_id.read()
            found = self._requests.range(request, until)
        except MetadataStoreError:
            return None
        response = messages.TxnResponse()
        response.responses.add().response_range.CopyFrom(found)
        return response

    def _applied(
        self, write_id: WriteId, plan: Plan, revision: int, deadline: float
    ) -> list[Pending]:
        self._write_ids.give_back(write_id, write_id.value, revision)
        self._settled("applied before", plan)
        until = max(deadline, time.monotonic() + _ATTEMPT)
        return self._read_back(plan, revision, until)

    def _txn(self, body: bytes, deadline: float, *, write: bool, attempt: int | None = None) -> Any:
        answer = self._requests.txn(body, deadline, write=write, attempt=attempt)
        return messages.TxnResponse.FromString(answer)

    def _settled(self, how: str, plan: Plan) -> None:
        self._connection.tally.add("settled")
        log.debug("etcd write settled", was=how, operations=len(plan.requests))

    # Reading back

    def _read_back(self, plan: Plan, revision: int, deadline: float) -> list[Pending]:
        """Return the answers to requests whose transaction was applied at a revision."""
        answers: list[Pending] = []
        gone: list[tuple[int, str]] = []  # the places of the answers, and the missing paths
        paths = [changes_of(lower(request)) for request in plan.requests]
        try:
            found = iter(
                self._ranges(
                    [self._whole(path, deadline) for some in paths for path in some],
                    revision,
                    deadline,
                )
            )
            for index, (request, some) in enumerate(zip(plan.requests, paths, strict=True)):
                kvs = [next(found) for _ in some]
                answer = answer_at_revision(request, kvs, revision, self._terms)
                if isinstance(answer, Unclear):
                    gone.append((index, some[0]))
                    answer = None
                answers.append(answer)
        except MetadataStoreError as error:
            return [_applied_somehow(request, plan, error) for request in plan.requests]
        try:
            before = self._ranges(
                [{"key": self._key(path), "keys_only": True} for _, path in gone]
                + [self._some_below(path) for _, path in gone],
                revision - 1,
                deadline,
            )
        except MetadataStoreError as error:
            for index, _ in gone:
                answers[index] = _applied_somehow(plan.requests[index], plan, error)
            return answers
        for (index, _), there, below in zip(gone, before, before[len(gone) :], strict=False):
            answers[index] = answer_from_before(plan.requests[index], bool(there), bool(below))
        return answers

    def _key(self, path: str) -> bytes:
        return (self._terms.prefix + path).encode()

    def _whole(self, path: str, deadline: float) -> dict[str, Any]:
        """Return a range that shows everything of a key but its value, if that is possible."""
        # What a batch has just put fits into one answer.
        tells = tells_leases(self._connection.open(deadline).version)
        return {"key": self._key(path), "keys_only": tells}

    def _some_below(self, path: str) -> dict[str, Any]:
        below, end = below_of(path, self._terms.prefix)
        return {"key": below, "range_end": end, "limit": 1, "keys_only": True}

    def _ranges(
        self, ranges: Sequence[dict[str, Any]], revision: int, deadline: float
    ) -> list[Any | None]:
        """Return the first key of each range at a revision; ``None`` for an empty range."""
        found: list[Any | None] = []
        step = self._capacity.max_txn_ops
        for start in range(0, len(ranges), step):
            some = [
                messages.RangeRequest(revision=revision, **fields)
                for fields in ranges[start : start + step]
            ]
            results = self._results(some, deadline)
            found.extend([result.kvs[0] if result.kvs else None for result in results])
        return found

    def _results(self, ranges: Sequence[Any], deadline: float) -> list[Any]:
        """Execute ranges in one transaction, or as single calls if etcd refuses that."""
        operations = [messages.RequestOp(request_range=fields) for fields in ranges]
        body = messages.TxnRequest(success=operations).SerializeToString()
        try:
            response = self._txn(body, deadline, write=False, attempt=0)
        except EtcdRefusedError as refused:
            if refused.reason not in (Reason.NO_SPACE, Reason.TOO_MANY_OPS):
                raise
            return [self._requests.range(one, deadline) for one in ranges]
        return [result.response_range for result in response.responses]


def _held(response: Any) -> tuple[bytes | None, int]:
    """Return the slot's content when a condition did not hold, and the revision of that content."""
    kvs = response.responses[0].response_range.kvs
    return (kvs[0].value, kvs[0].mod_revision) if kvs else (None, 0)


def _hopeless(error: MetadataStoreError, *, late: bool) -> bool:
    """Say whether further attempts cannot show the outcome of the first, after this error."""
    reason = reason_of(error)
    if isinstance(error, StoreClosedError) or reason is Reason.LEASE_GONE:
        return True
    if reason is Reason.NO_SPACE:
        return late
    # A transaction, login or server is refused for good. Without an answer, one may still come.
    return late and not passes(error)


def _plain(error: IndeterminateError) -> IndeterminateError:
    """Return the error for callers outside this package, without a reason."""
    return IndeterminateError(str(error)) if isinstance(error, UnansweredError) else error


def _without_write_id(response: Any) -> Any:
    del response.responses[0]
    return response


def _applied_somehow(request: WriteRequest, plan: Plan, error: Exception) -> IndeterminateError:
    what = "the batch with this write was applied" if plan.nested else "the write was applied"
    return IndeterminateError(
        f"{what}, but its result could not be read back: {error}",
        path=request.path,
        applied=not plan.nested,
    )

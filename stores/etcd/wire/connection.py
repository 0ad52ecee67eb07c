"""Calls to an etcd cluster: one channel per member, failover, login, retries until a deadline.

All calls block in the caller's own thread. One member is in use at a time. When a call fails
because the connection is gone, the first thread to notice looks for a member that answers, with
growing, jittered pauses. The others wait for it, so they do not reconnect all at once.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import grpc
from grpc import StatusCode

from ....ops.backoff import Backoff
from ....ops.errors import (
    AuthenticationError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ....ops.log import get_logger
from ...backend import Tally, send_by, to_its_end
from .errors import (
    EtcdRefusedError,
    Failure,
    Reason,
    UnansweredError,
    Verdict,
    failed_lookup,
    failure_of,
    refused,
    short,
)
from .members import LOGIN_HELP, Credentials, EtcdMember, Link, greet, streams_ranges
from .patience import Patience
from .protos import messages

__all__ = ["EtcdConnection", "FlatOnlyError"]

_log = get_logger(__name__)

Method: TypeAlias = Literal[
    "txn", "range", "page", "delete_range", "grant", "revoke", "time_to_live"
]

_BACKOFF: Final = Backoff(first=0.02, longest=0.5)
# With several members, a silent one must leave time for the others, at first even more.
_GREETING: Final = 2.0
_FIRST_GREETING: Final = 0.5
# Seconds. An etcd gives up a write after seven.
_MOST_PATIENCE: Final = 5.0
_LOGINS: Final = 3
# Streams of ranges at once. Proxies bound the calls on a connection, often to 100, and a scan whose
# caller pauses holds one.
_STREAMS: Final = 16
# After a refused login, seconds in which all calls fail with it before the client tries again.
_LOGIN_PAUSE: Final = 1.0
# The codes of calls that no server answered.
_SILENCE: Final = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)
# The loss and return of a member that was in use for fewer seconds are logged at level debug.
_WORTH_LOGGING: Final = 1.0


class FlatOnlyError(Exception):
    """The member now in use does not check permissions inside nested transactions."""


class EtcdConnection:
    """The calls to a cluster, from any number of threads.

    Attributes:
        tally: counts retries and reconnects. Code on top of the connection adds its own events.
    """

    def __init__(self, addresses: Sequence[str], credentials: Credentials) -> None:
        self.tally = Tally()
        # A copy that a member sends on to a dead leader is lost, until there is another one. The
        # steady attempts last longer than an election, which takes etcd one to two seconds.
        self._usual_write = Patience(steady=5, most=_MOST_PATIENCE)
        self._usual_read = Patience()
        # Since when calls with little time have had no answer, and no other call had one.
        self._silent_since: float | None = None
        self._credentials = credentials
        self._members = [EtcdMember(address, credentials.channel) for address in addresses]
        self._addresses = ", ".join(addresses)
        self._closing = threading.Event()  # set once; ends every pause
        self._room = threading.Semaphore(_STREAMS)
        self._changed = threading.Condition()  # guards the fields below
        self._link: Link | None = None
        self._streams = True  # whether the link streams ranges, if its version does
        self._found = 0.0  # the time when a link was found last; 0.0 if never
        self._quiet = False  # whether the last link lived too shortly to be logged above debug
        self._searching = False  # whether a thread looks for a member that answers
        self._refusal: AuthenticationError | None = None  # from the last search's login
        self._refused_until = -math.inf
        self._tls_fault = ""  # why the TLS files could not be read again; for the searching thread
        self._first = 0  # the index of the member to try first

    def open(self, deadline: float) -> Link:
        """Return the member in use, after a search if there is none.

        Raises:
            StoreUnavailableError: no member answered by the deadline. The message names the
                addresses.
            OperationTimeoutError: the same, but there was a connection to a member.
            AuthenticationError: the login was refused.
            StoreClosedError: the connection is closed.
        """
        with self._changed:
            while True:
                self._check()
                if self._link is not None:
                    return self._link
                if not self._searching:
                    self._searching = True
                    break
                if not self._changed.wait(deadline - time.monotonic()):
                    raise self.late("still connecting")
        link = refusal = None
        try:
            link = self._search(deadline)
        except AuthenticationError as error:
            refusal = error
            raise
        else:
            return link
        finally:
            with self._changed:
                self._searching = False
                # A login costs etcd a tenth of a second, so a wrong one is not tried per batch.
                self._refusal = copy.copy(refusal)
                self._refused_until = time.monotonic() + _LOGIN_PAUSE
                if link is not None and not self._closing.is_set():
                    self._link = link
                    self._streams = True
                    if self._found:
                        self.tally.add("reconnect")
                    self._found = time.monotonic()
                self._changed.notify_all()

    def _check(self) -> None:
        """Raise if the connection is closed, or a login was refused just before."""
        if self._closing.is_set():
            raise StoreClosedError("the store is closed")
        if self._refusal is not None and time.monotonic() < self._refused_until:
            raise copy.copy(self._refusal)

    @property
    def user(self) -> str:
        """The client's identity, for messages."""
        name = self._credentials.username
        if name is not None:
            return f"user {name!r}"
        return "the user of its certificate" if self._credentials.identified else "this client"

    @property
    def in_use(self) -> bool:
        """Whether there was a member in use a moment ago."""
        return self._link is not None

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a member, judging by the calls so far."""
        return any(member.connected for member in self._members)

    def call(
        self,
        method: Method,
        request: Any,
        deadline: float,
        *,
        write: bool,
        nested: bool = False,
        attempt: int | None = None,
    ) -> Any:
        """Call a method of etcd and return its response.

        A read is repeated until the deadline; a write only while it certainly was not executed, and
        until it should have been sent.

        Args:
            method: ``"txn"`` takes and returns bytes, ``"page"`` takes a range and returns bytes;
                the others take and return messages.
            request: the request.
            deadline: by ``time.monotonic()``.
            write: whether the request changes anything.
            nested: whether it contains nested transactions.
            attempt: the number of earlier attempts; ``None`` if the request must not be sent twice.
                If its answer is overdue, another member is asked: for a write by the next call, for
                a read by this one. Alone, a member has all the time until the deadline.

        Raises:
            EtcdRefusedError: etcd refuses the request; nothing was done.
            UnansweredError: a write was sent and may have been executed.
            OperationTimeoutError: the deadline passed, with a connection; nothing was done.
            StoreUnavailableError: the same, without a connection.
            AuthenticationError: the login was refused.
            StoreClosedError: the connection is closed; nothing was done.
            FlatOnlyError: the request is nested, and the member in use would not check permissions
                inside it.
        """
        failures = logins = overdue = 0
        patience = send_by(deadline) if write else deadline
        usual = self._usual_write if write else self._usual_read
        # Alone, a member knows what was sent to it, and a copy would only be more work.
        hurry = attempt is not None and len(self._members) > 1
        while True:
            link = self._link or self.open(patience)
            if nested and not link.nesting:
                raise FlatOnlyError
            begun = time.monotonic()
            left = deadline - begun
            if left <= 0:
                raise self.late("the deadline passed before the request was sent")
            limit = usual.limit((attempt or 0) + overdue) if hurry else math.inf
            try:
                answer = to_its_end(  # or a lock of gRPC could stay held
                    partial(
                        getattr(link.calls, method),
                        request,
                        timeout=min(left, limit),
                        metadata=link.metadata,
                    )
                )
            except grpc.RpcError as error:
                cause = error
            except ValueError as error:  # from gRPC, for a call on a closed channel
                raise StoreClosedError("the store is closed") from error
            else:
                if hurry:
                    usual.took(time.monotonic() - begun)
                self._silent_since = None
                return answer
            # Whoever keeps the error must not keep the store, the batch and a login by its frames.
            cause.__traceback__ = None
            failure, message = self._failed(link, cause, request, write, left, limit)
            overdue += failure.reason is Reason.OVERTAKEN
            logins += failure.verdict is Verdict.RENEW
            if failure.verdict is Verdict.LATER:
                self.tally.on_busy()
            if final := self._final_error(failure, message, write, logins):
                raise final from cause
            self._pause(failures, patience, cause)
            failures += 1
            self.tally.add("retry")

    def begin(self, request: Any, timeout: float) -> grpc.Future[bytes] | None:
        """Send a range and return a future of its answer's bytes; ``None`` without a member in use.

        If it fails, and ``refusal`` returns ``None``, make the request again with ``call``.
        """
        link = self._link
        if link is None:
            return None
        try:
            pending: grpc.Future[bytes] = link.calls.page.future(
                request, timeout=timeout, metadata=link.metadata
            )
        except ValueError:  # from gRPC, for a call on a closed channel
            return None
        return pending

    def stream(self, request: Any, timeout: float) -> Any | None:
        """Send a range whose answer comes in chunks, of bytes, and return the call.

        ``None`` without a member in use, if it has no such call, or beside too many of them. If the
        stream breaks, call ``stream_broke``, and request the rest with ``begin``.
        """
        link = self._link
        if link is None or not self._streams or not streams_ranges(link.version):
            return None
        if not self._room.acquire(blocking=False):
            return None
        try:
            call: Any = link.calls.range_stream(request, timeout=timeout, metadata=link.metadata)
        except ValueError:  # from gRPC, for a call on a closed channel
            self._room.release()
            return None
        call.add_done_callback(lambda _call: self._room.release())
        return call

    def stream_broke(self, cause: grpc.RpcError) -> None:
        """Note whether streams fail because the member in use has none."""
        if failure_of(cause, write=False)[0].reason is Reason.NOT_ETCD:
            self._streams = False  # A proxy of the same version. The next link may bypass it.

    def refusal(self, cause: grpc.RpcError, request: Any) -> EtcdRefusedError | None:
        """Return the error of a range that would be refused again, ``None`` for other failures.

        Args:
            cause: the error of the future from ``begin``.
            request: the range.
        """
        failure, _, message = failure_of(cause, write=False)
        if failure.verdict is not Verdict.REFUSED:
            return None
        return refused(failure.reason, message, request, self.user)

    def broken(
        self,
        link: Link,
        cause: grpc.RpcError | None,
        failures: int,
        deadline: float,
        *,
        said: str | None = None,
    ) -> None:
        """Handle a stream that ended too early; return when it may be opened again.

        Args:
            link: the link of the stream.
            cause: the stream's error; without one, etcd no longer accepts the login.
            failures: how many times it broke before without any progress between.
            deadline: by ``time.monotonic()``.
            said: the reason, if the client has ended the stream itself.

        Raises:
            MetadataStoreError: it would break again, or the deadline comes first; as for a read.
        """
        failure = Failure(Verdict.RENEW, Reason.LOGIN_EXPIRED)
        message = "etcd no longer accepts the login"
        if said is not None:
            failure, message = Failure(Verdict.UNSENT, Reason.OTHER), said
        elif cause is not None:
            failure, _, message = failure_of(cause, write=False)
            failure = self._with_login(failure)
            if failure.verdict is Verdict.REFUSED:
                raise refused(failure.reason, message, user=self.user).error from cause
            if final := self._final_error(failure, message, write=False, logins=0):
                raise final from cause
        self._lost(link, failure.reason, message)
        pause = _BACKOFF.pause(failures)
        if time.monotonic() + pause >= deadline:
            raise self.late(message) from cause
        self.pause(failures)
        self.tally.add("retry")

    def pause(self, failures: int) -> None:
        """Wait before another attempt, longer after more failures.

        Raises:
            StoreClosedError: the connection was closed meanwhile.
        """
        if self._closing.wait(_BACKOFF.pause(failures)):
            raise StoreClosedError("the store is closed")

    def close(self) -> None:
        """End the calls under way and refuse new ones."""
        with self._changed:
            self._closing.set()
            self._link = None
            self._changed.notify_all()
        for member in self._members:
            member.close()

    def _failed(
        self,
        link: Link,
        cause: grpc.RpcError,
        request: Any,
        write: bool,
        left: float,
        limit: float,
    ) -> tuple[Failure, str]:
        """Return what a failed call means, and its text, and give the member up if it is to blame.

        Raises:
            EtcdRefusedError: etcd refuses the request.
        """
        failure, code, message = failure_of(cause, write=write)
        failure = self._with_login(failure)
        if failure.verdict is Verdict.REFUSED:
            raise refused(failure.reason, message, request, self.user) from cause
        if failure.reason is Reason.OVERDUE and limit < left:
            failure = failure._replace(reason=Reason.OVERTAKEN)
        # A call that had little time proves nothing against the member, but many do.
        hasty = failure.reason is Reason.OVERDUE and left < _GREETING
        if hasty and len(self._members) > 1:
            now = time.monotonic()
            silent_since = self._silent_since = self._silent_since or now - left
            hasty = now - silent_since < _GREETING
        if code is not StatusCode.RESOURCE_EXHAUSTED and not hasty:
            self._lost(link, failure.reason, message)
        return failure, message

    def _with_login(self, failure: Failure) -> Failure:
        """Treat a login that etcd began to require after the greeting as an expired one."""
        if failure.verdict is Verdict.LOGIN and self._credentials.username is not None:
            return failure._replace(verdict=Verdict.RENEW)
        return failure

    def _final_error(
        self, failure: Failure, message: str, write: bool, logins: int
    ) -> MetadataStoreError | None:
        """Return the final error of a failed call, or ``None`` if it may be repeated."""
        verdict, reason = failure
        if verdict is Verdict.LOGIN or logins > _LOGINS:
            return AuthenticationError(
                f"etcd at {self._addresses} requires a login: {short(message)}; {LOGIN_HELP}"
            )
        if write and verdict in (Verdict.UNKNOWN, Verdict.APPLIED):
            applied = verdict is Verdict.APPLIED
            known = "was applied, and its answer was lost" if applied else "may have been applied"
            return UnansweredError(
                f"the request was sent and {known}: {short(message)}",
                applied=applied,
                reason=reason,
            )
        if self._closing.is_set():
            return StoreClosedError("the store is closed")
        if reason is Reason.OVERDUE:
            return self.late(message)
        return None

    def _lost(self, link: Link, reason: Reason, message: str) -> None:
        with self._changed:
            if self._link is not link:
                return  # another thread noticed first, and there may be a new link already
            self._link = None
            self._silent_since = None
            addresses = [member.address for member in self._members]
            place = addresses.index(link.address)
            self._first = (place + 1) % len(addresses)
            if reason is Reason.UNREACHABLE:
                self._members[place].connected = False
            # A member that answers but is of no use would otherwise fill the log.
            self._quiet = time.monotonic() - self._found < _WORTH_LOGGING
            quiet = self._quiet or self._closing.is_set()
        emit = _log.debug if quiet else _log.warning
        emit("etcd connection lost", address=link.address, reason=short(message))

    def _search(self, deadline: float) -> Link:
        rounds = 0
        reachable = False
        cause: grpc.RpcError | None = None
        while True:
            self._renew_tls()
            for step in range(len(self._members)):
                member = self._members[(self._first + step) % len(self._members)]
                try:
                    link = self._greet(member, deadline, rounds)
                except grpc.RpcError as error:
                    failure, code, message = failure_of(error, write=False)
                    # An attempt that runs out of time says less than the one before it.
                    if cause is None or code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        cause = error
                        member.trouble = failed_lookup(member.address, message)
                    if failure.reason is Reason.UNREACHABLE:
                        member.connected = False
                    member.trouble = member.distrust or member.trouble
                    if failure.reason is Reason.NOT_ETCD:
                        raise UnsupportedError(
                            f"the server at {member.address} does not speak etcd's v3 API: "
                            f"{short(message)}"
                        ) from error
                except ValueError as error:  # gRPC's for a call on a closed channel
                    raise StoreClosedError("the store is closed") from error
                else:
                    member.connected = True
                    member.trouble = None
                    emit = _log.debug if self._quiet else _log.info
                    emit("etcd connected", address=link.address, version=link.version)
                    return link
            assert cause is not None  # There is a member, and it has failed.
            cause.__traceback__ = None
            self._check_trust(cause)
            if reachable:
                # A member was reachable and still of no use, for example because its login fails.
                self._pause(rounds, deadline, cause)
                reachable = False
            else:
                member = self._members[rounds % len(self._members)]
                reachable = self._await(member, rounds, deadline, cause)
            rounds += 1

    def _check_trust(self, cause: grpc.RpcError) -> None:
        """Raise while opening, if no member has shown a certificate that is trusted.

        An open store goes on: a certificate that has expired may be renewed in time.
        """
        distrusts = [member.distrust for member in self._members if member.distrust]
        if not self._found and len(distrusts) == len(self._members):
            raise StoreUnavailableError("; ".join(distrusts)) from cause

    def _renew_tls(self) -> None:
        """Use the certificates that the files hold now. Files that are of no use change nothing."""
        try:
            renewed, fault = self._credentials.renew(), ""
        except InvalidSettingError as error:
            renewed, fault = False, str(error)
        if fault and fault != self._tls_fault:
            _log.warning("etcd certificates not renewed", reason=fault)
        self._tls_fault = fault
        if renewed:
            with self._changed:
                if self._closing.is_set():
                    raise StoreClosedError("the store is closed")
                for member in self._members:
                    member.renew(self._credentials.channel)

    def _await(
        self, member: EtcdMember, rounds: int, deadline: float, cause: grpc.RpcError
    ) -> bool:
        """Wait until a member can be reached, but no longer than a pause; say whether it can.

        The wait is a call, not a sleep. Older versions of gRPC continue to connect only while a
        call waits; with newer ones, the wait ends as soon as there is a connection. The call has no
        login, so a refusal is an answer, too.
        """
        pause = self._pause_length(rounds, deadline, cause)
        end = time.monotonic() + pause
        try:
            member.calls.status(messages.StatusRequest(), timeout=pause, wait_for_ready=True)
        except grpc.RpcError as error:
            failure, code, _ = failure_of(error, write=False)
            if failure.reason is Reason.UNREACHABLE:
                member.connected = False
            if code not in _SILENCE:
                return True
            self._closing.wait(end - time.monotonic())
            return False
        except ValueError as error:  # from gRPC, for a call on a closed channel
            raise StoreClosedError("the store is closed") from error
        return True

    def _greet(self, member: EtcdMember, deadline: float, rounds: int) -> Link:
        most = _GREETING if rounds else _FIRST_GREETING

        def left() -> float:
            remaining = max(deadline - time.monotonic(), 0.001)
            return remaining if len(self._members) == 1 else min(remaining, most)

        return greet(member, self._credentials, left)

    def _pause(self, failures: int, deadline: float, cause: grpc.RpcError) -> None:
        """Wait before the next attempt."""
        if self._closing.wait(self._pause_length(failures, deadline, cause)):
            raise StoreClosedError("the store is closed") from cause

    def _pause_length(self, failures: int, deadline: float, cause: grpc.RpcError) -> float:
        """Return the seconds to wait, which end by the deadline.

        Raises:
            StoreUnavailableError: the deadline has passed.
            OperationTimeoutError: the same, but there is a connection.
        """
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise self.late(failure_of(cause, write=False)[2]) from cause
        return min(_BACKOFF.pause(failures), remaining)

    def late(self, message: str) -> MetadataStoreError:
        """Return the error at the deadline of a request that was a read, or never sent."""
        kind = OperationTimeoutError if self.connected else StoreUnavailableError
        known = [member.trouble for member in self._members if member.trouble]
        text = short(message)
        if not self._found and "Socket closed" in message:
            with_tls = "without" if self._credentials.channel else "with"
            text += f" (it may be a port {with_tls} TLS: etcds:// is with TLS, etcd:// without)"
        # gRPC's own text of the troubles says the same in many words.
        said = failed_lookup("", message) or "CERTIFICATE_VERIFY_FAILED" in message
        reasons = "; ".join(known if known and said else [*known, text])
        return kind(f"no answer from etcd at {self._addresses} in time: {reasons}")

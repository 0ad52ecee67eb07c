"""The state machine of sessions: alone, and against a simulated server with a bad network."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from batchkeeper.stores.session import SessionMachine


def standing(timeout: float = 10.0) -> SessionMachine:
    """Return a machine with a session ``a`` that was requested at time 100."""
    machine = SessionMachine(30.0)
    assert list(machine.granted("a", timeout, 100.0)) == []
    return machine


def test_a_new_client_has_no_session() -> None:
    """Before the first grant, there is neither a session nor time in it, and nothing happens."""
    machine = SessionMachine(30.0)
    assert (machine.state, machine.id, machine.number, machine.timeout) == ("new", None, 1, 30.0)
    assert machine.valid_until() == -math.inf
    assert [*machine.disconnected(1.0), *machine.connected(), *machine.restored()] == []


def test_a_grant_counts_from_its_request() -> None:
    """The server's own timeout holds, from the time at which the request was sent."""
    machine = standing()
    assert (machine.state, machine.id, machine.number, machine.timeout) == ("connected", "a", 1, 10)
    assert machine.valid_until() == 110.0


def test_a_renewal_counts_from_its_request() -> None:
    """An answer moves the end of the session, and one to an older request changes nothing."""
    machine = standing()
    assert list(machine.renewed("a", 10.0, 105.0)) == []
    assert machine.valid_until() == 115.0
    assert list(machine.renewed("a", 10.0, 103.0)) == []
    assert machine.valid_until() == 115.0


def test_a_renegotiated_timeout_holds_from_then_on() -> None:
    """A reconnect may bring another timeout; an older answer does not bring the old one back."""
    machine = standing()
    machine.renewed("a", 4.0, 105.0)
    machine.renewed("a", 10.0, 104.0)
    assert (machine.timeout, machine.valid_until()) == (4.0, 109.0)


def test_a_short_outage_gives_two_events() -> None:
    """The connection is lost once and comes back once; the session is the same."""
    machine = standing()
    assert list(machine.disconnected(105.0)) == ["connection_lost"]
    assert list(machine.disconnected(106.0)) == []
    assert (machine.state, machine.id, machine.valid_until()) == ("suspended", "a", 110.0)
    assert list(machine.renewed("a", 10.0, 107.0)) == ["reconnected"]
    assert [*machine.connected(), *machine.restored()] == []
    assert (machine.state, machine.number, machine.valid_until()) == ("connected", 1, 117.0)


def test_a_long_outage_gives_four_events() -> None:
    """The server says at the reconnect that the session has ended; a new one follows."""
    machine = standing()
    machine.disconnected(105.0)
    assert list(machine.ended("a", 130.0)) == ["reconnected", "session_lost"]
    assert (machine.state, machine.id, machine.number) == ("lost", None, 2)
    assert machine.valid_until() == -math.inf
    assert list(machine.granted("b", 10.0, 131.0)) == []
    assert (machine.state, machine.id, machine.valid_until()) == ("connected", "b", 141.0)
    assert list(machine.restored()) == ["session_reestablished"]
    assert list(machine.restored()) == []


def test_the_clock_alone_ends_nothing() -> None:
    """A suspended session stays, however long, until the server has said that it ended."""
    machine = standing()
    machine.disconnected(105.0)
    assert list(machine.connected()) == ["reconnected"]
    assert list(machine.disconnected(9e9)) == ["connection_lost"]
    assert (machine.state, machine.id, machine.number) == ("suspended", "a", 1)
    assert list(machine.renewed("a", 10.0, 9e9)) == ["reconnected"]


def test_a_session_that_ends_while_connected_gives_two_events() -> None:
    """A revoked session is lost and replaced without a loss of the connection.

    Whoever else finds its end, and however late, is not heard any more.
    """
    machine = standing()
    assert list(machine.ended("a", 109.0)) == ["session_lost"]
    assert [*machine.ended("a"), *machine.ended("a", 9e9)] == []
    assert list(machine.restored()) == []
    assert list(machine.granted("b", 10.0, 120.0)) == []
    assert list(machine.restored()) == ["session_reestablished"]


def test_an_outage_that_only_the_end_of_the_session_shows() -> None:
    """A process that was stopped for long hears of its session first."""
    expected = ["connection_lost", "reconnected", "session_lost"]
    assert list(standing().ended("a", 110.0)) == expected


def test_a_session_that_replaces_another_has_ended_it() -> None:
    """A client library may report only the new session: the old one is lost all the same."""
    machine = standing()
    machine.disconnected(105.0)
    assert list(machine.granted("b", 10.0, 120.0)) == ["reconnected", "session_lost"]
    assert list(machine.granted("b", 10.0, 121.0)) == []
    assert (machine.number, machine.valid_until()) == (2, 130.0)


def test_a_late_answer_does_not_prove_a_connection() -> None:
    """An answer from before the loss counts for the time of the session, and for nothing else."""
    machine = standing()
    machine.disconnected(105.0)
    assert list(machine.renewed("a", 10.0, 104.0)) == []
    assert (machine.state, machine.valid_until()) == ("suspended", 114.0)


def test_an_answer_about_another_session_is_ignored() -> None:
    """Neither a late renewal nor a late end of an earlier session touches the present one."""
    machine = standing()
    machine.ended("a")
    machine.granted("b", 10.0, 120.0)
    machine.restored()
    late = [*machine.renewed("a", 10.0, 150.0), *machine.ended("a", 150.0)]
    assert [*late, *machine.ended("a")] == []
    assert (machine.id, machine.number, machine.valid_until()) == ("b", 2, 130.0)


def test_a_session_that_ends_before_it_was_told_is_not_told() -> None:
    """Two losses with no session between them that callers knew of are one loss."""
    machine = standing()
    machine.ended("a")
    machine.granted("b", 10.0, 120.0)
    assert list(machine.ended("b")) == []
    machine.granted("c", 10.0, 130.0)
    assert machine.number == 3
    assert list(machine.restored()) == ["session_reestablished"]


def test_an_outage_without_a_session_is_told() -> None:
    """After a loss, the connection may go and come back before there is a new session."""
    machine = standing()
    machine.ended("a")
    assert list(machine.disconnected(110.0)) == ["connection_lost"]
    assert machine.state == "lost"
    assert list(machine.granted("b", 10.0, 111.0)) == ["reconnected"]
    assert list(machine.disconnected(112.0)) == ["connection_lost"]
    assert list(machine.restored()) == []
    assert [*machine.connected(), *machine.restored()] == ["reconnected", "session_reestablished"]


def test_after_close_nothing_happens() -> None:
    """A closed session is over at once, and whatever arrives later is ignored."""
    machine = standing()
    machine.close()
    machine.close()
    after = [*machine.renewed("a", 10.0, 105.0), *machine.ended("a"), *machine.disconnected(106.0)]
    after += [*machine.granted("b", 10.0, 107.0), *machine.connected(), *machine.restored()]
    assert after == []
    assert (machine.state, machine.id, machine.valid_until()) == ("closed", None, -math.inf)


def test_a_session_without_a_timeout_lasts() -> None:
    """A store without a server grants an endless session."""
    machine = SessionMachine(math.inf)
    machine.granted("a", math.inf, 100.0)
    assert machine.valid_until() == math.inf


class Message(NamedTuple):
    """A message on the simulated network; ``timeout`` is the server's answer."""

    kind: str
    session: str
    sent: float
    timeout: float = 0.0


class Server:
    """A server that ends sessions by its own clock, at the first moment at which it may."""

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}  # the time when each session ends, or has ended
        self.revoked: set[str] = set()
        self.timeout = 10.0

    def answer(self, message: Message, now: float) -> Message:
        if message.kind == "grant":
            self.ends[message.session] = now + self.timeout
            return Message(*message[:-1], self.timeout)
        if message.session not in self.alive(now):
            return Message(*message[:-1], 0.0)
        self.ends[message.session] = now + self.timeout
        return Message(*message[:-1], self.timeout)

    def alive(self, now: float) -> list[str]:
        return [name for name, end in self.ends.items() if now < end and name not in self.revoked]


# Steps of time around the timeout of ten seconds. Eighths are exact in binary.
STEPS = st.integers(0, 200).map(lambda eighths: eighths / 8)


class Sessions(RuleBasedStateMachine):
    """A client, a server and a network that pauses, loses, delays and reorders.

    Both share the passing of time, but act whenever they like: a rule that does not run is a pause.
    """

    requests: Bundle[Message] = Bundle("requests")
    answers: Bundle[Message] = Bundle("answers")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.server = Server()
        self.machine = SessionMachine(30.0)
        self.grants = 0
        self.events: list[Any] = []
        # What the client may know: the newest confirmed request of each session, and its timeout.
        self.known: dict[str, tuple[float, float]] = {}
        self.number = 1

    def hear(self, events: Any) -> None:
        self.events += events

    @rule(step=STEPS)
    def time_passes(self, step: float) -> None:
        self.now += step

    @rule(target=requests)
    def ask_for_a_session(self) -> Message:
        """A driver asks only without a session; its request may be executed much later."""
        self.grants += 1
        return Message("grant", f"s{self.grants}", self.now)

    @rule(target=requests)
    def renew(self) -> Message:
        return Message("renew", self.machine.id or "s1", self.now)

    @rule(target=answers, message=consumes(requests))
    def serve(self, message: Message) -> Message:
        return self.server.answer(message, self.now)

    @rule(message=consumes(requests))
    def lose_request(self, message: Message) -> None:
        pass

    @rule(message=consumes(answers))
    def lose_answer(self, message: Message) -> None:
        pass

    @rule(message=consumes(answers))
    def hear_answer(self, message: Message) -> None:
        machine, present = self.machine, self.machine.id
        if message.kind == "grant":
            if present is not None:
                return  # the driver has a session, and leaves this one to its end
            self.known[message.session] = (message.sent, message.timeout)
            self.hear(machine.granted(message.session, message.timeout, message.sent))
            assert machine.id == message.session
            return
        if message.session == present:
            if message.timeout == 0:
                self.number += 1
                self.hear(machine.ended(message.session, self.now))
                return
            if message.sent >= self.known[present][0]:
                self.known[present] = (message.sent, message.timeout)
        self.hear(machine.renewed(message.session, message.timeout, message.sent))

    @rule()
    def lose_connection(self) -> None:
        self.hear(self.machine.disconnected(self.now))

    @rule()
    def connect(self) -> None:
        self.hear(self.machine.connected())

    @rule()
    def restore(self) -> None:
        self.hear(self.machine.restored())

    @rule()
    def change_leader(self) -> None:
        """The new leader gives all sessions their whole timeout, counted from now."""
        for session in self.server.alive(self.now):
            self.server.ends[session] = self.now + self.server.timeout

    @rule(factor=st.sampled_from([1.0, 1.5]))
    def lengthen_timeout(self, factor: float) -> None:
        """Another member may grant more from the next request on."""
        self.server.timeout = min(40.0, self.server.timeout * factor)

    @rule()
    def revoke(self) -> None:
        """Somebody ends a session on purpose, which no client can know beforehand."""
        if self.machine.id in self.server.alive(self.now):
            self.server.revoked.add(self.machine.id)

    @invariant()
    def time_is_never_promised_beyond_the_servers_end(self) -> None:
        session = self.machine.id
        if session is None:
            assert self.machine.valid_until() == -math.inf
        else:
            sent, timeout = self.known[session]
            assert self.machine.valid_until() == sent + timeout
            assert self.machine.valid_until() <= self.server.ends[session]

    @invariant()
    def events_come_once_and_in_order(self) -> None:
        connection = [event for event in self.events if event in ("connection_lost", "reconnected")]
        session = [event for event in self.events if event not in connection]
        for told, pair in (
            (connection, ("connection_lost", "reconnected")),
            (session, ("session_lost", "session_reestablished")),
        ):
            assert told == [pair[i % 2] for i in range(len(told))]
        connected = True
        for event in self.events:
            # The server's word about the session means that there is a connection.
            assert connected or event == "reconnected"
            connected = event != "connection_lost"
        assert connected == (self.machine.state != "suspended") or self.machine.id is None
        lost = session and session[-1] == "session_lost"
        assert self.machine.id is not None or self.number == 1 or lost

    @invariant()
    def each_loss_counts_once(self) -> None:
        assert self.machine.number == self.number


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=3 * settings.default.max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("events", [1, 2, 3])
def test_outages_repeat(events: int) -> None:
    """Every further outage gives its events again."""
    machine = standing()
    told = []
    for _ in range(events):
        told += [*machine.disconnected(105.0), *machine.connected()]
    assert told == ["connection_lost", "reconnected"] * events

"""The order of contenders: whose turn has come, whatever reads and events arrive when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchkeeper.coordination.contenders import (
    EXCLUSIVE,
    SHARED,
    Contenders,
    Need,
    Place,
    parse,
)


def placed(view: Contenders, number: int, need: Need = EXCLUSIVE) -> Place:
    """Return a place of this process whose creation was answered."""
    place = Place(need)
    view.expect(place)
    place.contender = parse(f"{place.head}{number:010d}")
    return place


def test_names() -> None:
    """A contender's name has an id, a letter and a number; all other names are none of ours."""
    name = "6f1c0a6e5b2d4c8e-x-0000000017"
    found = parse(name)
    assert found is not None
    assert (found.number, found.name, found.shared) == (17, name, False)
    shared = parse("6f1c0a6e5b2d4c8e-s-12345678901")
    assert shared is not None
    assert (shared.number, shared.shared) == (12345678901, True)
    for foreign in (
        "",
        "config",
        "-x-0000000017",
        "6f1c0a6e5b2d4c8e-y-0000000017",
        "6f1c0a6e5b2d4c8e-x-17",
        "6f1c0a6e5b2d4c8e-x-00000000a7",
        "6f1c0a6e5b2d4c8e-x-\N{ARABIC-INDIC DIGIT ONE}000000017",
        "6f1c0a6e5b2d4c8e-x--2147483648",
        "6f1c0a6e5b2d4c8ea-x-0000000017",
        "_c_6f1c0a6e-lock-0000000017",
    ):
        assert parse(foreign) is None


def test_foreign_names_are_ignored() -> None:
    """What else lies below the path is nobody's turn and changes nothing."""
    view = Contenders()
    assert view.replace(["config", "0000000000"]) == []
    assert view.add("config") == []
    assert view.remove("config") == []
    assert view.line == []


def test_a_read_from_before_a_creation_ends_no_place() -> None:
    """A read that began before the answer to a creation may miss it, and says nothing about it."""
    view = Contenders()
    created = view.created()
    place = placed(view, 5)
    assert view.look(place, [place.name]) == [place]
    assert view.replace([], created) == []
    assert place.front


def test_a_read_from_before_a_creation_lets_nobody_through() -> None:
    """It may miss those who stand before the new place, too."""
    view = Contenders()
    created = view.created()
    other = placed(Contenders(), 4)
    place = placed(view, 5)
    assert view.look(place, [other.name, place.name]) == []
    assert view.replace([], created) == []
    assert view.add("0123456789abcdef-x-0000000009") == []
    assert place.state == "expected"


def test_a_read_from_after_a_creation_shows_that_it_is_gone() -> None:
    """Also if no event and no read has shown it before: somebody was quick to delete it."""
    view = Contenders()
    place = placed(view, 5)
    assert view.replace([], view.created()) == [place]
    assert place.state == "gone"


def test_a_look_that_misses_its_own_place() -> None:
    """A look begins after the creation, so a place that it misses is gone."""
    view = Contenders()
    place = placed(view, 5)
    assert view.look(place, []) == [place]
    assert place.state == "gone"
    assert view.look(place, [place.name]) == []


def test_an_event_before_the_answer() -> None:
    """The event of a creation gives the place its number, if it comes before the answer."""
    view = Contenders()
    place = Place(EXCLUSIVE)
    view.expect(place)
    assert view.add(f"{place.head}0000000003") == [place]
    assert place.front
    assert place.name == f"{place.head}0000000003"


def test_a_semaphore_lets_the_first_through() -> None:
    """Of four with room for two, the first two go, and the next with each that leaves."""
    view = Contenders()
    places = [placed(view, number, Need("x", 2)) for number in range(4)]
    assert view.replace([place.name for place in places], places) == places[:2]
    assert view.remove(places[0].name) == [places[0], places[2]]
    assert view.remove(places[3].name) == [places[3]]


def test_readers_behind_a_writer_wait() -> None:
    """Shared contenders go together, but none overtakes an exclusive one that waits."""
    view = Contenders()
    needs = [SHARED, SHARED, EXCLUSIVE, SHARED]
    first, second, writer, late = [placed(view, i, need) for i, need in enumerate(needs)]
    places = [first, second, writer, late]
    assert view.replace([place.name for place in places], places) == [first, second]
    assert view.remove(first.name) == [first]
    assert view.remove(second.name) == [second, writer]
    assert view.remove(writer.name) == [writer, late]


# --- any order of reads and events


class Entry(NamedTuple):
    """One change of the line, as the store has applied it."""

    created: bool
    name: str


class Client:
    """A process with its view: what it has seen, and what is on its way to it."""

    def __init__(self) -> None:
        self.view = Contenders()
        self.seen = 0  # the entries of the log that its session has seen: reads are never older
        self.heard: int | None = None  # the entries before this one were delivered, or missed
        self.read: tuple[int, frozenset[Place]] | None = None  # under way: snapshot, created
        self.must_read = False
        self.unanswered: dict[Place, str] = {}
        self.looks: list[tuple[Place, int]] = []
        self.places: list[Place] = []


class Line(RuleBasedStateMachine):
    """Three processes, a store, and all that can be delayed between them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.clients = [Client() for _ in range(3)]
        self.needs: dict[str, Need] = {}

    def names(self, at: int | None = None) -> list[str]:
        there: dict[str, None] = {}
        for entry in self.log[:at]:
            if entry.created:
                there[entry.name] = None
            else:
                del there[entry.name]
        return list(there)

    clients_at = st.integers(0, 2)

    @rule(at=clients_at, need=st.sampled_from([EXCLUSIVE, EXCLUSIVE, SHARED, Need("x", 2)]))
    def create(self, at: int, need: Need) -> None:
        """The store creates a value. The answer is on its way."""
        client = self.clients[at]
        place = Place(need)
        client.view.expect(place)
        client.places.append(place)
        name = f"{place.head}{len(self.log):010d}"
        self.needs[name] = need
        self.log.append(Entry(True, name))
        client.unanswered[place] = name

    @precondition(lambda self: any(client.unanswered for client in self.clients))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A creation is answered, and a look may begin."""
        client, place = data.draw(
            st.sampled_from([(c, p) for c in self.clients for p in c.unanswered])
        )
        name = client.unanswered.pop(place)
        place.contender = parse(name)
        client.seen = max(client.seen, self.log.index(Entry(True, name)) + 1)
        if data.draw(st.booleans()):
            client.looks.append((place, data.draw(st.integers(client.seen, len(self.log)))))

    @precondition(lambda self: any(client.looks for client in self.clients))
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """The answer to a look arrives."""
        client = data.draw(st.sampled_from([c for c in self.clients if c.looks]))
        place, at = client.looks.pop(data.draw(st.integers(0, len(client.looks) - 1)))
        client.view.look(place, self.names(at))

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """A value goes: its owner leaves, its session ends, or somebody deletes it."""
        self.log.append(Entry(False, data.draw(st.sampled_from(self.names()))))

    @rule(at=clients_at, data=st.data())
    def watch(self, at: int, data: st.DataObject) -> None:
        """A process begins a watch, and reads; or its watch has a gap, after which it reads."""
        client = self.clients[at]
        if client.read is None:
            client.seen = data.draw(st.integers(client.seen, len(self.log)))
            client.heard, client.must_read = client.seen, True

    @rule(at=clients_at, data=st.data())
    def begin_read(self, at: int, data: st.DataObject) -> None:
        """The read begins, and the store, or a server that lags behind, takes its snapshot."""
        client = self.clients[at]
        if client.must_read and client.read is None:
            created = client.view.created()
            client.read = data.draw(st.integers(client.seen, len(self.log))), created

    @rule(at=clients_at)
    def end_read(self, at: int) -> None:
        """The answer to the read arrives."""
        client = self.clients[at]
        if client.read is not None:
            snapshot, created = client.read
            client.view.replace(self.names(snapshot), created)
            client.seen = max(client.seen, snapshot)
            client.read, client.must_read = None, False

    @rule(at=clients_at)
    def hear(self, at: int) -> None:
        """A process hears the next event, in the order of the store."""
        client = self.clients[at]
        if client.heard is None or client.must_read or client.heard == len(self.log):
            return
        entry = self.log[client.heard]
        client.heard += 1
        client.seen = max(client.seen, client.heard)
        change = client.view.add if entry.created else client.view.remove
        change(entry.name)

    @rule(at=clients_at, data=st.data())
    def forget(self, at: int, data: st.DataObject) -> None:
        """A process drops a place, whose value may still be there."""
        client = self.clients[at]
        if client.places:
            place = data.draw(st.sampled_from(client.places))
            client.places.remove(place)
            client.view.forget(place)

    def turns(self) -> Iterator[str]:
        """Yield the names whose turn has come, by the values that exist."""
        before: list[str] = []
        for name in self.names():
            need = self.needs[name]
            if need.letter == "s":
                if all(self.needs[other].letter == "s" for other in before):
                    yield name
            elif len(before) < need.limit:
                yield name
            before.append(name)

    @invariant()
    def only_whose_turn_has_come_is_in_front(self) -> None:
        """Who is in front, and exists, has nobody before it who matters; who is gone, is gone."""
        names, turns = set(self.names()), set(self.turns())
        for client in self.clients:
            for place in client.places:
                if place.front and place.name in names:
                    assert place.name in turns
                if place.state == "gone":
                    assert place.name not in names

    def teardown(self) -> None:
        """When everything has arrived, each place knows whether its turn has come."""
        turns, names = set(self.turns()), set(self.names())
        for client in self.clients:
            for place, name in client.unanswered.items():
                place.contender = parse(name)
            if client.heard is None:
                client.heard, client.must_read = client.seen, True
            if client.must_read:
                client.view.replace(names, client.view.created())
            for entry in self.log[client.heard :]:
                change = client.view.add if entry.created else client.view.remove
                change(entry.name)
            for place in client.places:
                state = "waiting" if place.name in names else "gone"
                assert place.state == ("front" if place.name in turns else state)


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

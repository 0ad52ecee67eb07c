"""Answers of ZooKeepers of other versions, and unreadable answers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import batchkeeper as bk
from batchkeeper.ops import (
    ABSENT,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    GetResult,
    IndeterminateError,
    MetadataStoreError,
    Put,
    Range,
    Transaction,
    UnsupportedError,
)
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper import backend as backend_module
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.reads import packets, readahead
from batchkeeper.stores.zookeeper.session import write_ids
from batchkeeper.stores.zookeeper.wire.exchanges import Exchange, parse_reply
from batchkeeper.stores.zookeeper.wire.jute import (
    CREATE,
    DELETE,
    END,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI,
    MULTI_READ,
    PARENT,
    SET_DATA,
    Done,
    Op,
    Refused,
    ZNode,
    parse_multi,
    parse_multi_read,
    parse_reads,
    parse_single,
)
from batchkeeper.stores.zookeeper.writes import settling
from batchkeeper.testing.servers import ZooKeeperServer

from ...waiting import PATIENCE, soon
from ..foreign import zookeeper_client
from .altering import BODY, GREETING, HEADER, Altering, once, with_code

_CREATE2 = 15
_STAT_SIZE = 68


def as_before_3_7(opcode: int, packet: bytes) -> bytes:
    """Answer each create2 in a multi as a create, as ZooKeeper did before 3.7."""
    if opcode != MULTI or unpack_from(HEADER, packet, 4)[2] != 0:
        return packet
    body = bytearray(packet[4:BODY])
    offset = BODY
    while True:
        kind, done, error = unpack_from("!i?i", packet, offset)
        body += pack("!i?i", CREATE if kind == _CREATE2 else kind, done, error)
        offset += 9
        if done:
            return pack("!i", len(body)) + body
        size = {SET_DATA: _STAT_SIZE, DELETE: 0, -1: 4}.get(kind)
        if size is None:
            size = 4 + unpack_from("!i", packet, offset)[0]
        body += packet[offset : offset + size]
        offset += size + (_STAT_SIZE if kind == _CREATE2 else 0)


def as_before_3_6(opcode: int, packet: bytes) -> bytes:
    """Answer that a multi-read is unknown, and do not answer later requests."""
    return with_code(-6, packet) if opcode == MULTI_READ else packet


@pytest.fixture
def line(zookeeper_server: ZooKeeperServer) -> Iterator[Altering]:
    """The proxy between store and server."""
    altering = Altering(zookeeper_server.address)
    yield altering
    altering.close()


# Versions.


def test_what_is_created_has_its_stat_on_servers_before_3_7(
    line: Altering, backend_url: str
) -> None:
    """Creations return the Stat that a get finds, even if the server's answers have none."""
    line.alter = as_before_3_7
    ops = [Put("/a", b"1"), Put("/b/c/d", b"2", ABSENT), Put("/b", b"3"), Put("/e", b"")]

    with bk.open_store(backend_url) as store:
        store.put("/e", b"0").result()
        outcomes = list(store.apply([*ops, Delete("/a")]))
        found = [store.get(op.path).result() for op in ops]

    assert [outcome.error for outcome in outcomes] == [None] * 5
    stats = [outcome.result for outcome in outcomes[:4]]
    assert [stat.version for stat in stats] == [0, 0, 0, 1]
    assert [result and result.stat for result in found] == [None, *stats[1:]]
    assert all(stat.created and stat.modified for stat in stats)


def test_a_server_before_3_6_is_refused_in_one_line(
    line: Altering, backend_url: str, url: str, zookeeper_server: ZooKeeperServer
) -> None:
    """A server without multi-reads is refused when it is opened, and nothing is made on it."""
    line.alter = as_before_3_6
    line.last = {MULTI_READ}

    with pytest.raises(UnsupportedError) as refusal:
        bk.open_store(backend_url)

    assert str(refusal.value) == (
        f"ZooKeeper 3.6 or newer is needed: the server at {line.address} lacks multi-reads"
    )
    with zookeeper_client(zookeeper_server.url) as client:
        assert client.exists(parse_url(url).prefix()) is None


def test_an_outage_at_opening_says_nothing_about_the_version(
    line: Altering, backend_url: str
) -> None:
    """A connection that breaks three times during the check of the version is opened again."""
    line.alter = once(MULTI_READ, lambda _: None, times=3)
    with bk.open_store(backend_url) as store:
        assert store.put("/a", b"1").result().version == 0
        assert store.metrics().reconnects == 3


def test_an_older_server_that_takes_over_is_named(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """If a later connection leads to a server before 3.6, reads of several values say so."""
    backend.write([Put(f"/{i}", b"v") for i in range(20)], soon())
    line.alter = as_before_3_6
    line.last = {MULTI_READ}

    answers = backend.read([Get(f"/{i}") for i in range(20)], soon())
    with pytest.raises(UnsupportedError, match=r"ZooKeeper 3\.6 or newer is needed"):
        list(backend.scans.scan("/", Range(), None, PATIENCE))
    (stat,) = backend.write([Put("/0", b"w")], soon())

    assert stat.version == 1
    assert {type(answer) for answer in answers} == {UnsupportedError}
    assert "ZooKeeper 3.6 or newer is needed" in str(answers[7])


def _forbid_slots(other: KazooClient) -> None:
    """Let nothing be made in the chroot itself, and anything below ``/open``."""
    other.create("/open")
    other.set_acls("/", [make_acl("world", "anyone", read=True, write=True, admin=True)])


def test_what_is_created_without_slots_has_its_stat(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """Without permission for slots, creations return the Stat of a get, beside sets or not."""
    _forbid_slots(other)
    calls = [
        [Put("/open/a", b"1"), Put("/open/b/c", b"2", ABSENT)],
        [Put("/open/a", b"3"), Put("/open/d", b"4"), Delete("/open/b/c")],
        [Put("/open/b/e/f", b"5")],
    ]

    for ops in calls:
        stats = backend.write(ops, soon())
        found = backend.read([Get(op.path) for op in ops], soon())
        assert [result and result.stat for result in found] == stats
    other.set_acls("/", OPEN_ACL_UNSAFE)


def test_what_was_created_without_slots_and_replaced_at_once_is_not_claimed(
    backend: ZooKeeperBackend, line: Altering, other: KazooClient
) -> None:
    """If the node read back is another client's, the creation returns without a Stat."""
    _forbid_slots(other)

    def as_made_anew(packet: bytes) -> bytes:
        (czxid,) = unpack_from("!q", packet, BODY)
        return packet[:BODY] + pack("!q", czxid + 1) + packet[BODY + 8 :]

    line.alter = once(EXISTS, as_made_anew, times=20)
    (answer,) = backend.write([Put("/open/a", b"1", ABSENT)], soon())

    assert isinstance(answer, IndeterminateError)
    assert answer.applied
    assert answer.path == "/open/a"
    line.alter = lambda _, packet: packet
    (again,) = backend.write([Put("/open/b", b"1", ABSENT)], soon())
    assert again.version == 0
    other.set_acls("/", OPEN_ACL_UNSAFE)


# Packets.


@pytest.mark.parametrize(
    ("nonsense", "breaks"),
    [
        (pack("!i", -5), 1),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 1),
        (pack("!i", 0), 1),
        (pack("!i", 3) + b"abc", 1),
        (pack("!iiqi", 16, 987654, 5, 0), 1),
        (pack("!iiqi", 16, -1, -1, 0), 1),
        (pack("!iiqiiii", 28, -1, -1, 0, 1, 3, 99), 1),
        (pack("!iiqi", 16, -4, 0, 0), 0),
    ],
    ids=[
        "negative",
        "huge",
        "empty",
        "short",
        "not asked for",
        "event",
        "event of another length",
        "login",
    ],
)
def test_a_packet_that_cannot_be_read_breaks_the_line_at_most(
    backend: ZooKeeperBackend, line: Altering, nonsense: bytes, breaks: int
) -> None:
    """The connection is opened again, reads are repeated, and writes are settled."""
    backend.write([Put("/a", b"0")], soon())
    # Sooner than kazoo gives up waiting for more of a packet, two thirds of the session's timeout.
    line.alter = once(MULTI, lambda _: nonsense)
    (stat,) = backend.write([Put("/a", b"1", 0)], soon(15))
    line.alter = once(GET_DATA, lambda _: nonsense)
    (found,) = backend.read([Get("/a")], soon(15))

    assert (stat.version, found) == (1, GetResult(b"1", stat))
    assert backend.tally.counts()["reconnect"] == 2 * breaks


@pytest.mark.parametrize(
    "alter",
    [
        # Protocol version, timeout and session stand before the password's length.
        lambda packet: packet[:20] + pack("!i", -1) + packet[24:],
        lambda packet: pack("!i", 9) + packet[4:13],
        lambda _: pack("!i", 0),
        lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["no password", "cut", "empty", "huge"],
)
def test_a_greeting_that_cannot_be_read_is_asked_for_again(
    line: Altering, backend_url: str, alter: Callable[[bytes], bytes]
) -> None:
    """If a server's first answer is unreadable, the connection is closed and opened again."""
    line.alter = once(GREETING, alter)
    with bk.open_store(backend_url) as store:
        stat = store.put("/a", b"1").result()
        line.alter = once(GREETING, alter)
        line.cut()

        assert store.get("/a").result() == GetResult(b"1", stat)
        assert store.put("/a", b"2").result().version == 1


def test_a_code_that_nobody_knows_ends_what_it_answers(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """After an unknown error code, reads fail, writes are unknown, and the connection stays."""
    backend.write([Put("/a", b"0")], soon())
    line.alter = once(GET_DATA, partial(with_code, -999))
    with pytest.raises(MetadataStoreError, match="-999 is unknown") as read_error:
        backend.read([Get("/a")], soon())
    # The write, and once more to settle it.
    line.alter = once(MULTI, partial(with_code, -999), times=2)
    with pytest.raises(IndeterminateError, match="-999 is unknown"):
        backend.write([Put("/a", b"1")], soon())

    assert type(read_error.value) is MetadataStoreError
    assert backend.read([Get("/a")], soon())[0].value == b"1"
    assert not backend.tally.counts().get("reconnect")


# Bodies.


def cut_at(end: int) -> Callable[[bytes], bytes]:
    """Keep the first bytes of an answer's body, with the matching length."""
    return lambda packet: pack("!i", BODY - 4 + end) + packet[4 : BODY + end]


def test_a_read_whose_answer_cannot_be_read_says_so(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """The error of a read says what is wrong, and how many bytes there were."""
    backend.write([Put("/a", b"0")], soon())
    line.alter = once(GET_DATA, cut_at(10))
    with pytest.raises(MetadataStoreError, match=r"cannot be read: 26 bytes") as error:
        backend.read([Get("/a")], soon())

    assert type(error.value) is MetadataStoreError


def test_the_rest_of_a_batch_is_answered(backend: ZooKeeperBackend, line: Altering) -> None:
    """An unreadable answer costs only the outcomes of its own reads."""
    value = b"v" * 300_000
    backend.write([Put(f"/{i}", value) for i in range(8)], soon())
    gets = [Get(f"/{i}") for i in range(8)]
    line.alter = once(MULTI_READ, cut_at(1000))

    found = backend.read(gets, soon())

    kinds = [type(each) for each in found]
    assert set(kinds) == {GetResult, MetadataStoreError}
    assert kinds == sorted(kinds, key=lambda kind: kind is GetResult)
    assert [type(each) for each in backend.read(gets, soon())] == [GetResult] * 8


def test_a_write_whose_answer_cannot_be_read_is_settled(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """It is sent again under its slot's condition, like one whose answer was lost."""
    backend.write([Put("/there", b"0")], soon())
    # Without a condition that would be looked at first, which takes a multi of its own.
    ops = [Put("/there", b"1"), Put("/new/below", b"1", ABSENT), Put("/there2", b"1")]
    line.alter = once(MULTI, cut_at(30))

    stats = backend.write(ops, soon())

    assert [stat.version for stat in stats] == [1, 0, 0]
    found = backend.read([Get(op.path) for op in ops], soon())
    assert [result.stat for result in found] == stats
    assert backend.tally.counts()["settled"] == 1


def test_a_write_of_which_no_answer_can_be_read_is_unknown(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """If what settles it cannot be read either, it ends as unknown, and not at its deadline."""
    backend.write([Put("/a", b"0")], soon())
    line.alter = once(MULTI, cut_at(30), times=2)
    with pytest.raises(IndeterminateError, match=r"cannot be read: 46 bytes") as error:
        backend.write([Put("/a", b"1")], soon(100_000))

    assert not error.value.applied
    (stat,) = backend.write([Put("/a", b"2")], soon())
    assert stat.version == 2


def test_slots_whose_making_cannot_be_read_are_not_waited_for(
    backend: ZooKeeperBackend, line: Altering
) -> None:
    """The write that needs a slot was not sent, and its error has the reason."""
    line.alter = once(MULTI, cut_at(5))
    with pytest.raises(MetadataStoreError, match="cannot be read") as error:
        backend.write([Put("/a", b"1")], soon(100_000))

    assert error.value.outcome == "not_applied"
    assert backend.read([Exists("/a")], soon()) == [False]
    assert backend.write([Put("/a", b"1")], soon())[0].version == 0


_INTS = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 4, 5, 8, 15, 255, 2**31 - 1])


@st.composite
def alterations(draw: st.DrawFn) -> tuple[bool, Callable[[bytes, int], bytes]]:
    """Cut, lengthen or change an answer from an offset on; say whether that changes its length."""
    kind = draw(st.sampled_from(["cut", "longer", "without", "byte", "int"]))
    place = draw(st.floats(0, 1, exclude_max=True))
    filling = draw(st.binary(min_size=1, max_size=100))
    number = pack("!i", draw(_INTS))

    def alter(buffer: bytes, offset: int) -> bytes:
        k = offset + int(place * (len(buffer) - offset))
        match kind:
            case "cut":
                return buffer[:k]
            case "longer":
                return buffer[:k] + filling + buffer[k:]
            case "without":
                return buffer[:k] + buffer[k + len(filling) :]
            case "byte":
                return buffer[:k] + filling[:1] + buffer[k + 1 :]
            case _:
                k = min(k, len(buffer) - 4)
                return buffer[:k] + number + buffer[k + 4 :]

    return kind in {"cut", "longer", "without"}, alter


@pytest.fixture
def understood(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, Any, bool]]:
    """Real answers of every kind, each with what reads it and whether it is a write's."""
    seen: list[tuple[Any, Any, bool]] = []

    def note(reply: Any, parse: Any, *, write: bool = False) -> Any:
        if isinstance(reply, tuple):
            seen.append((reply, parse, write))
        return parse_reply(reply, parse, write=write)

    for module in (backend_module, packets, readahead, settling, write_ids):
        monkeypatch.setattr(module, "parse_reply", note)
    work(backend)
    return [*seen]  # The back end goes on, and reads more while the test draws from these.


def work(backend: ZooKeeperBackend, within: float = PATIENCE) -> list[Any]:
    """Do everything that a back end does; return what it said, errors of the package among it."""
    said: list[Any] = []
    names = [f"/{kind}{i}" for kind in ("a", "b/c", "é") for i in range(4)]
    calls: list[Callable[[], Any]] = [
        lambda: backend.write([Put(name, b"v", ABSENT) for name in names], soon(within)),
        lambda: backend.write([Put("/a0", b"w", 0), Delete("/a1"), Put("/n", b"")], soon(within)),
        lambda: backend.write([Put("/a0", b"x", 7), Put("/a2", b"x")], soon(within)),
        lambda: backend.write(
            [
                Put("/s-", b"", sequential=True),
                Put("/n", b"1"),
                Put("/s-", b"", sequential=True),
                Transaction([Check("/n", 0), Check("/no", ABSENT), Put("/t", b"")]),
            ],
            soon(within),
        ),
        lambda: backend.read([Get("/a0")], soon(within)),
        lambda: backend.read(
            [Get("/a1"), Get("/n"), Exists("/n"), GetChildren("/"), GetChildren("/b")], soon(within)
        ),
        lambda: list(backend.scans.scan("/", Range(), None, within)),
        lambda: list(backend.scans.scan_stats("/", Range(), None, within)),
        lambda: backend.scans.split("/", 3, within),
        lambda: backend.scans.delete_recursive("/", within),
    ]
    for call in calls:
        try:
            said.append(call())
        except MetadataStoreError as error:
            said.append(error)
    return said


@settings(
    deadline=None,
    max_examples=10 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), alteration=alterations())
def test_an_altered_answer_is_read_or_refused(
    understood: list[tuple[Any, Any, bool]], data: st.DataObject, alteration: Any
) -> None:
    """Any answer gives a result of the right kind, or an error of this package."""
    (buffer, offset), parse, write = data.draw(st.sampled_from(understood))
    other_length, alter = alteration
    altered = alter(buffer, offset)
    meant = parse_reply((buffer, offset), parse)
    found = parse_reply((altered, offset), parse, write=write)

    assert isinstance(meant, ZNode | list | Refused | Done)
    if isinstance(found, MetadataStoreError):
        assert type(found) is (IndeterminateError if write else MetadataStoreError)
        assert f"{len(altered)} bytes" in str(found)
    else:
        assert not other_length
        # What begins like a refusal may be nothing but one.
        assert type(found) is type(meant)


@settings(
    deadline=None,
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(number=st.integers(0, 25), alteration=alterations())
def test_whatever_is_altered_the_store_goes_on(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch, number: int, alteration: Any
) -> None:
    """One altered answer among many: each call ends, with a result or an error of the package."""
    _, alter = alteration
    left = iter([False] * number + [True])

    def deserialize(_: Exchange, buffer: bytes, offset: int) -> tuple[bytes, int]:
        return (alter(buffer, offset) if next(left, False) else buffer), offset

    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "deserialize", deserialize)
        work(backend, within=5)

    backend.scans.delete_recursive("/", PATIENCE)
    (stat,) = backend.write([Put("/after", b"v", ABSENT)], soon())
    assert backend.read([Get("/after")], soon()) == [GetResult(b"v", stat)]
    backend.scans.delete_recursive("/", PATIENCE)


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (partial(parse_single, GET_CHILDREN), pack("!i", 2**31 - 1)),
        (partial(parse_single, GET_CHILDREN), pack("!ii", 2**31 - 1, -4)),
        (partial(parse_single, GET_CHILDREN), pack("!ii", 1, 2**31 - 1)),
        (partial(parse_single, GET_DATA), pack("!i", 2**31 - 1)),
        (
            partial(parse_multi_read, [(GET_DATA, b"/a")], []),
            pack("!i?ii", GET_DATA, 0, 0, 2**31 - 1),
        ),
        (
            partial(parse_multi_read, [(GET_CHILDREN, b"/a")], []),
            pack("!i?iii", GET_CHILDREN, 0, 0, 2**31 - 1, -4),
        ),
        (partial(parse_multi, [(CREATE, 0, 2)]), pack("!i?ii", CREATE, 0, 0, 2**31 - 1)),
    ],
    ids=["names", "names back", "a name", "a value", "one value", "several names", "a path"],
)
def test_a_length_that_lies_takes_no_memory(parse: Any, body: bytes) -> None:
    """Numbers and lengths beyond the packet are detected before memory is allocated."""
    packet = bytes(16) + body
    parse_reply((packet, 16), parse)  # so that what is made once is there
    tracemalloc.start()
    error = parse_reply((packet, 16), parse)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(error, MetadataStoreError)
    assert peak < 1 << 16


@pytest.mark.parametrize(
    "names", [["a", "a"], ["a", ""], ["a/b"]], ids=["twice", "empty", "a path"]
)
def test_names_that_no_node_has_are_not_taken(names: list[str]) -> None:
    """A list of children has different names, each a single part: walks rely on that."""
    body = pack("!i", len(names)) + b"".join(
        pack("!i", len(name)) + name.encode() for name in names
    )

    assert isinstance(
        parse_reply((body, 0), partial(parse_single, GET_CHILDREN)), MetadataStoreError
    )


@pytest.mark.parametrize(
    ("ops", "body"),
    [
        ([(CREATE, 0, 2)], pack("!i?ii", _CREATE2, False, 0, 2) + b"/a" + bytes(_STAT_SIZE) + END),
        ([(CREATE, 0, 2)], pack("!i?ii", CREATE, False, 0, 3) + b"/ab" + END),
        ([(CREATE, 0, 2)], pack("!i?ii", CREATE, False, 0, 9) + b"/a" + END),
        ([(CREATE, 0, 2)], pack("!i?ii", SET_DATA, False, 0, 2) + b"/a" + END),
        ([(PARENT, 0, 2)], pack("!i?ii", -1, False, -2, 2) + b"/a" + END),
        ([(SET_DATA, 0, 2)], pack("!i?i", DELETE, False, 0) + bytes(_STAT_SIZE) + END),
        ([(DELETE, 0, 2)], pack("!i?i", CREATE, False, 0) + END),
        ([(DELETE, 0, 2)] * 2, pack("!i?i", DELETE, False, 0) + END),
        ([(DELETE, 0, 2)], 2 * pack("!i?i", DELETE, False, 0) + END),
        ([(DELETE, 0, 2)] * 2, pack("!i?ii", -1, False, -101, -101) + END),
        (
            [(DELETE, 0, 2)] * 2,
            pack("!i?ii", -1, False, -101, -101) + pack("!i?ii", DELETE, False, 0, 0) + END,
        ),
        ([(DELETE, 0, 2)], pack("!i?i", DELETE, False, 0) + pack("!i?i", -1, False, -1)),
    ],
    ids=[
        "create2",
        "another path",
        "another length",
        "no creation",
        "half a refusal",
        "another operation",
        "another one without Stat",
        "too few",
        "too many",
        "too few refused",
        "not all refused",
        "no end",
    ],
)
def test_an_answer_of_another_form_is_no_answer(ops: list[Op], body: bytes) -> None:
    """The results of a multi are those of its operations, one for each, in their order."""
    error = parse_reply((body, 0), partial(parse_multi, ops), write=True)

    assert isinstance(error, IndeterminateError)


_NAMES = pack("!i?ii", GET_CHILDREN, False, 0, 0)
_NODE = pack("!i?ii", GET_DATA, False, 0, -1) + bytes(_STAT_SIZE)


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        ([GET_DATA, GET_DATA], _NODE + _NAMES + END),
        ([GET_CHILDREN, GET_DATA], _NODE + _NODE + END),
        ([GET_DATA, GET_DATA], _NODE + pack("!i?ii", EXISTS, False, 0, -1) + END),
        ([GET_DATA, GET_DATA], _NODE + _NODE[:9] + pack("!i", -2) + bytes(_STAT_SIZE) + END),
        ([GET_DATA, GET_DATA], _NODE + END),
        ([GET_DATA, GET_DATA], 3 * _NODE + END),
        ([GET_DATA], pack("!i", -2) + bytes(_STAT_SIZE)),
    ],
    ids=["names", "a node", "another type", "a size", "too few", "too many", "one size"],
)
def test_what_was_not_asked_for_is_no_answer(asked: list[int], body: bytes) -> None:
    """The results of a read are of the kind that was asked for, one for each, in their order."""
    sent = [(opcode, b"/a") for opcode in asked]
    error = parse_reply((body, 0), partial(parse_reads, sent, ()))

    assert type(error) is MetadataStoreError

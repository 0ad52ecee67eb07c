"""Sequential values on a real ZooKeeper: the server's own numbers, and lost answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from batchkeeper.ops import (
    ABSENT,
    Check,
    Delete,
    Get,
    IndeterminateError,
    Put,
    Stat,
    Transaction,
)
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.jute import EXISTS

from ..calls import kinds, lose_the_answer, read, write
from .opening import bodies_of, connected, ephemeral


def sequential(path: str, value: bytes = b"") -> Put:
    return Put(path, value, sequential=True)


def names(answers: Sequence[Any]) -> list[str]:
    return [answer.path for answer in answers]


def stored(backend: ZooKeeperBackend, answers: Sequence[Stat]) -> list[Stat]:
    """Return the stats read back at the paths of these."""
    return [found.stat for found in read(backend, *[Get(stat.path) for stat in answers])]


def test_thousands_in_one_call(backend: ZooKeeperBackend) -> None:
    """Each gets its own path, in the order of the call, all of them in one multi."""
    write(backend, Put("/first", b""))
    stats = write(backend, *[sequential(f"/q/n{i % 3}-", b"%d" % i) for i in range(900)])

    assert names(stats) == [f"/q/n{i % 3}-{i:010}" for i in range(900)]
    assert len({stat.revision for stat in stats}) == 1
    assert stored(backend, stats) == stats
    assert read(backend, Get("/q/n1-0000000700"))[0].value == b"700"
    assert backend.tally.counts()["conflict"] == 0


def test_suffixes_never_repeat(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Deletes do not bring a suffix back, and creations of all clients count."""
    first = write(backend, sequential("/q/n-"), sequential("/q/n-"))
    write(backend, *[Delete(stat.path) for stat in first])
    other.create("/q/n-", b"", sequence=True)
    (last,) = write(backend, sequential("/q/n-"))

    assert names([*first, last]) == [f"/q/n-{i:010}" for i in (0, 1, 3)]


def test_a_path_that_somebody_has_put_is_passed_over(backend: ZooKeeperBackend) -> None:
    """Where a value stands already, the next suffix is taken, also several times in a call."""
    write(backend, *[Put(f"/q/n-{i:010}", b"mine") for i in (4, 5, 9)])

    stats = write(
        backend,
        Put("/other", b""),
        *[sequential("/q/n-", b"s") for _ in range(6)],
        Put("/q/z", b""),
    )

    numbers = [int(stat.path[-10:]) for stat in stats[1:7]]
    assert numbers == sorted(set(numbers))
    assert {4, 5, 9}.isdisjoint(numbers)
    assert read(backend, Get("/q/n-0000000004"))[0].value == b"mine"


def test_the_root_has_a_sequence(url: str, zookeeper_server: Any) -> None:
    """Paths at the top of the store are sequential, too."""
    backend = connected(zookeeper_server.url)
    first, second = write(backend, sequential("/top-"), sequential("/top-"))

    assert first.path < second.path
    assert second.path[:5] == "/top-"
    write(backend, Delete(first.path), Delete(second.path))
    backend.close()


def five(backend: ZooKeeperBackend) -> list[Any]:
    """Return five sequential puts of the numbers from 3 on, between other creations."""
    write(backend, *[sequential("/q/n-") for _ in range(3)])
    return [
        sequential("/q/n-", b"a"),
        sequential("/q/m-", b"b"),
        Put("/q/plain", b""),
        sequential("/q/n-", b"c"),
        ephemeral(backend, "/q/n-", b"d", sequential=True),
        sequential("/new/x-", b"x"),
        sequential("/q/n-", b"e"),
    ]


#: Actions of other clients before the answer is settled.
AFTERWARDS: dict[str, Callable[[KazooClient], object]] = {
    "nothing": lambda _: None,
    "more": lambda other: [other.create("/q/n-", b"later", sequence=True) for _ in range(3)],
    "an older one gone": lambda other: other.delete("/q/n-0000000001"),
    "some gone": lambda other: [other.delete(f"/q/{name}") for name in ("n-0000000005", "plain")],
    "the first gone": lambda other: other.delete("/q/n-0000000003"),
    "names by hand": lambda other: [
        other.create(f"/q/{name}", b"")
        for name in ("n-0000000100", "n-0000000000x", "n-12345", "n-00000000\u0663\u0664")
    ],
}


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_lost_answer_is_settled(
    backend: ZooKeeperBackend, line: Any, other: KazooClient, afterwards: str
) -> None:
    """The paths are found again by what the write has left, and nothing is made twice."""
    ops = five(backend)

    answers = lose_the_answer(backend, line, ops, lambda: AFTERWARDS[afterwards](other))

    assert names(answers) == [
        "/q/n-0000000003",
        "/q/m-0000000004",
        "/q/plain",
        "/q/n-0000000005",
        "/q/n-0000000006",
        "/new/x-0000000000",
        "/q/n-0000000007",
    ]
    assert [answer.ephemeral for answer in answers] == [False] * 4 + [True, False, False]
    found = read(backend, *[Get(answer.path) for answer in answers])
    for op, answer, get in zip(ops, answers, found, strict=True):
        assert get is None or (get.value, get.stat) == (op.value, answer)
    gone = {"some gone": 2, "the first gone": 1}.get(afterwards, 0)
    assert sum(get is None for get in found) == gone


@pytest.mark.parametrize(
    "gone", [("n-0000000007",), ("n-0000000003", "m-0000000004", "n-0000000007")]
)
def test_a_lost_answer_that_cannot_be_told_apart(
    backend: ZooKeeperBackend, line: Any, other: KazooClient, gone: Sequence[str]
) -> None:
    """If others have deleted so much that two answers are possible, none is given."""
    write(backend, *[sequential("/q/n-") for _ in range(3)])
    ops = [sequential("/q/n-") for _ in range(5)]

    def change() -> None:
        other.delete("/q/n-0000000007")
        if len(gone) > 1:
            other.delete("/q/n-0000000003")
        other.create("/q/n-", b"later", sequence=True)

    answers = lose_the_answer(backend, line, ops, change)

    assert kinds(answers) == [IndeterminateError] * 5
    assert all(answer.applied for answer in answers)


@pytest.mark.parametrize("again", [False, True])
def test_a_lost_answer_whose_parent_is_gone(
    backend: ZooKeeperBackend, line: Any, other: KazooClient, again: bool
) -> None:
    """If the parent was deleted, or is another one now, the write is known as applied."""
    ops = five(backend)

    def change() -> None:
        other.delete("/q", recursive=True)
        if again:
            for _ in range(10):
                other.create("/q/n-", b"later", sequence=True, makepath=True)

    answers = lose_the_answer(backend, line, ops, change)

    assert kinds(answers) == [IndeterminateError] * 2 + [Stat] + [IndeterminateError] * 2 + [
        Stat,
        IndeterminateError,
    ]
    assert answers[0].applied


def test_a_lost_answer_below_a_new_parent(
    backend: ZooKeeperBackend, line: Any, other: KazooClient
) -> None:
    """Where the write has created the parent, the suffixes are certain, even if all are deleted."""
    write(backend, Put("/first", b""))

    def change() -> None:
        for i in range(3):
            other.delete(f"/new/x-{i:010}")
        other.create("/new/x-", b"later", sequence=True)

    answers = lose_the_answer(backend, line, [sequential("/new/x-") for _ in range(3)], change)

    assert names(answers) == [f"/new/x-{i:010}" for i in range(3)]


def test_a_lost_answer_below_a_large_parent(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    line: Any,
    other: KazooClient,
) -> None:
    """The search reads few of the many nodes below the parent."""
    for _ in range(5):
        write(backend, *[sequential("/q/n-") for _ in range(1000)])
    ops = [sequential("/q/n-", b"%d" % i) for i in range(100)]
    looks: list[bytes] = []

    def change() -> None:
        nonlocal looks
        for _ in range(3):
            other.create("/q/n-", b"later", sequence=True)
        other.delete("/q/n-0000002000")
        looks = bodies_of(connection, EXISTS)

    answers = lose_the_answer(backend, line, ops, change)

    assert names(answers) == [f"/q/n-{5000 + i:010}" for i in range(100)]
    assert stored(backend, answers) == answers
    assert 0 < len(looks) < 400


def test_sequences_without_slots(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Where no slots are permitted, sequential creations get their Stat all the same."""
    other.create("/open")
    other.set_acls("/", [make_acl("world", "anyone", read=True, write=True, admin=True)])

    calls: list[list[Any]] = [
        [sequential("/open/n-"), sequential("/open/n-")],
        [sequential("/open/n-"), Put("/open/b", b"")],
        [ephemeral(backend, "/open/n-", sequential=True), Put("/open/b", b"")],
    ]
    for ops in calls:
        stats = write(backend, *ops)
        assert stored(backend, stats) == stats
    other.set_acls("/", OPEN_ACL_UNSAFE)


def test_a_check_of_nothing_counts_as_a_creation(
    backend: ZooKeeperBackend, line: Any, other: KazooClient
) -> None:
    """Nodes that a multi creates and deletes again move the suffixes, which settling knows."""
    write(backend, sequential("/q/n-"), sequential("/r/n-"))
    ops: list[Any] = [
        sequential("/q/n-", b"1"),
        Transaction([Check("/q/no", ABSENT), Check("/r/no", ABSENT), Put("/q/t", b"")]),
        sequential("/r/n-", b"2"),
    ]

    answers = lose_the_answer(backend, line, ops, lambda: other.create("/q/n-", b"", sequence=True))

    assert names([answers[0], answers[2]]) == ["/q/n-0000000001", "/r/n-0000000001"]
    assert stored(backend, [answers[0], answers[2]]) == [answers[0], answers[2]]

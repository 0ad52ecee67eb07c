"""Ephemeral values on etcd: leases are kept, guards are exact, the end of a session is noticed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Check,
    Delete,
    Get,
    MetadataStoreError,
    Put,
    Range,
    SessionLostError,
    Stat,
    Transaction,
    TransactionRefusedError,
)
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.sizes.estimates import Refusals
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import EtcdRefusedError, Reason
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes import groups, plan
from batchkeeper.testing.servers import EtcdServer

from ...waiting import PATIENCE, soon
from ..calls import kinds, lose_the_answer, write
from .line import Line
from .live import other_client
from .opening import calls_to_etcd, opened, recorded


def lease_of(url: str, path: str) -> int:
    """Return the lease of a path as etcd has it."""
    parsed = parse_url(url)
    with other_client(parsed.hosts[0]) as other:
        request = messages.RangeRequest(key=(parsed.prefix() + path).encode())
        (kv,) = other.call("range", request, write=False).kvs
    return int(kv.lease)


def revoke(backend: EtcdBackend, url: str) -> None:
    """End the session of a client, behind its back."""
    with other_client(parse_url(url).hosts[0]) as other:
        other.revoke(backend.session.take(backend.session.number, soon()).lease)


def in_first(operation: Any) -> Any:
    """Return an operation that was called in the client's first session, as the engine notes it."""
    names = ("kind", "path", "value", "expected_version", "options")
    return SimpleNamespace(session=1, **{name: getattr(operation, name) for name in names})


def remove_session_key(backend: EtcdBackend, url: str) -> None:
    """Remove the session key of a client, but not its lease."""
    with other_client(parse_url(url).hosts[0]) as other:
        other.delete(backend.session.take(backend.session.number, soon()).key)


@pytest.mark.parametrize(
    "change",
    [
        Put("/e", b"2"),
        Put("/e", b"2" * 100_000),
        Put("/e", b"2", 0),
        Put("/e", b"2", ephemeral=True),
        Put("/e", b"2", 0, ephemeral=True),
        Transaction([Put("/e", b"2"), Put("/x", b"")]),
        Transaction([Check("/plain", 0), Put("/e", b"2", 0)]),
        Transaction([Put("/e", b"2", ephemeral=True), Put("/x", b"", ephemeral=True)]),
    ],
    ids=repr,
)
def test_no_put_detaches_a_key_from_its_lease(
    backend: EtcdBackend, other: EtcdBackend, change: Any, url: str
) -> None:
    """Whoever puts, and with whatever flag: the value changes, and its session stays the same."""
    write(backend, Put("/e", b"1", ephemeral=True), Put("/plain", b""))
    lease = lease_of(url, "/e")
    assert backend.session.owns(lease)
    (answer,) = write(other, change)
    stat = answer if isinstance(answer, Stat) else next(filter(None, answer))
    assert (stat.version, stat.ephemeral, stat.owned) == (1, True, False)
    assert lease_of(url, "/e") == lease
    (found,) = backend.read([Get("/e")], soon())
    assert found.stat == (*stat[:-1], True)


def test_neighbours_of_a_put_that_meets_an_ephemeral_value_are_not_affected(
    backend: EtcdBackend, other: EtcdBackend
) -> None:
    """A thousand puts, some over ephemeral values: each has its own outcome, once."""
    write(backend, *[Put(f"/{n}", b"1", ephemeral=True) for n in range(0, 100, 7)])
    for version in range(3):
        answers = write(other, *[Put(f"/{n}", b"2") for n in range(100)])
        for n, stat in enumerate(answers):
            mine = n % 7 == 0
            assert (stat.version, stat.ephemeral) == (version + mine, mine)
    backend.session.close(soon())
    found = other.read([Get(f"/{n}") for n in range(100)], soon())
    assert [n for n, value in enumerate(found) if value is None] == [*range(0, 100, 7)]


def test_a_put_over_an_ephemeral_value_needs_a_second_request_only_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client remembers what is ephemeral, and forgets it when it is so no more."""
    with opened(url) as backend:
        write(backend, Put("/e", b"", ephemeral=True))
        write(backend, Put("/e", b""))
        calls = calls_to_etcd(monkeypatch)
        for _ in range(3):
            (stat,) = write(backend, Put("/e", b""))
            assert stat.ephemeral
        (stat,) = write(backend, Put("/e", b"", ephemeral=True))
        assert stat.version == 5
        assert calls == ["txn"] * 4
        write(backend, Delete("/e"))
        for version in range(2):
            (stat,) = write(backend, Put("/e", b""))
            assert (stat.version, stat.ephemeral) == (version, False)
        assert calls == ["txn"] * 7


def test_without_sessions_a_batch_is_one_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard costs no request; a session that appears costs the next batch one, once."""
    with opened(url) as backend, opened(url) as other:
        write(backend, Put("/a", b""))
        calls = calls_to_etcd(monkeypatch)
        write(backend, Put("/a", b"", 0), Put("/b", b"", ABSENT), Put("/d", b""), Delete("/c"))
        assert calls == ["txn"]
        write(other, Put("/e", b"", ephemeral=True))
        del calls[:]
        answers = write(backend, Put("/a", b""), Put("/e", b""), Put("/b", b"", 0), Delete("/d"))
        assert [getattr(answer, "version", answer) for answer in answers[:3]] == [2, 1, 1]
        assert [stat.ephemeral for stat in answers[:3]] == [False, True, False]
        assert calls == ["txn"] * 3  # the guard fails; /e has a lease; /e keeps it
        del calls[:]
        write(backend, Put("/a", b""), Put("/b", b""))
        assert calls == ["txn"]


def test_an_ended_session_costs_only_its_own_values(
    backend: EtcdBackend, other: EtcdBackend, url: str
) -> None:
    """A value to be created in it gets SessionLostError; the rest of the batch takes effect."""
    write(backend, Put("/e", b"", ephemeral=True))
    revoke(backend, url)
    mine = [Put("/e", b"", ephemeral=True), Put("/s/n-", b"", ephemeral=True, sequential=True)]
    both = Transaction([Put("/t", b""), Put("/f", b"", ephemeral=True)])
    answers = write(
        backend,
        Put("/a", b""),
        *map(in_first, [*mine, both]),
        Put("/s/n-", b"", sequential=True),
    )
    assert kinds(answers) == [Stat, *[SessionLostError] * 3, Stat]
    assert answers[4].path.startswith("/s/n-00000000")
    assert backend.session.number == 2
    left = [Get(path) for path in ("/a", "/e", "/t", "/f")]
    assert [found and found.stat.path for found in other.read(left, soon())] == ["/a", *[None] * 3]
    (stat,) = write(backend, Put("/e", b"", ephemeral=True))
    assert (stat.version, stat.owned) == (0, True)


def test_an_ended_session_is_found_out_without_a_refused_request(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, connection: EtcdConnection, url: str
) -> None:
    """Conditions keep its values out, so that no batch is refused and sent in halves."""
    write(backend, Put("/e", b"", ephemeral=True))
    revoke(backend, url)
    refused: list[EtcdRefusedError] = []
    call = connection.call

    def watched(method: Any, *args: Any, **more: Any) -> Any:
        try:
            return call(method, *args, **more)
        except EtcdRefusedError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(connection, "call", watched)
    answers = write(
        backend,
        in_first(Put("/s/n-", b"", ephemeral=True, sequential=True)),
        in_first(Put("/e", b"", ephemeral=True)),
        in_first(Transaction([Put("/f", b"", ephemeral=True)])),
        Put("/a", b""),
    )
    assert kinds(answers) == [*[SessionLostError] * 3, Stat]
    assert [error.reason for error in refused if error.reason is Reason.LEASE_GONE] == []


def creations(prefix: str) -> list[Any]:
    """Return many ephemeral creations, called in the client's first session."""
    return [in_first(Put(f"{prefix}/{n}", b"", ABSENT, ephemeral=True)) for n in range(70)]


def test_a_refused_lease_that_stands_is_an_error(
    backend: EtcdBackend, connection: EtcdConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not send such a write again and again."""

    def no_lease() -> None:
        raise EtcdRefusedError(MetadataStoreError("no such lease"), Reason.LEASE_GONE)

    write(backend, Put("/e", b"", ephemeral=True))
    line = Line(connection, monkeypatch)
    line.script.append(no_lease)
    (error,) = write(backend, Put("/f", b"", ephemeral=True))
    assert type(error) is MetadataStoreError
    (stat,) = write(backend, Put("/f", b"", ephemeral=True))
    assert stat.version == 0


def test_ephemeral_creations_share_their_conditions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many are one request; a refused one costs those of its group a second one, and no more."""
    with opened(url) as backend:
        write(backend, Put("/e", b"", ephemeral=True), Put("/r/40", b""))
        calls = calls_to_etcd(monkeypatch)
        answers = write(backend, *creations("/a"))
        assert [stat[0:2] for stat in answers] == [(f"/a/{n}", 0) for n in range(70)]
        assert {(stat.ephemeral, stat.owned) for stat in answers} == {(True, True)}
        answers = write(backend, *creations("/r"))
        assert kinds(answers) == [Stat] * 40 + [BadVersionError] + [Stat] * 29
        assert calls == ["txn"] * 3
        assert lease_of(url, "/a/69") == lease_of(url, "/r/0") == lease_of(url, "/e")
        found = backend.read([Get(f"/r/{n}") for n in range(70)], soon())
        assert [n for n, value in enumerate(found) if not value.stat.ephemeral] == [40]


@pytest.mark.parametrize("fenced", [False, True], ids=["puts", "transactions"])
def test_conditional_puts_share_their_conditions_beside_sessions(
    url: str, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """An ephemeral value among them keeps its lease. It costs a second request only once."""

    def updates(version: int) -> list[Any]:
        puts = [Put(f"/a/{n}", b"2", version) for n in range(70)]
        return [Transaction([Check("/owner", 0), put]) for put in puts] if fenced else puts

    def stats(answers: Any) -> list[Stat]:
        return [answer[1] if fenced else answer for answer in answers]

    monkeypatch.setattr(Refusals, "quiet", 0)  # so that they share them also after a refusal
    with opened(url) as backend, opened(url) as other:
        write(other, Put("/a/40", b"1", ephemeral=True), Put("/owner", b""))
        write(backend, *[Put(f"/a/{n}", b"1") for n in range(70) if n != 40])
        calls = calls_to_etcd(monkeypatch)
        for version in range(3):
            found = stats(write(backend, *updates(version)))
            assert [stat.version for stat in found] == [version + 1] * 70
            assert [stat.path for stat in found if stat.ephemeral] == ["/a/40"]
            assert calls == ["txn"] * (2 + version)  # the first time, the group of /a/40 goes twice
        assert lease_of(url, "/a/40") != 0
        answers = write(backend, *updates(3)[:30], *updates(7)[30:50], *updates(3)[50:])
        assert kinds(answers).count(TransactionRefusedError if fenced else BadVersionError) == 20
        found = backend.read([Get(f"/a/{n}") for n in range(70)], soon())
        assert [value.stat.version for value in found] == [4] * 30 + [3] * 20 + [4] * 20


def test_lost_answers_of_conditional_puts_beside_sessions_are_settled(
    etcd_server: EtcdServer, url: str, proxy: Callable[[str], Any]
) -> None:
    """Those of an applied group are found. Those beside an ephemeral value are sent again."""
    line = proxy(etcd_server.address)
    with opened(url) as other:
        write(other, *[Put(f"/a/{n}", b"1") for n in range(1, 70)])
        write(other, Put("/a/0", b"1", ephemeral=True))
        with opened(url.replace(etcd_server.address, line.address)) as backend:
            puts = [Put(f"/a/{n}", b"2", 0) for n in range(70)]
            answers = lose_the_answer(backend, line, puts)
    assert [stat.version for stat in answers] == [1] * 70
    assert [stat.path for stat in answers if stat.ephemeral] == ["/a/0"]
    assert len({stat.revision for stat in answers}) == 2


def test_ephemeral_creations_that_are_sequential_have_their_own_numbers(
    backend: EtcdBackend,
) -> None:
    """They share no conditions but that on their counter."""
    write(backend, Put("/e", b"", ephemeral=True))
    child = Put("/s/n-", b"", ABSENT, ephemeral=True, sequential=True)
    answers = write(backend, *[in_first(child)] * 20)
    assert len({stat.path for stat in answers}) == 20
    assert {(stat.version, stat.ephemeral, stat.owned) for stat in answers} == {(0, True, True)}


def test_an_ended_session_ends_all_creations_that_share_their_conditions(
    backend: EtcdBackend, other: EtcdBackend, url: str
) -> None:
    """None of them is created, neither in the ended session nor in the next one."""
    write(backend, Put("/e", b"", ephemeral=True))
    revoke(backend, url)
    answers = write(backend, *creations("/a"), Put("/plain", b""))
    assert kinds(answers) == [SessionLostError] * 70 + [Stat]
    assert other.read([Get(f"/a/{n}") for n in range(70)], soon()) == [None] * 70
    assert backend.session.number == 2


def test_lost_answers_of_ephemeral_creations_that_share_their_conditions_are_settled(
    etcd_server: EtcdServer, url: str, proxy: Callable[[str], Any]
) -> None:
    """Those of an applied group are found; those of a refused group are sent again."""
    line = proxy(etcd_server.address)
    with opened(url.replace(etcd_server.address, line.address)) as backend:
        write(backend, Put("/e", b"", ephemeral=True), Put("/a/0", b""))
        answers = lose_the_answer(backend, line, creations("/a"))
    assert kinds(answers) == [BadVersionError] + [Stat] * 69
    assert {stat[1:2] + stat[5:] for stat in answers[1:]} == {(0, True, True)}
    assert len({stat.revision for stat in answers[1:]}) == 2


def test_a_put_of_an_earlier_session_never_lands_in_the_next(
    backend: EtcdBackend, url: str
) -> None:
    """The number of the session at the call decides, also if the new session exists already."""
    write(backend, Put("/e", b"", ephemeral=True))
    revoke(backend, url)
    write(backend, in_first(Put("/x", b"", ephemeral=True)))  # finds out
    assert kinds(write(backend, Put("/y", b"", ephemeral=True))) == [Stat]
    answers = write(backend, in_first(Put("/late", b"", ephemeral=True)), Put("/a", b""))
    assert kinds(answers) == [SessionLostError, Stat]
    assert answers[0].path == "/late"
    assert backend.read([Get("/late")], soon()) == [None]


def test_a_session_key_that_somebody_has_removed_comes_back(
    backend: EtcdBackend, other: EtcdBackend, url: str
) -> None:
    """As long as the lease exists, the session does."""
    write(backend, Put("/e", b"", ephemeral=True))
    remove_session_key(backend, url)
    answers = write(
        backend,
        Put("/f", b"", ephemeral=True),
        Put("/a", b""),
        Put("/n-", b"", ephemeral=True, sequential=True),
    )
    assert kinds(answers) == [Stat] * 3
    assert answers[0].owned
    assert lease_of(url, "/f") == lease_of(url, "/e")


def test_the_session_s_lease_is_not_mistaken_for_that_of_the_write_ids(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Should etcd refuse a batch for the session's lease, the neighbours are sent without it."""
    write(backend, Put("/e", b"", ephemeral=True))
    revoke(backend, url)
    # Nothing else brings this about: without the condition, the put itself is refused.
    for module in (plan, groups):
        monkeypatch.setattr(module, "session_exists", lambda _terms: b"")
    answers = write(backend, in_first(Put("/f", b"", ephemeral=True)))
    assert kinds(answers) == [SessionLostError]
    (stat,) = write(backend, Put("/a", b""))
    assert stat.version == 0


def test_lost_answers_of_ephemeral_puts_are_settled(
    etcd_server: EtcdServer, url: str, proxy: Callable[[str], Any], flat_only: bool
) -> None:
    """Values that were created before the line broke are found, with their session."""
    line = proxy(etcd_server.address)
    through = url.replace(etcd_server.address, line.address)
    with opened(through, flat_only=flat_only) as backend, opened(url) as other:
        write(backend, Put("/plain", b""), Put("/kept", b"", ephemeral=True))
        write(other, Put("/theirs", b"", ephemeral=True))
        ops = [
            Put("/new", b"", ABSENT, ephemeral=True),
            Put("/any", b"", ephemeral=True),
            Put("/plain", b"", ephemeral=True),
            Put("/kept", b""),
            Put("/theirs", b"", 0),
            Put("/beside", b""),
        ]
        answers = lose_the_answer(backend, line, ops)
        told = [(stat.path, stat.version, stat.ephemeral, stat.owned) for stat in answers]
        assert told == [
            ("/new", 0, True, True),
            ("/any", 0, True, True),
            ("/plain", 1, False, False),
            ("/kept", 1, True, True),
            ("/theirs", 1, True, False),
            ("/beside", 0, False, False),
        ]
        found = backend.read([Get(op.path) for op in ops], soon())
        assert [result.stat for result in found] == answers


@pytest.mark.parametrize("first", ["lost", "executed"])
def test_an_ephemeral_create_settles_as_one(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, first: str, connection: EtcdConnection
) -> None:
    """Whether its request or its answer was lost: it happens once, and a late copy does nothing."""
    write(backend, Put("/there", b"", ephemeral=True))
    line = Line(connection, monkeypatch)
    line.script.append(first)
    answers = write(
        backend,
        Put("/e", b"", ABSENT, ephemeral=True),
        Put("/there", b"", ABSENT, ephemeral=True),
        Put("/there2", b"", ephemeral=True),
    )
    assert kinds(answers) == [Stat, BadVersionError, Stat]
    line.deliver()
    found = backend.read([Get("/e"), Get("/there"), Get("/there2")], soon())
    assert [result.stat.version for result in found] == [0, 0, 0]
    assert found[0].stat == answers[0]


def test_a_session_that_ends_before_a_lost_write_is_settled_takes_it_along(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, connection: EtcdConnection, url: str
) -> None:
    """If the request was lost and then its session, the write is SessionLostError."""
    write(backend, Put("/there", b"", ephemeral=True))
    line = Line(connection, monkeypatch)
    line.script.extend(["lost", lambda: revoke(backend, url)])
    answers = write(backend, in_first(Put("/e", b"", ephemeral=True)), Put("/a", b""))
    assert kinds(answers) == [SessionLostError, Stat]
    line.deliver()
    assert backend.read([Get("/e")], soon()) == [None]


def test_scans_say_which_values_end_with_the_session(
    backend: EtcdBackend, other: EtcdBackend
) -> None:
    """Each client sees its own values as owned, with and without values in the page."""
    write(backend, Put("/a", b""), Put("/b", b"", ephemeral=True))
    write(other, Put("/c", b"", ephemeral=True))
    for client, mine in ((backend, "/b"), (other, "/c")):
        pages = [
            list(scan("/", Range(), None, PATIENCE))
            for scan in (client.scans.scan, client.scans.scan_stats)
        ]
        for stats in (
            [result.stat for page in pages[0] for result in page],
            [stat for page in pages[1] for stat in page],
        ):
            assert [stat.path for stat in stats] == ["/a", "/b", "/c"]
            assert [stat.ephemeral for stat in stats] == [False, True, True]
            assert [stat.path for stat in stats if stat.owned] == [mine]


def test_a_lease_that_the_guard_does_not_show_is_kept(etcd_server: EtcdServer) -> None:
    """A key of a client with another prefix, or of another program, stays on its lease."""
    place = f"/{uuid.uuid4().hex}"
    with (
        opened(etcd_server.url, flat_only=False) as outer,
        opened(etcd_server.url + place, flat_only=False) as inner,
    ):
        write(inner, Put("/e", b"1", ephemeral=True))
        lease = lease_of(etcd_server.url + place, "/e")
        (stat,) = write(outer, Put(f"{place}/e", b"2"))
        assert (stat.version, stat.ephemeral, stat.owned) == (2, True, False)  # bound again: + 1
        assert lease_of(etcd_server.url + place, "/e") == lease
        # Now the client minds leases.
        answers = write(outer, Put(f"{place}/e", b"3"), Put("/beside" + place, b""))
        assert [answer.version for answer in answers] == [3, 0]
        assert lease_of(etcd_server.url + place, "/e") == lease
    with opened(etcd_server.url, flat_only=False) as outer:
        assert outer.read([Get(f"{place}/e")], soon()) == [None]


def test_a_put_over_a_lease_that_ends_meanwhile_goes_with_it(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lease has ended before the key is bound to it again, the key is removed."""
    place = f"/{uuid.uuid4().hex}"
    with (
        recorded(etcd_server.url, flat_only=False) as (outer, connection),
        opened(etcd_server.url + place, flat_only=False) as inner,
    ):
        write(inner, Put("/e", b"1", ephemeral=True))
        write(outer, Put(f"{place}/before", b""))
        call = connection.call
        puts: list[Any] = []

        def late(method: Any, *args: Any, **more: Any) -> Any:
            if more["write"]:
                puts.append(args)
            elif method == "txn" and puts:  # to bind it again
                revoke(inner, etcd_server.url)
                puts.clear()
            return call(method, *args, **more)

        monkeypatch.setattr(connection, "call", late)
        (stat,) = write(outer, Put(f"{place}/e", b"2"))
        assert stat.ephemeral
        assert outer.read([Get(f"{place}/e")], soon()) == [None]

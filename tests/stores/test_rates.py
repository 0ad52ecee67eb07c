"""Limits of operations per second: when operations may go, alone and with others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import ConnectOptions, connect, rates
from batchkeeper.testing.servers import EtcdServer

from ..waiting import PATIENCE, error, result, until

pytestmark = pytest.mark.server

Limits = Callable[..., "rates._Limited"]


class Clock:
    """The clock of this machine, which tests move on, and that of one client may be wrong."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.wrong = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def time(self) -> float:
        return time.time() + self.ahead + self.wrong


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rates, "time", made)
    return made


@pytest.fixture(params=["etcd", "zookeeper"])
def limited(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> Iterator[Limits]:
    """Make back ends of one store, each with a limit."""
    url = fresh_url(request.param)
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> rates._Limited:
            made = bk.RateLimit(*args, **options)(connect(url, ConnectOptions()))
            stack.callback(made.close)
            assert isinstance(made, rates._Limited)
            return made

        yield make


def soon() -> float:
    return rates.time.monotonic() + PATIENCE


def test_operations_of_one_store(limited: Limits, clock: Clock) -> None:
    """They go one after the other, and what was not used in an idle time is gone."""
    alone = limited(100.0)
    first = alone._begin(1, soon())
    assert [round(100 * (alone._begin(1, soon()) - first)) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert round(100 * (alone._begin(10, soon()) - first)) == 6
    assert round(100 * (alone._begin(1, soon()) - first)) == 16
    clock.ahead += 3600.0
    later = [alone._begin(1, soon()) for _ in range(3)]
    assert [round(100 * (begin - later[0])) for begin in later] == [0, 1, 2]
    with pytest.raises(bk.OperationTimeoutError, match="limit of 100 operations per second"):
        alone._begin(1, clock.monotonic())
    assert alone._begin(1, soon()) - later[0] == pytest.approx(0.03, abs=0.001)
    assert (alone.limits.write_ops, alone.limits.read_ops) == (10, 10)
    writes = limited(0.5, writes_only=True)
    assert (writes.limits.write_ops, writes.limits.read_ops > 1) == (1, True)


def test_a_shared_budget(limited: Limits, clock: Clock) -> None:
    """All together keep the rate, each has its part, and one that has died leaves it to others."""
    clients = [limited(1000.0, "b") for _ in range(3)]
    begins: list[tuple[float, int]] = []

    def go(who: list[int], until: float, ahead: float = 0.0) -> None:
        while min(clients[one]._next for one in who) < until:
            one = min(who, key=lambda one: clients[one]._next)
            clock.ahead += max(0.0, clients[one]._next - clock.monotonic())
            clock.wrong = ahead if one == 1 else 0.0
            begins.append((clients[one]._begin(1, soon()), one))

    def counted(first: float, last: float) -> Counter[int]:
        return Counter(one for begin, one in begins if start + first <= begin < start + last)

    start = clock.monotonic()
    go([0, 1, 2], start + 3.0)
    go([0, 1], start + 6.0)
    times = sorted(begin for begin, _ in begins)
    assert all(times[place + 300] - times[place] > 0.295 for place in range(len(times) - 300))
    shares = counted(0.0, 3.0)
    assert max(shares.values()) - min(shares.values()) <= 100
    assert counted(3.5, 5.5).total() > 1900
    # A clock that is half a second ahead makes no more, but for that half second.
    go([0, 1], start + 12.0, ahead=0.5)
    assert 5000 < counted(6.5, 11.5).total() + 500 < 6010


def test_too_many_requests(limited: Limits, clock: Clock) -> None:
    """A server that has had too many gets none for a while, from all who share the budget."""
    one, other = limited(1000.0, "b"), limited(1000.0, "b")
    now = clock.monotonic()
    one._begin(1, soon())
    one.tally.on_busy()
    assert one._begin(1, soon()) - now >= 0.5
    assert other._begin(1, soon()) - now >= 0.6
    alone = limited(1000.0)
    before = alone._begin(1, soon())
    alone.tally.on_busy()
    assert alone._begin(1, soon()) - before >= 0.5


def test_a_store(fresh_url: Callable[[str], str]) -> None:
    """Its operations wait; one whose time is too late was not sent; a close ends the wait."""
    limit = bk.RateLimit(0.1, "slow")
    with pytest.raises(bk.StoreClosedError):
        limit.wait()
    url = fresh_url("etcd")
    with bk.open_store(url) as other, bk.open_store(url, rate_limit=limit) as store:
        result(store.put("/a", b"1"))
        late = error(store.put("/b", b"1", timeout=0.05))
        assert (type(late), late.outcome) == (bk.OperationTimeoutError, "not_applied")
        assert (result(other.exists("/a")), result(other.exists("/b"))) == (True, False)
        assert result(other.get_children("/")) == ["a"]
        waiting = store.get("/a", timeout=PATIENCE)
        until(waiting.running)
        store.close(0)
        assert isinstance(error(waiting), bk.StoreClosedError)
        with pytest.raises(bk.InvalidSettingError, match="of one store"):
            bk.open_store(url, rate_limit=limit)
    with bk.open_store(url, rate_limit=10_000) as store:
        assert all(outcome.ok for outcome in store.apply([bk.Put(f"/{n}", b"") for n in range(99)]))
    for wrong in (0, -1.0, float("nan"), float("inf"), True, "5"):
        with pytest.raises(bk.InvalidSettingError, match="rate must be a number of operations"):
            bk.open_store(url, rate_limit=wrong)  # type: ignore[arg-type]
    with pytest.raises(bk.UnsupportedError, match="memory:// has none"):
        bk.open_store("memory://a", rate_limit=bk.RateLimit(1.0, "b"))
    for options in ({"budget": "a/b"}, {"budget": 1}, {"writes_only": 1}):
        with pytest.raises(bk.InvalidSettingError):
            bk.RateLimit(1.0, **options)  # type: ignore[arg-type]


def test_an_outage(own_etcd: Callable[[], EtcdServer]) -> None:
    """Operations end as they would without a limit, and so do waits."""
    server, limit = own_etcd(), bk.RateLimit(1000.0, "b")
    with bk.open_store(server.url, rate_limit=limit, operation_timeout=1.0) as store:
        result(store.put("/a", b"1"))
        assert limit._limited is not None
        limit._limited._process += 1  # as in a forked child
        with pytest.raises(bk.StoreClosedError):
            limit.wait()
        limit._limited._process -= 1
        server.kill()
        limit.wait()
        until(lambda: isinstance(error(store.get("/a", timeout=0.3)), bk.StoreUnavailableError))
        server.restart()
        until(lambda: store.exists("/a").exception(PATIENCE) is None)

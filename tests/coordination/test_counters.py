"""Counters: numbers are unique and grow, for all callers and despite all failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching.background import Gate
from batchkeeper.coordination import Counter
from batchkeeper.ops.errors import ValueDecodeError
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import SERVERS

from ..forks import holds_in_a_child
from ..waiting import error, result, until
from .recipes import begun, worker

END = 2**63 - 1


@pytest.fixture
def faulty(fresh_url: Callable[[str], str], faults: FaultInjector) -> Any:
    """A store in memory with faults."""
    with bk.open_store(fresh_url("memory"), wrap=faults) as store:
        yield store


def value(store: bk.MetadataStore, path: str = "/c") -> bytes:
    found = result(store.get(path))
    assert found is not None
    return found.value


def test_numbers_begin_at_zero(store_url: str) -> None:
    """The numbers are 0, 1, 2 ..., and the value at the path is the first that no block has."""
    with bk.open_store(store_url) as store:
        counter = Counter(store, "/c/deep", block=3)
        assert [counter.next() for _ in range(3)] == [0, 1, 2]
        assert value(store, "/c/deep") == b"3"
        assert counter.next() == 3
        assert value(store, "/c/deep") == b"6"


def test_objects_share_the_numbers(store_url: str) -> None:
    """Each object hands out blocks of its own, and no number is handed out twice."""
    with bk.open_store(store_url) as store:
        one, other = Counter(store, "/c", block=2), Counter(store, "/c", block=3)
        assert [one.next(), other.next(), one.next(), one.next()] == [0, 2, 1, 5]
        assert [other.next(), other.next(), other.next()] == [3, 4, 7]


def test_a_restart_skips_the_rest_of_a_block(fresh_url: Callable[[str], str]) -> None:
    """Whoever opens the store again gets greater numbers."""
    url = fresh_url("rocksdb")
    with bk.open_store(url) as store:
        assert Counter(store, "/c", block=10).next() == 0
    with bk.open_store(url) as store:
        assert Counter(store, "/c", block=10).next() == 10


def test_a_block_in_hand_costs_no_request(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """A block costs a get and a put, and its numbers nothing, even after the store is closed."""
    counter = Counter(faulty, "/c")
    assert counter.next() == 0
    calls = len(faults.calls)
    assert calls == 2
    faulty.close()
    assert [counter.next() for _ in range(999)] == [*range(1, 1000)]
    assert len(faults.calls) == calls
    with pytest.raises(bk.StoreClosedError):
        counter.next()


def test_threads_race_at_the_ends_of_blocks(store_url: str) -> None:
    """Threads that share objects get each number once; a call that begins later gets more."""
    with bk.open_store(store_url) as store:
        counters = [Counter(store, "/c", block=2), Counter(store, "/c", block=1)]
        returned: dict[Counter, list[int]] = {counter: [] for counter in counters}

        def take(counter: Counter) -> None:
            mine = returned[counter]
            for i in range(40):
                before = max(mine, default=-1)  # of all threads
                numbers = counter.reserve(2) if i % 10 == 9 else [counter.next()]
                assert min(numbers) > before
                mine.extend(numbers)

        for taking in [begun(take, counter) for counter in counters * 3]:
            result(taking)
        numbers = returned[counters[0]] + returned[counters[1]]
        assert len(numbers) == len(set(numbers)) == 6 * (36 + 2 * 4)
        assert int(value(store)) > max(numbers)


def test_many_threads_with_a_block_in_hand(faulty: bk.MetadataStore) -> None:
    """Threads that take numbers without a lock get none twice, in 100,000 of them."""
    counter = Counter(faulty, "/c", block=997)
    taking = [begun(lambda: [counter.next() for _ in range(25_000)]) for _ in range(4)]
    each = [result(numbers) for numbers in taking]
    assert all(numbers == sorted(numbers) for numbers in each)
    assert len(set().union(*each)) == 100_000


def test_reserved_numbers(store_url: str) -> None:
    """A reservation is a range of its own; the numbers after it are greater."""
    with bk.open_store(store_url) as store:
        counter = Counter(store, "/c", block=10)
        assert counter.reserve(3) == range(3)
        assert counter.next() == 3
        assert counter.reserve(5) == range(13, 18)
        assert counter.next() == 18
        assert value(store) == b"28"


@pytest.mark.parametrize("count", [0, -1, 1.0, True, 2**32 + 1, "1", None])
def test_bad_counts(faulty: bk.MetadataStore, count: Any) -> None:
    """Blocks and reservations are from 1 to 2**32."""
    with pytest.raises(bk.InvalidSettingError, match="block must be"):
        Counter(faulty, "/c", block=count)
    with pytest.raises(bk.InvalidSettingError, match="n must be"):
        Counter(faulty, "/c").reserve(count)
    with pytest.raises(bk.InvalidPathError):
        Counter(faulty, "c")
    assert result(faulty.get_children("/")) == []


@pytest.mark.parametrize(
    "foreign", [b"", b"-1", b" 7", b"7\n", b"1.5", b"1_0", b"%d" % (END + 1), b"\0\0\0\5"]
)
def test_a_foreign_value(faulty: bk.MetadataStore, foreign: bytes) -> None:
    """A value that is not a number stays unchanged, and the error has its path and version."""
    faulty.put("/c", b"0").result()
    faulty.put("/c", foreign).result()
    counter = Counter(faulty, "/c")
    for call in (counter.next, lambda: counter.reserve(1)):
        with pytest.raises(ValueDecodeError) as caught:
            call()
        assert (caught.value.path, caught.value.version) == ("/c", 1)
    assert value(faulty) == foreign
    faulty.put("/c", b"7").result()
    assert counter.next() == 7


def test_the_end_of_the_numbers(faulty: bk.MetadataStore) -> None:
    """The value at the path stays a signed 64-bit integer; what does not fit is an error."""
    faulty.put("/c", b"%d" % (END - 5)).result()
    counter = Counter(faulty, "/c", block=3)
    assert [counter.next(), counter.next()] == [END - 5, END - 4]
    with pytest.raises(OverflowError):
        counter.reserve(3)
    assert counter.next() == END - 3
    with pytest.raises(OverflowError):
        counter.next()
    assert counter.reserve(2) == range(END - 2, END)
    assert value(faulty) == b"%d" % END


@pytest.mark.parametrize("applied", [True, False])
def test_a_put_without_an_answer(
    faulty: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """A block whose put may have been applied is never handed out."""
    counter = Counter(faulty, "/c", block=10)
    faults.lose_answer("put", "/c", applied=applied)
    assert counter.next() == (10 if applied else 0)
    assert Counter(faulty, "/c").next() == (20 if applied else 10)
    assert not faults.armed


def test_somebody_is_quicker(fresh_url: Callable[[str], str], faults: FaultInjector) -> None:
    """A block that another takes between the look and the put is left to him."""
    url = fresh_url("memory")
    with bk.open_store(url) as other, bk.open_store(url, wrap=faults) as store:
        held = faults.delay("put", "/c")
        slow = begun(Counter(store, "/c").next)
        held.wait()
        assert Counter(other, "/c").next() == 0
        held.release()
        assert result(slow) == 1000


def test_a_counter_that_is_lowered(faulty: bk.MetadataStore) -> None:
    """If somebody lowers or deletes the value, the numbers of one object still grow."""
    counter = Counter(faulty, "/c", block=1)
    assert [counter.next(), counter.next()] == [0, 1]
    faulty.put("/c", b"0").result()
    assert counter.next() == 2
    faulty.delete("/c").result()
    assert counter.reserve(2) == range(3, 5)


class CountingGate(Gate):
    """A gate that shows how many have come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[float | None] = []

    def enter(self, timeout: float | None = None) -> bool:
        self.arrived.append(timeout)
        return super().enter(timeout)


def five_wait(store: bk.MetadataStore, faults: FaultInjector) -> list[Any]:
    """Let five threads wait for one get of a counter; return their futures when it goes on."""
    gate = CountingGate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batchkeeper.coordination._sync.counters.Gate", lambda: gate)
        counter = Counter(store, "/c")
    held = faults.delay("get", "/c")
    waiting = [begun(counter.next)]
    held.wait()
    waiting += [begun(counter.next) for _ in range(4)]
    until(lambda: len(gate.arrived) == 5)
    held.release()
    return waiting


def test_a_block_is_for_all_who_wait(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """Threads that find the block empty at the same time take one block for all of them."""
    waiting = five_wait(faulty, faults)
    assert sorted(map(result, waiting)) == [*range(5)]
    assert [kind for call in faults.calls for kind in call.kinds] == ["get", "put"]


def test_an_error_is_for_all_who_wait(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """Threads that wait for one request share its error, each as an exception of its own."""
    faulty.put("/c", b"foreign").result()
    errors = [error(taking) for taking in five_wait(faulty, faults)]
    assert len({id(one) for one in errors}) == 5
    assert {type(one) for one in errors} == {ValueDecodeError}
    assert [kind for call in faults.calls for kind in call.kinds] == ["put", "get"]
    faulty.put("/c", b"3").result()
    assert Counter(faulty, "/c").next() == 3


def test_a_failed_request(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """An error that the caller can act on is his; the next call asks again."""
    counter = Counter(faulty, "/c")
    faults.fail("get", "/c")
    with pytest.raises(bk.StoreUnavailableError):
        counter.next()
    faults.fail("put", "/c")
    with pytest.raises(bk.StoreUnavailableError):
        counter.reserve(2)
    assert counter.next() == 0


def test_a_forked_child(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """A child hands out nothing of the parent's block, even if a thread was taking another."""
    counter, busy = Counter(faulty, "/c"), Counter(faulty, "/busy")
    assert counter.next() == 0
    held = faults.delay("get", "/busy")
    taking = begun(busy.next)
    held.wait()

    def refused(one: Counter) -> bool:
        try:
            one.next()
        except bk.StoreClosedError:
            return True
        return False

    assert holds_in_a_child(lambda: refused(counter) and refused(busy))
    assert counter.next() == 1
    held.release()
    assert result(taking) == 0


TAKE = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import Counter
with bk.open_store(sys.argv[1]) as store:
    counter = Counter(store, "/c", block=7)
    while True:
        print(counter.next(), flush=True)
"""


@pytest.mark.server
@pytest.mark.parametrize("kind", SERVERS)
def test_processes_that_are_killed(fresh_url: Callable[[str], str], kind: str) -> None:
    """Processes get no number twice, and growing ones each, even if some are killed."""
    url = fresh_url(kind)
    taken: list[int] = []

    def take_of(amount: int) -> None:
        with worker(TAKE, url) as process:
            assert process.stdout is not None
            numbers = [int(process.stdout.readline()) for _ in range(amount)]
            process.kill()
            numbers += [int(line) for line in process.stdout if line.endswith("\n")]
        assert numbers == sorted(numbers)
        taken.extend(numbers)

    for taking in [begun(take_of, 200), begun(take_of, 300)]:
        result(taking)
    take_of(10)
    assert len(taken) == len(set(taken))
    assert len(taken) >= 510


@pytest.mark.parametrize("store_url", ["zookeeper"], indirect=True)
def test_a_sum(store_url: str) -> None:
    """Each call adds once, whoever else does, and returns the sum; it may be negative."""
    with bk.open_store(store_url) as store:
        counters = [Counter(store, "/sum") for _ in range(2)]
        adding = [begun(counters[i % 2].add, 1 + i // 4) for i in range(8)]
        sums = {result(one) for one in adding}
        assert len(sums) == 8
        assert max(sums) == counters[0].add(0) == 12
        assert counters[1].add(-20) == -8
        assert value(store, "/sum") == b"-8"
        with pytest.raises(ValueDecodeError):
            counters[0].next()
        bad: list[Any] = [-END, True, 1.0, None, 2**63]
        for n in bad:
            with pytest.raises((OverflowError, bk.InvalidSettingError)):
                counters[0].add(n)


def test_a_sum_without_an_answer(faulty: bk.MetadataStore, faults: FaultInjector) -> None:
    """The call says that it may have added; one that waits meanwhile adds to the result."""
    for path, applied in (("/yes", True), ("/no", False)):
        counter = Counter(faulty, path)
        faults.lose_answer("put", applied=applied)
        held = faults.delay("get")
        unknown = begun(counter.add, 5)
        held.wait()
        later = begun(counter.add, 1)
        held.release()
        assert isinstance(error(unknown), bk.IndeterminateError)
        assert result(later) == (6 if applied else 1)

"""Sequential puts: the store appends ten digits, which grow for each parent and never repeat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import contents
from ..waiting import PATIENCE, error, result

pytestmark = pytest.mark.needs("sequences")

Opens = Callable[[], bk.MetadataStore]


def number_of(stat: bk.Stat, path: str) -> int:
    """Return the number that a sequential put of ``path`` got, which must be ten digits."""
    match = re.fullmatch(re.escape(path) + r"(\d{10})", stat.path)
    assert match, stat.path
    return int(match[1])


def test_the_path_gets_ten_digits(store: bk.MetadataStore) -> None:
    """The stat has the real path, and the value is there and nowhere else."""
    stat = result(store.put("/queue/job-", b"1", sequential=True))
    number_of(stat, "/queue/job-")
    assert (stat.version, stat.ephemeral) == (0, False)
    assert result(store.get(stat.path)) == bk.GetResult(b"1", stat)
    assert result(store.exists("/queue/job-")) is False
    assert contents(store) == {stat.path: b"1"}


def test_the_numbers_grow(store: bk.MetadataStore) -> None:
    """Each put that begins after another has ended gets a greater number."""
    numbers = [
        number_of(result(store.put("/q/n-", b"", sequential=True)), "/q/n-") for _ in range(20)
    ]
    assert numbers == sorted(set(numbers))


def test_all_names_below_a_parent_share_its_numbers(store: bk.MetadataStore) -> None:
    """The numbers grow for a parent, whatever name they are appended to, and if to none."""
    numbers = []
    for n in range(12):
        name = ("/q/a-", "/q/b-", "/q/")[n % 3]
        numbers.append(number_of(result(store.put(name, b"", sequential=True)), name))
    assert numbers == sorted(set(numbers))


def test_parents_have_numbers_of_their_own(store: bk.MetadataStore) -> None:
    """What happens below one parent does not move the numbers of another."""
    first = number_of(result(store.put("/a/n", b"", sequential=True)), "/a/n")
    for _ in range(10):
        result(store.put("/b/n", b"", sequential=True))
    assert number_of(result(store.put("/a/n", b"", sequential=True)), "/a/n") == first + 1


def test_the_root_is_a_parent_too(store: bk.MetadataStore) -> None:
    """Sequential paths may lie at the top of the store, where hidden names do not show."""
    stats = [result(store.put("/top-", b"", sequential=True)) for _ in range(3)]
    stats.insert(0, result(store.submit(bk.Put("/", b"", sequential=True))))
    assert result(store.get_children("/")) == sorted(stat.path[1:] for stat in stats)


def test_thousands_below_one_parent_in_one_go(store: bk.MetadataStore) -> None:
    """2,000 puts of one bulk call get 2,000 numbers, and each value is at its own path."""
    outcomes = store.apply([bk.Put("/q/n-", b"%d" % n, sequential=True) for n in range(2_000)])
    stats = [outcome.result for outcome in outcomes]
    assert all(isinstance(stat, bk.Stat) and stat.version == 0 for stat in stats)
    assert len({number_of(stat, "/q/n-") for stat in stats}) == 2_000
    found = contents(store)
    assert {stat.path: b"%d" % n for n, stat in enumerate(stats)} == found
    assert result(store.get_children("/q")) == sorted(path[3:] for path in found)


def test_numbers_are_unique_under_concurrency(store: bk.MetadataStore, another: Opens) -> None:
    """Eight threads on two clients get different numbers, and each thread's own numbers grow."""
    clients = [store, another()]

    def put(thread: int) -> list[int]:
        client = clients[thread % 2]
        return [
            number_of(result(client.put("/q/n-", b"", sequential=True)), "/q/n-") for _ in range(40)
        ]

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(put, range(8)))
    assert all(own == sorted(own) for own in numbers)
    assert len({number for own in numbers for number in own}) == 320


def test_numbers_grow_in_the_order_of_commits(store: bk.MetadataStore, another: Opens) -> None:
    """Of two sequential values, the one with the greater number has no smaller revision."""
    clients = [store, another()]
    futures = [clients[n % 2].put("/q/n-", b"", sequential=True) for n in range(200)]
    stats = sorted((result(future) for future in futures), key=lambda stat: stat.path)
    revisions = [stat.revision for stat in stats]
    assert revisions == sorted(revisions)


def test_numbers_do_not_come_again(store: bk.MetadataStore) -> None:
    """Deleting some or all of the children never makes a number come again."""
    used: set[int] = set()
    for _ in range(5):
        stats = [result(store.put("/q/n-", b"", sequential=True)) for _ in range(4)]
        numbers = {number_of(stat, "/q/n-") for stat in stats}
        assert not numbers & used
        assert not used or min(numbers) > max(used)
        used |= numbers
        for future in [store.delete(stat.path) for stat in stats]:
            result(future)


def test_numbers_outlast_the_client(store: bk.MetadataStore, successor: Opens) -> None:
    """A client that is opened later continues the numbers."""
    result(store.put("/q", b"parent"))  # so that it stays on every store
    last = max(
        number_of(result(store.put("/q/n-", b"", sequential=True)), "/q/n-") for _ in range(5)
    )
    stat = result(successor().put("/q/n-", b"", sequential=True))
    assert number_of(stat, "/q/n-") > last


def test_the_parent_keeps_its_value(store: bk.MetadataStore) -> None:
    """Sequential puts change neither the value nor the version of their parent."""
    before = result(store.put("/q", b"value"))
    for future in [store.put("/q/n", b"", sequential=True) for _ in range(50)]:
        result(future)
    assert result(store.get("/q")) == bk.GetResult(b"value", before)


def test_missing_parents_are_no_obstacle(store: bk.MetadataStore) -> None:
    """A sequential put makes its parents like any put; they hold no value."""
    stat = result(store.put("/x/y/z/n-", b"", sequential=True))
    number_of(stat, "/x/y/z/n-")
    assert result(store.exists("/x/y/z")) is False
    assert result(store.get_children("/x/y/z")) == [stat.path[7:]]


def test_nothing_else_is_to_be_seen(store: bk.MetadataStore) -> None:
    """The store's own counters are in no listing and no scan."""
    stats = [result(store.put(path, b"", sequential=True)) for path in ("/n-", "/q/n-", "/q/n-")]
    assert list(contents(store)) == sorted(stat.path for stat in stats)
    assert result(store.get_children("/")) == sorted([stats[0].path[1:], "q"])
    assert len(result(store.get_children("/q"))) == 2
    assert result(store.delete_recursive("/")) == 3


def test_neighbours_in_a_batch(store: bk.MetadataStore) -> None:
    """Plain, conditional and refused operations beside sequential puts end as they would alone."""
    result(store.put("/a", b""))
    ops: list[bk.Operation] = []
    for n in range(100):
        ops += [
            bk.Put("/q/n-", b"", sequential=True),
            bk.Put(f"/plain/{n}", b""),
            bk.Put(f"/missing/{n}", b"", 3),
            bk.Delete(f"/nothing/{n}"),
        ]
    outcomes = store.apply(ops)
    assert len({outcome.result.path for outcome in outcomes[::4]}) == 100
    assert all(outcome.ok for outcome in outcomes[1::4])
    assert all(isinstance(outcome.error, bk.BadVersionError) for outcome in outcomes[2::4])
    assert all(isinstance(outcome.error, bk.NotFoundError) for outcome in outcomes[3::4])


def test_later_puts_of_the_real_path(store: bk.MetadataStore) -> None:
    """The real path is a path like any other: it has versions and can be deleted."""
    stat = result(store.put("/q/n-", b"0", sequential=True))
    assert result(store.put(stat.path, b"1", expected_version=0)).version == 1
    result(store.delete(stat.path, expected_version=1))
    assert contents(store) == {}


@pytest.mark.needs("ephemerals")
def test_ephemeral_and_sequential(store: bk.MetadataStore, successor: Opens) -> None:
    """A sequential value may be ephemeral, and goes with its session; its number is not reused."""
    result(store.put("/q", b""))
    stats = [
        result(store.put("/q/member-", b"", ephemeral=True, sequential=True)) for _ in range(3)
    ]
    numbers = [number_of(stat, "/q/member-") for stat in stats]
    assert numbers == sorted(set(numbers))
    assert all(stat.ephemeral and stat.owned for stat in stats)
    after = successor()
    following = result(after.put("/q/member-", b"", ephemeral=True, sequential=True))
    assert number_of(following, "/q/member-") > max(numbers)
    assert following.owned


def test_absent_is_what_a_sequential_put_expects(store: bk.MetadataStore) -> None:
    """ABSENT may be expected; a version or a revision may not, because the path is new."""
    number_of(result(store.put("/n-", b"", bk.ABSENT, sequential=True)), "/n-")
    for expected in (0, 7):
        with pytest.raises(bk.InvalidSettingError, match="expected_version"):
            store.put("/n-", b"", expected, sequential=True)
    with pytest.raises(bk.MetadataStoreError) as caught:
        store.put("/n-", b"", sequential=True, expected_revision=1)
    assert isinstance(caught.value, bk.InvalidSettingError | bk.UnsupportedError)
    assert len(contents(store)) == 1


@pytest.mark.call
@pytest.mark.parametrize("bad", ["yes", 1, None])
def test_the_flag_is_a_bool(store: bk.MetadataStore, bad: Any) -> None:
    """Anything but a bool is refused by the call."""
    for call in (store.put, bk.Put):
        with pytest.raises(bk.InvalidSettingError, match="sequential"):
            call("/a", b"", sequential=bad)


@pytest.mark.call
@pytest.mark.parametrize("bad", ["/q//", "q/n-", "//", ""])
def test_the_path_is_a_path_without_the_digits(store: bk.MetadataStore, bad: str) -> None:
    """The path rule holds for the path as it is given."""
    with pytest.raises(bk.InvalidPathError):
        store.put(bad, b"", sequential=True)


def test_a_closed_store_counts_nothing(store: bk.MetadataStore) -> None:
    """After close, a sequential put is StoreClosedError, like any other."""
    store.close()
    with pytest.raises(bk.StoreClosedError):
        store.put("/n-", b"", sequential=True)


def test_a_refused_put_says_its_own_path(store: bk.MetadataStore) -> None:
    """An error of a sequential put names the path that was given."""
    large = bytes(17 * 1024 * 1024)
    with pytest.raises(bk.ValueTooLargeError) as caught:
        store.put("/q/n-", large, sequential=True)
    assert caught.value.path == "/q/n-"
    assert error(store.put("/q/n-", b"", expected_version=1)).path == "/q/n-"


def test_tasks(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face puts sequential values, many at a time."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                stats = await asyncio.gather(
                    *(store.put("/q/n-", b"", sequential=True) for _ in range(200))
                )
                assert len({number_of(stat, "/q/n-") for stat in stats}) == 200
                assert len(await store.get_children("/q")) == 200

    asyncio.run(main())

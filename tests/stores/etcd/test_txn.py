"""The bytes of etcd's transactions, compared with etcd3's message classes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops import ABSENT, Delete, Exists, Get, GetChildren, Put
from batchkeeper.stores.etcd.codecs import FIRST_PAGE
from batchkeeper.stores.etcd.protos import messages
from batchkeeper.stores.etcd.txn import flat_write, grouped, nested_write, read_request

PREFIX = "/prä"

# Lengths on both sides of where one byte of length becomes two, and two become three.
names = st.text("aé/日", min_size=1, max_size=4).map(lambda name: "/" + name.replace("/", "-"))
lengths = st.sampled_from([0, 1, 90, 126, 127, 128, 4000, 4096, 16_383, 16_384, 70_000])
paths = st.builds(lambda name, count: name * count, names, st.sampled_from([1, 30, 60]))
values = lengths.map(lambda length: b"v" * length)
puts = st.builds(Put, paths, values, st.sampled_from([None, ABSENT, 0, 126, 127, 2**31 - 1]))
deletes = st.builds(Delete, paths, st.sampled_from([None, 0, 127, 2**31 - 1]))


def key_of(path: str) -> bytes:
    """Return the key of a path."""
    return (PREFIX + path).encode()


def compares(operation: Any) -> list[Any]:
    """Return the guards of a write, as etcd's messages."""
    key, expected = key_of(operation.path), operation.expected_version
    if expected is None:
        guards = [messages.Compare(key=key, result="GREATER", target="VERSION", version=0)]
    else:
        guards = [messages.Compare(key=key, result="EQUAL", target="VERSION", version=expected + 1)]
    if isinstance(operation, Delete):
        below = messages.Compare(key=key + b"/", range_end=key + b"0", target="VERSION", version=0)
        guards.append(below)
    return guards


def change(operation: Any) -> Any:
    """Return the operations of a write, as etcd's messages."""
    key = key_of(operation.path)
    if isinstance(operation, Delete):
        return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))
    plain = operation.expected_version is None
    put = messages.PutRequest(key=key, value=operation.value, prev_kv=plain)
    return messages.RequestOp(request_put=put)


def looks(operation: Any) -> list[Any]:
    """Return the reads of a refused write, as etcd's messages."""
    key = key_of(operation.path)
    ranges = [messages.RangeRequest(key=key, keys_only=True)]
    if isinstance(operation, Delete):
        below = messages.RangeRequest(key=key + b"/", range_end=key + b"0", limit=1, keys_only=True)
        ranges.append(below)
    return [messages.RequestOp(request_range=found) for found in ranges]


def is_plain(operation: Any) -> bool:
    """Whether a write cannot fail."""
    return isinstance(operation, Put) and operation.expected_version is None


def own_transaction(operation: Any) -> Any:
    """Return a write as an operation of a nested batch, as etcd's message."""
    if is_plain(operation):
        return change(operation)
    return messages.RequestOp(
        request_txn=messages.TxnRequest(
            compare=compares(operation), success=[change(operation)], failure=looks(operation)
        )
    )


@given(st.lists(puts | deletes, max_size=5))
def test_a_nested_batch_gives_each_operation_a_transaction(operations: list[Any]) -> None:
    """A write that can fail has its own guards and reads; an unconditional put has none."""
    parsed = messages.TxnRequest.FromString(b"".join(nested_write(operations, PREFIX)))
    assert parsed == messages.TxnRequest(success=map(own_transaction, operations))


@given(st.lists(puts | deletes, min_size=1, max_size=12), st.integers(1, 5))
def test_groups_hold_all_operations_in_order(operations: list[Any], size: int) -> None:
    """No group is larger than asked, they differ by one at most, and nothing is lost."""
    parsed = messages.TxnRequest.FromString(grouped(nested_write(operations, PREFIX), size))
    groups = [group.request_txn.success for group in parsed.success]
    sizes = {len(group) for group in groups}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert [found for group in groups for found in group] == [*map(own_transaction, operations)]


@given(st.lists(puts | deletes, max_size=5))
def test_a_flat_batch_stands_or_falls_as_one(operations: list[Any]) -> None:
    """All guards are in front, and on failure every path with a guard is looked at."""
    guarded = [operation for operation in operations if not is_plain(operation)]
    assert messages.TxnRequest.FromString(flat_write(operations, PREFIX)) == messages.TxnRequest(
        compare=[guard for operation in guarded for guard in compares(operation)],
        success=map(change, operations),
        failure=[look for operation in guarded for look in looks(operation)],
    )


@given(paths)
def test_reads_are_ranges(path: str) -> None:
    """A get reads a key, an exists counts it, a get_children begins with one page of keys."""
    operations = [Get(path), Exists(path), GetChildren(path), GetChildren("/")]
    key, root = key_of(path), PREFIX.encode()
    ranges = [
        messages.RangeRequest(key=key),
        messages.RangeRequest(key=key, count_only=True),
        *(
            messages.RangeRequest(
                key=above + b"/", range_end=above + b"0", limit=FIRST_PAGE, keys_only=True
            )
            for above in (key, root)
        ),
    ]
    parsed = messages.TxnRequest.FromString(read_request(operations, PREFIX))
    assert parsed == messages.TxnRequest(
        success=[messages.RequestOp(request_range=found) for found in ranges]
    )


@pytest.mark.parametrize("expected", [None, 3])
def test_the_order_of_a_delete_s_looks_is_fixed(expected: int | None) -> None:
    """The version comes first and what is below second, as the answers are read."""
    (field,) = nested_write([Delete("/a", expected)], "")
    failure = messages.TxnRequest.FromString(field).success[0].request_txn.failure
    assert [look.request_range.key for look in failure] == [b"/a", b"/a/"]

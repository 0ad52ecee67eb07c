"""The bytes of etcd's transactions, compared with etcd3's message classes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops import ABSENT, Check, Delete, Exists, Get, GetChildren, Put, Transaction
from batchkeeper.ops.steps import At, Step, step_of
from batchkeeper.stores.etcd.reads.ranges import FIRST_PAGE, read_request
from batchkeeper.stores.etcd.session.session import SessionLease
from batchkeeper.stores.etcd.wire.batches import even_parts
from batchkeeper.stores.etcd.wire.fields import none_within
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes.counters import Counters
from batchkeeper.stores.etcd.writes.forms import form_of, operations_of, weight_of
from batchkeeper.stores.etcd.writes.groups import session_exists
from batchkeeper.stores.etcd.writes.hot import nested_write
from batchkeeper.stores.etcd.writes.pending import OtherForm, Terms
from batchkeeper.stores.etcd.writes.plan import FlatPlan, NestedPlan

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
    parsed = messages.TxnRequest.FromString(nested_write(operations, PREFIX))
    assert parsed == messages.TxnRequest(success=map(own_transaction, operations))


checks = st.builds(Check, paths, st.sampled_from([ABSENT, 0, 126, 127, 2**31 - 1]))
expecting = puts.filter(lambda put: put.expected_version is not None)
by_version = st.lists(
    checks | expecting,
    min_size=1,
    max_size=4,
    unique_by=lambda part: part.path,
)


@given(by_version)
def test_a_transaction_is_one_of_the_nested_ones(parts: list[Any]) -> None:
    """It has the guards, the changes and the reads of its parts, in order."""
    parsed = messages.TxnRequest.FromString(nested_write([Transaction(parts)], PREFIX))
    own = messages.TxnRequest(
        compare=[guard for part in parts for guard in compares(part)],
        success=[change(part) for part in parts if isinstance(part, Put)],
        failure=[look for part in parts for look in looks(part)],
    )
    assert parsed == messages.TxnRequest(success=[messages.RequestOp(request_txn=own)])


@given(by_version)
def test_a_transaction_minds_leases_where_there_are_sessions(parts: list[Any]) -> None:
    """A put that expects a value then keeps the lease of its key; one that creates has none."""
    plan = NestedPlan([Transaction(parts)], TERMS, 32, b"", Counters(""))
    (group,) = messages.TxnRequest.FromString(plan.body).success
    (own,) = group.request_txn.success
    changes = [change.request_put for change in own.request_txn.success]
    kept = [part.expected_version != ABSENT for part in parts if isinstance(part, Put)]
    assert [put.ignore_lease for put in changes] == kept
    assert not any(put.lease for put in changes)


@given(st.lists(st.integers(), max_size=40), st.integers(1, 5))
def test_even_parts_hold_all_items_in_order(items: list[int], size: int) -> None:
    """No part is larger than asked, they differ by one at most, and nothing is lost."""
    parts = even_parts(items, size)
    sizes = {len(part) for part in parts} or {1}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert [item for part in parts for item in part] == items


TERMS = Terms(PREFIX, lambda _lease: False)
SESSION = SessionLease(7587890123456789, b"/s/.batchkeeper/sessions/1", 1)


def compare(kind: str, key: bytes, result: str, **target: Any) -> Any:
    """Return a condition, as etcd's message."""
    return messages.Compare(key=key, target=kind, result=result, **target)


def put_of(operation: Any, **flags: Any) -> Any:
    """Return the change of a put with flags, as etcd's message."""
    put = messages.PutRequest(key=key_of(operation.path), value=operation.value, **flags)
    return messages.RequestOp(request_put=put)


def careful(operation: Any, *, there: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the parts of a write that minds leases, as etcd's messages."""
    if isinstance(operation, Delete):
        return compares(operation), [change(operation)], looks(operation)
    key, expected = key_of(operation.path), operation.expected_version
    if expected == ABSENT:
        return compares(operation), [put_of(operation)], looks(operation)
    if expected is None and not there:
        guard = compare("LEASE", key, "EQUAL", lease=0)
        return [guard], [put_of(operation, prev_kv=True)], looks(operation)
    kept = put_of(operation, prev_kv=True, ignore_lease=True)
    if expected is None:
        return [compare("VERSION", key, "GREATER", version=0)], [kept], looks(operation)
    return compares(operation), [kept], looks(operation)


@given(st.lists(puts | deletes, max_size=5), st.booleans())
def test_a_flat_batch_stands_or_falls_as_one(operations: list[Any], there: bool) -> None:
    """All guards are in front; on failure every path is looked at; no put takes a lease away.

    The number of operations is known before they are made.
    """
    again = frozenset((0,)) if there else frozenset[int]()
    others = [OtherForm(operation, again) for operation in operations]
    wanted = [careful(operation, there=there) for operation in operations]
    body = FlatPlan(others, TERMS, Counters("")).body
    assert messages.TxnRequest.FromString(body) == messages.TxnRequest(
        compare=[guard for guards, _, _ in wanted for guard in guards],
        success=[change for _, changes, _ in wanted for change in changes],
        failure=[look for _, _, looks in wanted for look in looks],
    )
    steps = [*map(step_of, operations), Step("/a", At(0, 7), "delete")]
    assert weight_of(steps) == form_of(steps, PREFIX, there=again).weight
    assert operations_of(operations) == weight_of(steps[:-1])


@given(st.lists(puts | deletes, min_size=1, max_size=12), st.integers(1, 5))
def test_without_sessions_a_group_has_one_guard(operations: list[Any], size: int) -> None:
    """Each group asserts that there are no sessions; its members are as fast as can be."""
    guard = none_within(b"/s/", b"/s0")
    body = NestedPlan(operations, TERMS, size, guard, Counters("")).body
    groups = [op.request_txn for op in messages.TxnRequest.FromString(body).success]
    none = messages.Compare(key=b"/s/", range_end=b"/s0", target="VERSION", version=0)
    assert [list(group.compare) for group in groups] == [[none]] * len(groups)
    found = [member for group in groups for member in group.success]
    assert found == [*map(own_transaction, operations)]
    assert max(len(group.success) for group in groups) <= size


LEASE = (
    messages.Compare.DESCRIPTOR.fields_by_name["target"].enum_type.values_by_name["LEASE"].number
)


def unleased(of: Iterable[Any]) -> list[Any]:
    """Return the conditions that no key of these puts has a lease, where it has to exist."""
    return [
        compare("LEASE", key_of(op.path), "EQUAL", lease=0)
        for op in of
        if op.expected_version != ABSENT
    ]


@given(st.lists(puts | deletes, min_size=8, max_size=24), st.integers(1, 9), st.booleans())
def test_puts_that_share_their_conditions_are_one_transaction(
    operations: list[Any], size: int, guarded: bool
) -> None:
    """Their group has the guard, and all of their conditions; other writes have their groups.

    Where there may be sessions, each key that exists must have no lease.
    """
    guard = none_within(b"/s/", b"/s0") if guarded else b""
    joint = [op for op in operations if isinstance(op, Put) and op.expected_version is not None]
    joint = joint if len(joint) >= 8 else []
    body = NestedPlan(operations, TERMS, size, guard, Counters(""), joint=True).body
    groups = [op.request_txn for op in messages.TxnRequest.FromString(body).success]
    guards = [*messages.TxnRequest.FromString(guard).compare]
    # Among the groups of the other writes, only plain ones have puts without options of their own.
    found = [
        group
        for group in groups
        if all(op.HasField("request_put") and not op.request_put.prev_kv for op in group.success)
    ]
    assert [op for group in found for op in group.success] == [*map(change, joint)]
    rest = iter(joint)
    for group in found:
        own = [*islice(rest, len(group.success))]
        assert len(own) <= size
        assert [*group.compare] == [
            *guards,
            *(guard for op in own for guard in compares(op)),
            *([] if guarded else unleased(own)),
        ]
        assert not group.failure
    apart = NestedPlan(operations, TERMS, size, guard, Counters("")).body
    assert (body == apart) == (not joint)


@given(st.lists(by_version, min_size=8, max_size=20), st.integers(3, 9), st.booleans())
def test_transactions_that_share_their_conditions_are_one(
    lists: list[Any], size: int, guarded: bool
) -> None:
    """A group has each condition once, and the changes. Apart are those without puts, and large."""
    guard = none_within(b"/s/", b"/s0") if guarded else b""
    operations = [Transaction(parts) for parts in lists]
    joint = [
        op
        for op in operations
        if any(isinstance(part, Put) for part in op.options.parts) and len(op.options.parts) <= size
    ]
    joint = joint if len(joint) >= 8 else []
    parts = [part for op in joint for part in op.options.parts]
    body = NestedPlan(operations, TERMS, size, guard, Counters(""), joint=True).body
    groups = [op.request_txn for op in messages.TxnRequest.FromString(body).success]
    found = [group for group in groups if group.success[0].HasField("request_put")]
    assert [op for group in found for op in group.success] == [
        change(part) for part in parts if isinstance(part, Put)
    ]
    wanted = {guard.SerializeToString() for part in parts for guard in compares(part)}
    leases = [guard for part in parts if isinstance(part, Put) for guard in unleased([part])]
    missing = [] if guarded else leases
    for group in found:
        own = group.compare[1:] if guarded else group.compare
        versions = [c.SerializeToString() for c in own if c.target != LEASE]
        assert len(set(versions)) == len(versions) <= size
        wanted.difference_update(versions)
        for guard_of_lease in own[len(versions) :]:
            missing.remove(guard_of_lease)
            assert guard_of_lease.key in {op.request_put.key for op in group.success}
        assert not group.failure
    assert not wanted
    assert not missing
    alone = [member for group in groups if group not in found for member in group.success]
    assert len(alone) == len(operations) - len(joint)


def operations_along(txn: Any) -> int:
    """Return the operations along the deepest path into a transaction, as etcd counts them."""
    deeper = [op.request_txn for op in txn.success if op.HasField("request_txn")]
    most = max(len(txn.compare), len(txn.success), len(txn.failure))
    return most + max(map(operations_along, deeper), default=0)


@given(
    st.lists(puts | deletes | by_version.map(Transaction), min_size=1, max_size=24)
    | st.lists(expecting | by_version.map(Transaction), min_size=8, max_size=24),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_the_depth_is_as_etcd_counts(
    operations: list[Any], size: int, guarded: bool, joint: bool
) -> None:
    """It is never less, because etcd would refuse the request, and two more at most."""
    guard = none_within(b"/s/", b"/s0") if guarded else b""
    plan = NestedPlan(operations, TERMS, size, guard, Counters(""), joint=joint)
    found = operations_along(messages.TxnRequest.FromString(plan.body))
    assert found <= plan.depth <= found + 2


creates = st.builds(Put, paths, values, st.just(ABSENT))


@given(
    st.lists(creates | creates | puts, min_size=1, max_size=20, unique_by=lambda put: put.path),
    st.integers(3, 9),
    st.booleans(),
)
def test_ephemeral_creations_that_share_their_conditions_are_one_transaction(
    operations: list[Any], size: int, joint: bool
) -> None:
    """Their group has the condition on the session, and theirs; each put is on its lease."""
    own = [Put(op.path, op.value, op.expected_version, ephemeral=True) for op in operations]
    created = [op for op in own if op.expected_version == ABSENT]
    created = created if joint and len(created) >= 8 else []
    body = NestedPlan(own, TERMS.within(SESSION), size, b"", Counters(""), joint=joint).body
    groups = [op.request_txn for op in messages.TxnRequest.FromString(body).success]
    exists = messages.TxnRequest.FromString(session_exists(TERMS.within(SESSION))).compare[0]
    assert all(group.compare[0] == exists for group in groups)
    found = [group for group in groups if group.success[0].HasField("request_put")]
    assert [guard for group in found for guard in group.compare[1:]] == [
        guard for op in created for guard in compares(op)
    ]
    assert [op for group in found for op in group.success] == [
        put_of(op, lease=SESSION.lease) for op in created
    ]
    assert all(len(group.success) <= size and not group.failure for group in found)
    apart = [member for group in groups if group not in found for member in group.success]
    assert len(apart) == len(own) - len(created)


@given(st.lists(puts | deletes, max_size=12), st.integers(1, 5), st.integers(1, 2**63 - 1))
def test_with_sessions_a_group_of_puts_has_a_guard_for_each(
    operations: list[Any], size: int, lease: int
) -> None:
    """Unconditional puts stand together; others mind leases alone; the session has its group."""
    session = SessionLease(lease, *SESSION[1:])
    own = Put("/own", b"o", ABSENT, ephemeral=True)
    plan = NestedPlan([*operations, own], TERMS.within(session), size, b"", Counters(""))
    groups = [op.request_txn for op in messages.TxnRequest.FromString(plan.body).success]
    plain = [operation for operation in operations if is_plain(operation)]
    together = [group for group in groups if group.success[0].HasField("request_put")]
    assert [guard for group in together for guard in group.compare] == [
        careful(operation)[0][0] for operation in plain
    ]
    assert [put for group in together for put in group.success] == [*map(change, plain)]
    (owned,) = groups[-1].success
    exists = compare("LEASE", session.key, "EQUAL", lease=lease)
    assert list(groups[-1].compare) == [exists]
    assert owned.request_txn == messages.TxnRequest(
        compare=compares(own), success=[put_of(own, lease=lease)], failure=looks(own)
    )
    alone = [op.request_txn for group in groups[:-1] if not group.compare for op in group.success]
    others = [operation for operation in operations if not is_plain(operation)]
    assert sorted(map(bytes, map(messages.TxnRequest.SerializeToString, alone))) == sorted(
        messages.TxnRequest(
            compare=careful(one)[0], success=careful(one)[1], failure=careful(one)[2]
        ).SerializeToString()
        for one in others
    )


@given(puts.filter(lambda put: put.expected_version != ABSENT), st.integers(1, 2**63 - 1))
def test_an_expected_revision_is_a_guard_beside_the_version(put: Put, revision: int) -> None:
    """It is compared for puts and deletes; such a put keeps the lease of its key."""
    key = key_of(put.path)
    wanted = Put(put.path, put.value, put.expected_version, expected_revision=revision)
    guard = compare("MOD", key, "EQUAL", mod_revision=revision)
    plan = NestedPlan(
        [wanted, Delete(f"{put.path}-", expected_revision=revision)],
        TERMS,
        32,
        none_within(b"a", b"b"),
        Counters(""),
    )
    deletes, careful = (
        group.request_txn.success[0].request_txn
        for group in messages.TxnRequest.FromString(plan.body).success
    )
    assert careful.compare[-1] == guard
    assert len(careful.compare) == 1 + (put.expected_version is not None)
    assert careful.success[0].request_put.ignore_lease == (put.expected_version != ABSENT)
    assert [found.target for found in deletes.compare] == [2, 0]  # MOD; and nothing below


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
    field = nested_write([Delete("/a", expected)], "")
    failure = messages.TxnRequest.FromString(field).success[0].request_txn.failure
    assert [look.request_range.key for look in failure] == [b"/a", b"/a/"]

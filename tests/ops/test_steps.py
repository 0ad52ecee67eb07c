"""What a write does to a store, as steps."""

from __future__ import annotations

from batchkeeper.ops import ABSENT, Check, Delete, Put, Transaction
from batchkeeper.ops.steps import At, PutNext, PutValue, Step, lower, steps_in

VALUE = PutValue(b"1", ephemeral=False)


def test_a_put_has_the_condition_that_its_caller_states() -> None:
    """Any state, no value, a version, a revision, or both."""
    puts = [
        Put("/a", b"1"),
        Put("/a", b"1", ABSENT),
        Put("/a", b"1", 0),
        Put("/a", b"1", expected_revision=7),
        Put("/a", b"1", 3, expected_revision=7),
    ]
    conditions = ["any", "absent", At(0, None), At(None, 7), At(3, 7)]

    assert [*map(lower, puts)] == [Step("/a", condition, VALUE) for condition in conditions]


def test_an_option_of_a_put_is_in_its_effect() -> None:
    """An ephemeral put puts a value, and a sequential one a new path, which must be absent."""
    puts = [
        Put("/a", b"1", 3, ephemeral=True),
        Put("/a-", b"", sequential=True),
        Put("/a-", b"1", ABSENT, sequential=True, ephemeral=True),
    ]

    assert [*map(lower, puts)] == [
        Step("/a", At(3, None), PutValue(b"1", ephemeral=True)),
        Step("/a-", "absent", PutNext(b"", ephemeral=False)),
        Step("/a-", "absent", PutNext(b"1", ephemeral=True)),
    ]


def test_a_delete_needs_a_value() -> None:
    """Without another condition, the condition is that there is one."""
    deletes = [Delete("/a"), Delete("/a", 0), Delete("/a", expected_revision=7)]
    conditions = ["exists", At(0, None), At(None, 7)]

    assert [*map(lower, deletes)] == [Step("/a", condition, "delete") for condition in conditions]


def test_a_transaction_has_a_step_for_each_part_in_order() -> None:
    """A check is a step without an effect. One part makes a list, too."""
    checks = [Check("/a", ABSENT), Check("/b", 3, expected_revision=7)]
    parts = [*checks, Put("/c", b"1"), Delete("/d")]
    steps = [
        Step("/a", "absent", "nothing"),
        Step("/b", At(3, 7), "nothing"),
        Step("/c", "any", VALUE),
        Step("/d", "exists", "delete"),
    ]

    assert lower(Transaction(parts)) == steps
    assert lower(Transaction(parts[2:3])) == steps[2:3]
    assert steps_in(steps) == steps
    assert steps_in(steps[2]) == steps[2:3]

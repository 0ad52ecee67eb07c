"""Operations, results and errors as values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest

import batchkeeper as bk
from batchkeeper import ops
from batchkeeper.ops import errors
from batchkeeper.ops.errors import passes
from batchkeeper.ops.exit_codes import exit_code
from batchkeeper.ops.kinds import BRINGS_VALUES, KINDS
from batchkeeper.ops.operations import PutOptions, WriteKind


@dataclasses.dataclass(frozen=True, slots=True)
class _MoreOptions(PutOptions):
    """The options of a later version."""

    guard: int | None = None


ERRORS = [getattr(ops, name) for name in ops.__all__ if name.endswith("Error")]


def test_operations_are_values() -> None:
    """Operations compare and hash by value, and cannot be changed."""
    put = bk.Put("/a", b"1", bk.ABSENT)

    assert put == bk.Put("/a", b"1", expected_version=-1)
    assert hash(put) == hash(bk.Put("/a", b"1", -1))
    assert put != bk.Put("/a", b"1")
    with pytest.raises(FrozenInstanceError):
        put.path = "/b"  # type: ignore[misc]


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab"), b"ab"])
def test_a_value_is_kept_as_bytes_of_its_own(value: bytes | bytearray | memoryview) -> None:
    """Later changes to the caller's buffer do not affect the operation."""
    put = bk.Put("/a", value)  # type: ignore[arg-type]
    if isinstance(value, bytearray):
        value[0] = 0
    assert put.value == b"ab"
    assert type(put.value) is bytes


@pytest.mark.parametrize("value", ["text", None, 7])
def test_a_value_that_is_not_bytes_is_refused(value: object) -> None:
    """Text is refused too, with its type in the message."""
    with pytest.raises(bk.InvalidSettingError, match=f"not {type(value).__name__}"):
        bk.Put("/a", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [-2, 2**31, 1.0, -1.0, "1", True])
def test_an_expected_version_out_of_its_range_is_refused(version: object) -> None:
    """The message holds the version, for puts and for deletes."""
    for make in (lambda: bk.Put("/a", b"", version), lambda: bk.Delete("/a", version)):  # type: ignore[arg-type]
        with pytest.raises(bk.InvalidSettingError, match=repr(version)):
            make()


def test_a_delete_cannot_expect_absence() -> None:
    """A delete cannot expect ABSENT, because there would be nothing to delete."""
    with pytest.raises(bk.InvalidSettingError, match="ABSENT"):
        bk.Delete("/a", bk.ABSENT)


@pytest.mark.parametrize("kind", [bk.Get, bk.Delete, bk.Exists, bk.GetChildren])
def test_every_operation_checks_its_path(kind: type) -> None:
    """No operation can be created with an invalid path."""
    with pytest.raises(bk.InvalidPathError):
        kind("a")


def test_only_get_children_takes_the_root() -> None:
    """The root holds no value."""
    assert bk.GetChildren("/").path == "/"
    with pytest.raises(bk.InvalidPathError):
        bk.Get("/")


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_one_tree_and_survive_copies_and_pickles(kind: type) -> None:
    """Every error keeps its type, message, path and outcome."""
    error = kind("what went wrong", path="/a")

    assert isinstance(error, bk.MetadataStoreError)
    assert error.outcome == ("unknown" if kind is bk.IndeterminateError else "not_applied")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert (str(twin), twin.path, twin.outcome) == ("what went wrong", "/a", error.outcome)


def test_errors_with_more_to_say_keep_it() -> None:
    """Versions, and whether a write is known to have been applied, survive a pickle."""
    bad = pickle.loads(pickle.dumps(bk.BadVersionError("m", path="/a", expected=1, actual=2)))
    unknown = pickle.loads(pickle.dumps(bk.IndeterminateError("m", applied=True)))
    gone = pickle.loads(pickle.dumps(bk.RevisionCompactedError("m", oldest=7)))

    assert (bad.expected, bad.actual) == (1, 2)
    assert unknown.applied is True
    assert gone.oldest == 7


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_made_for_each_operation_and_chain_their_cause(kind: type) -> None:
    """The copy for one of several operations has its path, and the original stays as it was."""
    error = kind("what went wrong")
    error.__cause__ = ValueError("the reason")
    own = error.for_path("/a")
    assert (type(own), str(own), own.path, error.path) == (kind, "what went wrong", "/a", None)
    assert own.__cause__ is error.__cause__
    assert own.args == ("what went wrong",)


def test_what_may_be_submitted_again_is_said_by_the_class() -> None:
    """An error is retriable if nothing changed and a retry may succeed; never if unknown."""
    retriable = {kind for kind in ERRORS if kind.retriable}
    assert retriable == {
        bk.LockBusyError,
        bk.OperationTimeoutError,
        bk.QueueFullError,
        bk.StoreUnavailableError,
    }
    assert [kind for kind in ERRORS if kind.outcome == "unknown"] == [bk.IndeterminateError]
    assert {kind for kind in ERRORS if passes(kind)} == {*retriable, bk.IndeterminateError}
    assert passes(bk.IndeterminateError("m"))


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The table names every class, with its outcome, and whether it is retriable."""
    drawn = re.findall(
        r"── (\w+Error).*?(not_applied|unknown) +(yes|no)$", errors.__doc__ or "", re.MULTILINE
    )
    assert {name: (outcome, said == "yes") for name, outcome, said in drawn} == {
        kind.__name__: (kind.outcome, kind.retriable)
        for kind in ERRORS
        if kind is not bk.MetadataStoreError
    }


def test_an_error_that_comes_as_a_name_is_found() -> None:
    """From another process, only the name of an error's class arrives."""
    assert [errors.error_class(kind.__name__) for kind in ERRORS] == ERRORS


def test_a_name_that_is_no_error_of_ours_is_not_found() -> None:
    """The name of a back end's private subclass is not found."""
    for name in ("ValueError", "JobError", "EtcdRefusedError", ""):
        assert errors.error_class(name) is None


def test_an_error_that_never_passes_says_so_itself() -> None:
    """The store that raises it may know more than its class, and copies and pickles keep that."""
    gone = bk.StoreUnavailableError("open the store again")
    assert exit_code(gone) == 2
    gone.retriable = False
    for twin in (gone.for_path("/a"), pickle.loads(pickle.dumps(gone)), copy.copy(gone)):
        assert not twin.retriable
        assert not passes(twin)
        assert exit_code(twin) == 1
    assert bk.StoreUnavailableError.retriable


@pytest.mark.parametrize("kind", ERRORS)
def test_an_exit_code_is_decided_by_the_class(kind: type) -> None:
    """The exit code is 2 for temporary errors, 3 for bad arguments, and otherwise 1."""
    bad_input = {
        bk.InvalidPathError,
        bk.InvalidSettingError,
        bk.RevisionCompactedError,
        bk.UnsupportedError,
        bk.ValueTooLargeError,
    }
    expected = 2 if passes(kind) else 3 if kind in bad_input else 1
    assert exit_code(kind) == exit_code(kind("m")) == expected


def test_errors_are_caught_by_branch() -> None:
    """Bad input is a ValueError as well; no write of unknown outcome is caught as timed out."""
    assert issubclass(bk.InvalidPathError, ValueError)
    assert issubclass(bk.InvalidSettingError, ValueError)
    assert issubclass(bk.OperationTimeoutError, TimeoutError)
    for kind in ERRORS:
        assert kind is bk.MetadataStoreError or kind.__mro__[1] is bk.MetadataStoreError
        assert issubclass(kind, TimeoutError) == (kind is bk.OperationTimeoutError)


def test_an_outcome_is_ok_without_an_error() -> None:
    """A result of None is fine."""
    op = bk.Delete("/a")
    assert bk.Outcome(op).ok
    assert not bk.Outcome(op, None, bk.NotFoundError("m")).ok


@pytest.mark.parametrize(
    "op",
    [
        bk.Get("/a"),
        bk.Put("/a", b"1", 3),
        bk.Put("/a", b"1", ephemeral=True, sequential=True),
        bk.Put("/a", b"1", options=_MoreOptions(guard=7)),
        bk.Delete("/a", 2),
        bk.Exists("/a"),
        bk.GetChildren("/"),
    ],
)
def test_operations_survive_copies_and_pickles(op: ops.Operation) -> None:
    """A copy and what comes out of a pickle are equal to the operation."""
    for twin in (copy.copy(op), copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        assert twin == op
        assert type(twin) is type(op)


def test_what_comes_out_of_a_pickle_is_checked() -> None:
    """Operations are checked when they are created, and stores rely on that."""
    pickled = pickle.dumps(bk.Get("/good"))
    with pytest.raises(bk.InvalidPathError):
        pickle.loads(pickled.replace(b"/good", b"//bad"))
    pickled = pickle.dumps(bk.Put("/a", b"", ephemeral=True, sequential=True), protocol=2)
    assert pickled.count(b"\x88") == 2  # NEWTRUE
    with pytest.raises(bk.InvalidSettingError):
        pickle.loads(pickled.replace(b"\x88", b"K\x05"))


def test_flags_of_a_put_are_its_options() -> None:
    """A put without any carries none; with either, both can be read from it and from them."""
    assert bk.Put("/a", b"").options is None
    put = bk.Put("/a", b"", ephemeral=True)
    assert put.options == PutOptions(ephemeral=True)
    assert (put.ephemeral, put.sequential) == (True, False)
    assert dataclasses.replace(put, path="/b") == bk.Put("/b", b"", ephemeral=True)
    assert bk.Put("/a", b"", options=PutOptions(sequential=True)).sequential


def test_empty_options_are_none() -> None:
    """A put with options of which none is set is the put without options."""
    put = bk.Put("/a", b"", options=PutOptions())
    assert put.options is None
    assert put == bk.Put("/a", b"")
    assert pickle.loads(pickle.dumps(put)) == put


@pytest.mark.parametrize(
    "flags",
    [
        {"ephemeral": 1},
        {"sequential": None},
        {"options": True},
        {"ephemeral": True, "options": PutOptions(ephemeral=True)},
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any]) -> None:
    """A flag that is not a bool, invalid options, and options given twice are refused."""
    with pytest.raises(bk.InvalidSettingError):
        bk.Put("/a", b"", **flags)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (PutOptions(), "/a"),
        (PutOptions(ephemeral=True), "/a"),
        (PutOptions(sequential=True), None),
        (PutOptions(ephemeral=True, sequential=True), None),
    ],
)
def test_a_sequential_put_needs_no_order(options: PutOptions, key: str | None) -> None:
    """Sequential puts below one parent share a batch, because each creates a different path."""
    assert options.order_key("/a") == key


@pytest.mark.parametrize(
    "op", [bk.Get("/a"), bk.Delete("/a"), bk.Exists("/a"), bk.GetChildren("/")]
)
def test_all_operations_are_read_alike(op: ops.Operation) -> None:
    """Fields that an operation lacks are None, so callers need not check its kind first."""
    assert (op.value, op.expected_version, op.options) == (None, None, None)


def test_the_table_of_kinds_says_what_the_operations_are() -> None:
    """Each kind has a row, and only writes may leave an outcome unknown."""
    operations = (bk.Get, bk.Put, bk.Delete, bk.Exists, bk.GetChildren, bk.Transaction)
    assert {op.kind for op in operations} == set(KINDS)
    assert {kind for kind, row in KINDS.items() if row.writes} == set(get_args(WriteKind))
    in_writes = {kind for kind, row in KINDS.items() if row.lane == "writes"}
    assert in_writes == {"put", "delete", "transaction"}
    assert {"get"} == BRINGS_VALUES


def test_a_kind_without_a_row_cannot_be_imported() -> None:
    """Nobody can forget the row of a new kind, not even where Python leaves out asserts."""
    program = """if True:
        import importlib, typing
        from batchkeeper.ops import kinds, operations
        operations.WriteKind = typing.Literal["put", "delete", "transaction", "touch"]
        importlib.reload(kinds)
    """
    command = [sys.executable, "-O", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "kinds without a row, or rows without a kind: ['touch']" in ended.stderr

"""Rows to outcomes, without Spark: on memory stores, with faults in the way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from batchkeeper import RateLimit, open_store
from batchkeeper.batching import BatchingConfig, MetadataStore
from batchkeeper.ops import (
    AuthenticationError,
    IndeterminateError,
    InvalidSettingError,
    OperationTimeoutError,
    StoreUnavailableError,
)
from batchkeeper.ops.results import ScanResult, Stat
from batchkeeper.pipeline import clients
from batchkeeper.pipeline.jobs import copies
from batchkeeper.pipeline.jobs.spark_session import JobError
from batchkeeper.pipeline.row_report import Report, RowCounts, RowOutcome, Status
from batchkeeper.pipeline.rows import Columns, RecentPaths, RowWriter, columns_of
from batchkeeper.pipeline.sending import Patience, describe, may_pass
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.testing.faults import Call, Fault, FaultyBackend, Plan

Row = tuple[str | None, bytes | None, int | None, str | None]

SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("value", pa.binary()),
        ("expected_version", pa.int64()),
        ("op", pa.string()),
    ]
)


def put(path: str | None, value: bytes | None, expected: int | None = None) -> Row:
    return path, value, expected, "put"


def delete(path: str, expected: int | None = None) -> Row:
    return path, None, expected, "delete"


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Bench:
    """A store with faults, and a writer that waits for nothing."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        self.backend = FaultyBackend(connect(self.url, ConnectOptions()), plan)
        self.store = MetadataStore(self.backend, BatchingConfig(), 60.0, self.url)
        self.pauses: list[float] = []
        self.tally = RowCounts()
        self.restart()

    def restart(self, **settings: Any) -> None:
        """Make a new writer, as another attempt of the task does."""
        settings = {"patience": Patience(times=3), **settings}
        columns = Columns(0, 1, 2, 3)
        self.writer = RowWriter(
            self.store, columns, self.tally, sleep=self.pauses.append, **settings
        )

    def write(self, *rows: Row) -> list[RowOutcome]:
        return [outcome for slice_ in self.writer.write(batch_of(rows)) for outcome in slice_]

    def statuses(self, *rows: Row) -> list[str]:
        return [outcome.status for outcome in self.write(*rows)]

    def value(self, path: str) -> bytes | None:
        found = self.store.get(path).result()
        return None if found is None else found.value

    @property
    def report(self) -> Report:
        return self.tally.report()

    @property
    def reads(self) -> list[Call]:
        return [call for call in self.backend.calls if call.method == "read"]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    """Make a store with a plan of faults and a writer on it; it is closed after the test."""
    made: list[Bench] = []

    def make(plan: Plan | None = None) -> Bench:
        made.append(Bench(plan))
        return made[-1]

    yield make
    for bench in made:
        bench.store.close(0)


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def once(fault: Fault) -> Plan:
    """Let the first write meet a fault."""
    met: list[Call] = []

    def plan(call: Call) -> Fault | None:
        if call.method == "write" and not met:
            met.append(call)
            return fault
        return None

    return plan


@pytest.mark.slow
def test_each_row_has_its_outcome_in_the_order_given(bench: Bench) -> None:
    """Puts, deletes, good and bad rows end one by one, in the order of the rows."""
    bench.store.put("/old", b"1").result()
    bench.store.put("/below/it", b"1").result()
    bench.store.put("/below", b"1").result()
    outcomes = bench.write(
        put("/new", b"n", -1),
        put("/old", b"2"),
        delete("/old", 0),
        ("/no-op", b"", None, None),
        delete("/missing"),
        delete("/below"),
    )
    assert [o.status for o in outcomes] == ["ok", "ok", "conflict", "ok", "not_found", "conflict"]
    assert [o.version for o in outcomes] == [0, 1, None, 0, None, None]
    assert [o.path for o in outcomes] == ["/new", "/old", "/old", "/no-op", "/missing", "/below"]
    assert outcomes[2].error == "BadVersionError: '/old' is at version 1, expected version 0"
    assert outcomes[4].error is None
    assert bench.value("/no-op") == b""
    assert bench.report.counts == {"ok": 3, "conflict": 2, "not_found": 1}
    assert bench.report.seconds.count == 6


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (put(None, b""), "the path is null"),
        (put("/a", None), "the value of a put is null"),
        (put("a", b""), "a path must start with '/'"),
        (put("/a/", b""), "must not end in '/'"),
        (put("/a", b"", -2), "expected_version must be"),
        (put("/a", b"", 2**31), "expected_version must be"),
        (delete("/a", -1), "a delete cannot expect ABSENT"),
        (("/a", b"", None, "PUT"), "op must be put or delete, not 'PUT'"),
        (put("/a", bytes(17 * 2**20)), "bytes; the store accepts"),
    ],
)
def test_a_bad_row_is_an_error_of_its_own(bench: Bench, row: Row, error: str) -> None:
    """An invalid row ends with an error and its reason; its neighbours are written."""
    outcomes = bench.write(put("/before", b""), row, put("/after", b""))
    assert [o.status for o in outcomes] == ["ok", "error", "ok"]
    assert error in (outcomes[1].error or "")
    assert outcomes[1].path == row[0]


@pytest.mark.parametrize("kinds", [("string", "binary"), ("large_string", "large_binary")])
def test_text_that_is_no_text_is_an_error_of_its_row(bench: Bench, kinds: tuple[str, str]) -> None:
    """Spark's text may hold any bytes: that row is refused, and those beside it are written."""
    text, binary = kinds
    raw = [b"/a\xff", b"/b", None, b"/\xed\xa0\x80", b"/c"]
    paths = pa.array(raw, binary).view(text)
    ops = pa.array([b"put", b"put", b"put", b"put", b"\xff"], binary).view(text)
    columns = [paths, pa.array([b""] * 5), pa.array([-1] * 5), ops]
    batch = pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)
    outcomes = [outcome for slice_ in bench.writer.write(batch) for outcome in slice_]
    assert [(outcome.path, outcome.status) for outcome in outcomes] == [
        (r"/a\xff", "error"),
        ("/b", "ok"),
        (None, "error"),
        (r"/\xed\xa0\x80", "error"),
        ("/c", "error"),
    ]
    assert (outcomes[0].error or "").startswith(
        "InvalidPathError: a path must not have the character U+DCFF"
    )
    for column in zip(*outcomes, strict=True):
        pa.array(column).validate(full=True)  # They can be handed on.
    assert [found.path for found in bench.store.scan("/")] == ["/b"]


def test_rows_outside_of_the_prefix_are_errors(bench: Bench) -> None:
    """A job with a prefix writes only under it, and not to paths that only begin alike."""
    bench.restart(prefix="/in")
    rows = put("/in", b""), put("/in/a", b""), put("/inner", b""), delete("/a")
    assert bench.statuses(*rows) == ["ok", "ok", "error", "error"]
    assert bench.value("/inner") is None


def test_a_row_whose_effect_is_there_counts_as_done(bench: Bench) -> None:
    """A second attempt finds what the first has done: creates, updates and deletes."""
    bench.store.put("/u", b"old").result()
    bench.store.put("/d", b"old").result()
    rows = [put("/c", b"new", -1), put("/u", b"new", 0), delete("/d", 0)]
    assert bench.statuses(*rows) == ["ok", "ok", "ok"]
    bench.restart()
    before = len(bench.reads)
    outcomes = bench.write(*rows)
    assert [(o.status, o.version) for o in outcomes] == [
        ("already_applied", 0),
        ("already_applied", 1),
        ("already_applied", None),
    ]
    assert len(bench.reads) == before + 1  # One bulk of gets for all of them.
    assert bench.report.failed == 0


@pytest.mark.parametrize(
    ("existing", "row"),
    [
        ([b"other"], put("/p", b"mine", -1)),  # Its version, another value.
        ([b"x", b"mine"], put("/p", b"mine", -1)),  # Its value, another version.
        ([b"x", b"mine"], put("/p", b"mine", 5)),
        ([], put("/p", b"mine", 0)),  # Nothing there.
        ([b"x", b"y"], delete("/p", 0)),
    ],
)
def test_anything_else_is_a_conflict(bench: Bench, existing: list[bytes], row: Row) -> None:
    """An effect counts as there only with the next version and the same value."""
    for value in existing:
        bench.store.put("/p", value).result()
    (outcome,) = bench.write(row)
    assert outcome.status == "conflict"
    assert outcome.error is not None
    assert bench.value("/p") == (existing[-1] if existing else None)


@pytest.mark.server
def test_a_create_above_other_paths_is_known_again_on_zookeeper(
    fresh_url: Callable[[str], str],
) -> None:
    """On ZooKeeper, version 1 counts as a create's effect only if values lie below the path."""
    # In one request the parent would be made first.
    batches = [[put("/p/a", b"1", -1)], [put("/p", b"2", -1), put("/twice", b"3", -1)]]
    with open_store(fresh_url("zookeeper")) as store:

        def write() -> list[tuple[str, int | None]]:
            writer = RowWriter(store, Columns(0, 1, 2, 3), RowCounts(), parents_count=True)
            slices = [outcomes for rows in batches for outcomes in writer.write(batch_of(rows))]
            return [(outcome.status, outcome.version) for slice_ in slices for outcome in slice_]

        assert write() == [("ok", 0), ("ok", 1), ("ok", 0)]
        store.put("/twice", b"3").result()
        done = "already_applied"
        assert write() == [(done, 0), (done, 1), ("conflict", None)]


def test_a_path_has_one_conditional_row(bench: Bench) -> None:
    """The second conditional row of a path is a conflict, though its version would hold."""
    outcomes = bench.write(put("/a", b"1", -1), put("/a", b"2", 0))
    outcomes += bench.write(delete("/a", 0))
    assert [o.status for o in outcomes] == ["ok", "conflict", "conflict"]
    assert "another conditional row" in (outcomes[1].error or "")
    assert bench.value("/a") == b"1"


def test_conditional_paths_are_remembered_in_bounded_memory() -> None:
    """The latest paths are remembered, and at most twice as many."""
    for number in range(20):
        recent = RecentPaths(4)
        assert not any(recent.seen_before(f"/{path}") for path in range(number))
        # The latest first: a path that it has forgotten takes the place of an older one.
        seen = [recent.seen_before(f"/{path}") for path in reversed(range(number))]
        assert all(seen[:4])
        assert sum(seen) <= 8


def test_a_tree_may_be_deleted_in_any_order(bench: Bench) -> None:
    """A delete that values below it refused is repeated, unless a later row has the path."""
    for path in ("/t", "/t/a", "/t/a/b", "/u", "/u/a"):
        bench.store.put(path, b"1").result()
    rows = [delete("/t"), delete("/t/a"), delete("/u"), put("/u", b"2"), delete("/t/a/b")]
    assert bench.statuses(*rows, delete("/u/a")) == ["ok", "ok", "conflict", "ok", "ok", "ok"]
    assert [(path, value) for path, value, _ in bench.store.scan("/")] == [("/u", b"2")]


def test_rows_of_one_path_keep_their_order(bench: Bench) -> None:
    """The last unconditional row of a path is what stays, whatever came before it."""
    rows = [put("/p", b"%d" % n) for n in range(50)]
    assert set(bench.statuses(*rows)) == {"ok"}
    assert bench.value("/p") == b"49"


def test_a_failure_that_passes_is_tried_again(make: Callable[..., Bench]) -> None:
    """Rows that met no server are written as soon as there is one, after a pause."""
    bench = make(once(Fault(error=StoreUnavailableError("no server"))))
    assert bench.statuses(put("/a", b"1"), put("/b", b"2", -1)) == ["ok", "ok"]
    assert len(bench.pauses) == 1
    assert bench.report.resent >= 1
    assert bench.report.seconds.count == 2


def test_what_the_client_itself_sends_again_counts(make: Callable[..., Bench]) -> None:
    """A server that was killed shows in the report, although no row had to be sent again."""

    def plan(call: Call) -> None:
        bench.backend.tally.add("retry")

    bench = make(plan)
    assert bench.statuses(put("/a", b"1")) == ["ok"]
    assert bench.report.resent == 1


def test_order_holds_through_a_second_try(make: Callable[..., Bench]) -> None:
    """A row that is sent again does not overtake the later rows of its path."""
    bench = make(once(Fault(error=StoreUnavailableError("no server"))))
    rows = [put("/p", b"first"), put("/other", b""), put("/p", b"second"), put("/p", b"last")]
    assert bench.statuses(*rows) == ["ok"] * 4
    assert bench.value("/p") == b"last"


def test_a_row_behind_is_judged_after_the_one_before_it(make: Callable[..., Bench]) -> None:
    """A conditional row that was refused because an earlier row had failed is sent again."""
    bench = make(once(Fault(error=StoreUnavailableError("no server"))))
    assert bench.statuses(put("/p", b"first"), put("/p", b"second", 0)) == ["ok", "ok"]
    assert bench.value("/p") == b"second"


def test_a_row_does_not_undo_a_conditional_one_behind_it(make: Callable[..., Bench]) -> None:
    """A failed row is not sent again if a later row of its path is done and cannot follow it."""
    bench = make(once(Fault(error=StoreUnavailableError("no server"))))
    with open_store(bench.url) as rival:
        rival.put("/p", b"0").result()
    rows = [put("/p", b"first"), put("/p", b"second", 0), put("/q", b"1")]
    assert bench.statuses(*rows) == ["error", "ok", "ok"]
    assert bench.value("/p") == b"second"


def test_patience_ends(make: Callable[..., Bench]) -> None:
    """Without a server, rows end as errors, and later slices do not wait for all attempts again."""

    def plan(call: Call) -> Fault | None:
        down = call.method == "write" and down_for_good
        return Fault(error=StoreUnavailableError("no server")) if down else None

    down_for_good = True
    bench = make(plan)
    (outcome,) = bench.write(put("/a", b""))
    assert (outcome.status, outcome.error) == ("error", "StoreUnavailableError: no server")
    assert len(bench.pauses) == 3
    assert bench.statuses(put("/b", b"")) == ["error"]
    assert len(bench.pauses) == 3
    down_for_good = False
    assert bench.statuses(put("/b", b"")) == ["ok"]


def test_a_range_of_a_copy_is_not_done_with_rows_that_an_outage_failed(
    make: Callable[..., Bench],
) -> None:
    """It ends with an error, so that its task is tried again. A bad row is one of the report."""
    bench = make(lambda _: Fault(error=StoreUnavailableError("down")))
    patience = Patience(times=1)
    pause = bench.pauses.append
    writer = RowWriter(bench.store, Columns(0, 1, 2), bench.tally, patience=patience, sleep=pause)
    row = ScanResult("/a", b"", Stat("/a", 0, 1, None, None, False, False))
    with pytest.raises(JobError, match=r"'/a': StoreUnavailableError"):
        copies._write([row], bench.store, writer, None)


def test_what_will_not_pass_is_not_tried_again(make: Callable[..., Bench]) -> None:
    """A refused login is an error at once."""
    bench = make(once(Fault(error=AuthenticationError("not permitted"))))
    assert bench.statuses(put("/a", b"")) == ["error"]
    assert bench.pauses == []


@pytest.mark.parametrize("applied", [True, False])
def test_an_unconditional_row_of_unknown_outcome_is_sent_again(
    make: Callable[..., Bench], applied: bool
) -> None:
    """An unconditional row is written again, whether its first request was applied or not."""
    bench = make(once(Fault(error=IndeterminateError("lost"), applied=applied)))
    (outcome,) = bench.write(put("/a", b"1"))
    assert outcome == RowOutcome("/a", "ok", 1 if applied else 0)


def test_a_write_that_is_known_to_be_there_is_not_sent_again(make: Callable[..., Bench]) -> None:
    """Only its version is not known: it is done, and done once."""
    bench = make(once(Fault(error=IndeterminateError("lost", applied=True), applied=True)))
    assert bench.write(put("/a", b"1")) == [RowOutcome("/a", "ok", None)]
    found = bench.store.get("/a").result()
    assert found is not None
    assert found.stat.version == 0


def test_a_conditional_write_that_is_there_may_be_there_against_its_condition(
    make: Callable[..., Bench],
) -> None:
    """On ZooKeeper, its node may have been another one. So its row is not done."""
    bench = make(once(Fault(error=IndeterminateError("replaced", applied=True))))
    assert bench.statuses(put("/a", b"1", 3)) == ["indeterminate"]


def test_a_look_sees_what_other_sessions_have_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is synced before reads, because an earlier attempt used another session."""
    reads_before: list[int] = []
    monkeypatch.setattr(
        bench.backend, "sync", lambda _deadline: reads_before.append(len(bench.reads))
    )
    row = put("/a", b"1", -1)
    assert bench.statuses(row) == ["ok"]
    bench.restart()
    assert bench.statuses(row) == ["already_applied"]
    assert reads_before == [0]
    assert len(bench.reads) == 1


def test_a_delete_that_finds_nothing_after_a_lost_answer_was_our_own(
    make: Callable[..., Bench],
) -> None:
    """A delete that was applied without an answer is not reported as having found nothing."""
    bench = make()
    bench.store.put("/a", b"").result()
    bench.backend.plan = once(Fault(error=IndeterminateError("lost"), applied=True))
    assert bench.statuses(delete("/a")) == ["already_applied"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_conditional_row_of_unknown_outcome_is_looked_at(
    make: Callable[..., Bench], applied: bool
) -> None:
    """Its effect is there, or its condition still holds and it is sent again: once in any case."""
    bench = make()
    bench.store.put("/u", b"0").result()
    bench.store.put("/d", b"0").result()
    bench.backend.plan = once(Fault(error=IndeterminateError("lost"), applied=applied))
    outcomes = bench.write(put("/c", b"1", -1), put("/u", b"1", 0), delete("/d", 0))
    status: Status = "already_applied" if applied else "ok"
    # The first batch holds the first row alone: it left at once.
    assert outcomes[0] == RowOutcome("/c", status, 0)
    assert {o.status for o in outcomes[1:]} <= {"ok", "already_applied"}
    assert (bench.value("/u"), bench.value("/d")) == (b"1", None)


def test_what_cannot_be_told_is_indeterminate(make: Callable[..., Bench]) -> None:
    """A lost answer, and something else at the path since: the row may have been applied."""
    bench = make()

    def plan(call: Call) -> Fault | None:
        if call.method == "read":
            with open_store(bench.url) as rival:
                rival.put("/a", b"theirs").result()
        lost = call.method == "write" and call.number == 0
        return Fault(error=IndeterminateError("lost")) if lost else None

    bench.backend.plan = plan
    (outcome,) = bench.write(put("/a", b"mine", -1))
    assert (outcome.status, outcome.error) == ("indeterminate", "IndeterminateError: lost")
    assert bench.value("/a") == b"theirs"


@pytest.mark.parametrize("expected", [None, -1])
def test_a_row_that_may_be_done_is_never_called_not_done(
    make: Callable[..., Bench], expected: int | None
) -> None:
    """A row whose first answer was lost and whose second attempt is refused may be applied."""

    def plan(call: Call) -> Fault | None:
        if call.method != "write":
            return None
        lost = call.number == 0
        return Fault(error=IndeterminateError("lost") if lost else AuthenticationError("no"))

    (outcome,) = make(plan).write(put("/a", b"1", expected))
    assert (outcome.status, outcome.error) == ("indeterminate", "AuthenticationError: no")


def test_a_refused_row_is_indeterminate_where_the_store_cannot_be_synced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason, no row raises: it is that row's outcome."""

    def sync(_deadline: float) -> None:
        raise AuthenticationError("no")

    bench.store.put("/a", b"theirs").result()
    monkeypatch.setattr(bench.backend, "sync", sync)
    assert bench.statuses(put("/a", b"1", -1), put("/b", b"1", -1)) == ["indeterminate", "ok"]


def test_a_create_above_other_paths_is_no_conflict_where_nobody_could_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the paths below cannot be read, it is unknown whether the value is the row's own."""
    for value in (b"0", b"1"):
        bench.store.put("/a", value).result()

    def plan(call: Call) -> Fault | None:
        children = call.method == "read" and "get_children" in call.kinds
        return Fault(error=StoreUnavailableError("away")) if children else None

    bench.backend.plan = plan
    bench.restart(parents_count=True)
    assert bench.statuses(put("/a", b"1", -1)) == ["indeterminate"]


def test_a_conflict_that_nobody_could_look_at_is_indeterminate(make: Callable[..., Bench]) -> None:
    """If a row is refused and reads fail, its own effect may be the reason, so it is unknown."""
    bench = make()
    bench.store.put("/a", b"mine").result()

    def plan(call: Call) -> Fault | None:
        return Fault(error=StoreUnavailableError("away")) if call.method == "read" else None

    bench.backend.plan = plan
    assert bench.statuses(put("/a", b"mine", -1)) == ["indeterminate"]


def test_large_values_go_in_smaller_slices(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is bounded in rows and bytes, and the slices together are the batch."""
    monkeypatch.setattr(RowWriter, "slice_rows", 8)
    monkeypatch.setattr(RowWriter, "slice_bytes", 10_000)
    small = batch_of([put(f"/{n}", b"") for n in range(20)])
    large = batch_of([put(f"/{n}", bytes(4_000)) for n in range(5)])
    assert [len(outcomes) for outcomes in bench.writer.write(small)] == [8, 8, 4]
    assert [len(outcomes) for outcomes in bench.writer.write(large)] == [2, 2, 1]


def test_a_limit_holds_back_every_operation(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation waits before it is submitted, so that its deadline begins after that."""
    waited: list[int] = []
    limit = RateLimit(1.0)
    monkeypatch.setattr(limit, "wait", lambda: waited.append(len(bench.backend.calls)))
    monkeypatch.setitem(clients._limits, bench.store, limit)
    bench.restart()
    bench.write(*(put(f"/{n}", b"", -1) for n in range(50)))
    assert len(waited) == 50
    assert bench.report.seconds.count == 50


def test_columns_are_found_by_name_in_any_order() -> None:
    """Spark's and Arrow's names of types are both understood; optional columns may be untyped."""
    assert columns_of([("value", "binary"), ("path", "string")]) == Columns(1, 0)
    assert columns_of((field.name, str(field.type)) for field in SCHEMA) == Columns(0, 1, 2, 3)
    fields = [("op", "void"), ("path", "varchar(20)"), ("value", "void")]
    assert columns_of([*fields, ("expected_version", "int")]) == Columns(1, 2, 3, 0)
    assert columns_of([("path", "string collate UTF8_LCASE"), ("value", "binary")]).path == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("path", "string")], "the column 'value' is missing .columns found: path."),
        ([("value", "binary")], "the column 'path' is missing"),
        ([], "'path' is missing .columns found: none."),
        (
            [("path", "string"), ("value", "string")],
            r"'value' is string, but must be binary: cast\(value as binary\)",
        ),
        ([("path", "bigint"), ("value", "binary")], "'path' is bigint, but must be string"),
        ([("path", "void"), ("value", "binary")], "'path' is void"),
        (
            [("path", "string"), ("value", "binary"), ("expected_version", "double")],
            "'expected_version' is double",
        ),
        (
            [("path", "string"), ("value", "binary"), ("expected_version", "decimal(10,0)")],
            "'expected_version' is decimal",
        ),
        (
            [("path", "string"), ("value", "binary"), ("expectedVersion", "bigint")],
            "cannot write the column 'expectedVersion'",
        ),
        ([("path", "string"), ("path", "string")], "'path' occurs twice"),
    ],
)
def test_a_wrong_schema_is_refused(fields: list[tuple[str, str]], error: str) -> None:
    """A missing column, a wrong type and an unknown name are errors that say what to do."""
    with pytest.raises(InvalidSettingError, match=error):
        columns_of(fields)


@pytest.mark.parametrize(
    ("described", "passing"),
    [
        (describe(StoreUnavailableError("no server")), True),
        (describe(OperationTimeoutError("late")), True),
        (describe(IndeterminateError("lost")), True),
        (describe(AuthenticationError("StoreUnavailableError: no")), False),
        ("StoreUnavailableErrors: of somebody else", False),
        ("", False),
    ],
)
def test_a_described_error_that_may_pass_is_known_by_its_class(
    described: str, passing: bool
) -> None:
    """From a task comes only text; the class name at its beginning decides on another attempt."""
    assert may_pass(described) is passing

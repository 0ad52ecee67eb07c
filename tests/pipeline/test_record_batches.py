"""Pages of scans, as the Arrow batches that Spark gets."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
import pytest

from batchkeeper.ops.results import ScanPage, ScanResult, Stat, StatPage
from batchkeeper.pipeline.reader import COLUMNS, record_batches

SCHEMA = pa.schema([pa.field(name, kind) for name, (_, kind) in COLUMNS.items()])


def pages(*sizes: int, value: int = 10) -> list[ScanPage]:
    """Pages with a number of rows, whose values have a number of bytes."""
    numbers = iter(range(sum(sizes)))
    return [
        ScanPage.of(
            [
                ScanResult(
                    f"/{n:03}", b"x" * value, Stat(f"/{n:03}", n, n + 1, 7, None, n % 2 == 0)
                )
                for n in islice(numbers, size)
            ]
        )
        for size in sizes
    ]


@pytest.mark.slow
def test_all_columns_are_filled() -> None:
    """Every column of a read comes from the field of its name."""
    (batch,) = record_batches(pages(2), SCHEMA, 100, 1000)
    assert batch.to_pylist() == [
        {
            "path": f"/00{n}",
            "value": b"x" * 10,
            "version": n,
            "revision": n + 1,
            "created": 7,
            "modified": None,
            "ephemeral": n == 0,
            "op": "put",
        }
        for n in (0, 1)
    ]


def test_columns_that_a_store_does_not_keep_are_null() -> None:
    """Without times in the page, there are none in the batch, and any columns may be left out."""
    schema = pa.schema([SCHEMA.field("created"), SCHEMA.field("path")])
    (batch,) = record_batches([ScanPage(["/a"], [b""], [0], [1], [False])], schema, 100, 1000)
    assert batch.to_pylist() == [{"created": None, "path": "/a"}]


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        ((3, 3, 3, 3), 6, [6, 6]),
        ((3, 4), 6, [3, 4]),
        ((0, 2, 0), 6, [2]),
        ((15, 1), 6, [6, 6, 4]),
        ((), 6, []),
    ],
)
def test_batches_have_no_more_rows_than_they_may(
    sizes: tuple[int, ...], rows: int, expected: list[int]
) -> None:
    """Small pages are gathered and large ones cut, and each row comes once, in order."""
    batches = [*record_batches(pages(*sizes), SCHEMA, rows, 1 << 20)]
    assert [batch.num_rows for batch in batches] == expected
    found = [path for batch in batches for path in batch["path"].to_pylist()]
    assert found == [f"/{n:03}" for n in range(sum(sizes))]


@pytest.mark.parametrize(("value", "expected"), [(60, [3, 3, 2]), (500, [1] * 8)])
def test_batches_have_no_more_bytes_than_they_may(value: int, expected: list[int]) -> None:
    """Large values come in small batches, and one that is too large by itself goes alone."""
    schema = pa.schema([SCHEMA.field("path"), SCHEMA.field("value")])
    batches = record_batches(pages(8, value=value), schema, 100, 200)
    assert [batch.num_rows for batch in batches] == expected


def test_pages_without_values_are_cut_as_well() -> None:
    """Without values, a batch is bounded by its rows and by the bytes of its paths."""
    stats = StatPage.of([found.stat for page in pages(8) for found in page])
    schema = pa.schema([SCHEMA.field("path"), SCHEMA.field("version")])
    for rows, size, expected in ((3, 1000, [3, 3, 2]), (100, 16, [4, 4])):
        batches = [*record_batches([stats], schema, rows, size)]
        assert [batch.num_rows for batch in batches] == expected
        assert [row for batch in batches for row in batch.to_pylist()] == [
            {"path": f"/{n:03}", "version": n} for n in range(8)
        ]

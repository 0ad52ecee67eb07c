"""The script that measures the pipeline, on real servers, with few rows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from targets.report import print_report
from targets.rows import Results
from targets.spark import PARTS, STORES, quick, rows_of
from targets.spark.rates import check_loaded, rows, write_parquet

import batchkeeper as bk
from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.target import Target, open_target
from batchkeeper.bench.workload import WrongAnswerError

# They measure the project, and not what its users get.
pytestmark = pytest.mark.full

PROGRAMS = Path(__file__).parents[3] / "bench" / "targets"
COUNT = 2_100


@pytest.fixture
def figures(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run the script in a separate process, because it starts a Spark, and this process has one."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        command = [sys.executable, str(PROGRAMS), "spark", *arguments]
        done = subprocess.run(
            [*command, "--quick", "-o", "json", "--dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return run


def check(report: dict[str, Any], parts: list[str]) -> None:
    """See that a report has all rows of its store, and figures above 0 in each."""
    assert list(report["rows"]) == [row.name for row in rows_of(report["target"], parts)]
    assert all(0 < value < math.inf for of in report["figures"].values() for value in of)
    for row in report["rows"].values():
        assert row["verdict"] in {"target", "missed"}


@pytest.mark.server
def test_what_is_loaded_and_exported_is_measured(
    figures: Callable[..., list[dict[str, Any]]],
) -> None:
    """Both stores are loaded, etcd is exported, and the results are complete and compared."""
    reports = figures("--only", "load", "--only", "export")
    assert [report["target"] for report in reports] == ["etcd", "zookeeper"]
    for report in reports:
        check(report, ["load", "export"])
        assert report["operations"]["load"] == quick(1).rows
        assert report["operations"]["plain"] == quick(1).plain_rows


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Target]:
    """A target that holds rows."""
    with open_target("rocksdb", tmp_path, pytest.fail) as target:
        with target.open() as store:
            puts = [bk.Put(*row) for row in rows(target.root, range(COUNT))]
            assert all(outcome.ok for outcome in store.apply(puts))
        yield target


@pytest.mark.parametrize(
    ("below", "value", "message"),
    [
        ("/0002/2050", None, "100 rows below"),
        ("/0001/more", b"", "1000 rows below"),
        ("/0000/97", b"other", "row 97"),
        ("/0000/0", b"0 ".ljust(100, b"."), "row 0"),
    ],
    ids=["missing", "too many", "another value", "put twice"],
)
def test_rows_that_are_not_as_loaded_are_found(
    loaded: Target, below: str, value: bytes | None, message: str
) -> None:
    """A row that is missing, too many, changed or written twice ends the run."""
    check_loaded(loaded, COUNT)
    path = loaded.root + below
    with loaded.open() as store:
        store.submit(bk.Delete(path) if value is None else bk.Put(path, value)).result()
    with pytest.raises(WrongAnswerError, match=message):
        check_loaded(loaded, COUNT)


def test_rows_are_written_in_several_files(tmp_path: Path) -> None:
    """Spark gets at least two files, whatever the number, and every row once."""
    found = write_parquet(tmp_path / "rows", "/r", 5)
    assert len([*found.iterdir()]) == 2
    table = pq.read_table(found)
    assert list(zip(*table.to_pydict().values(), strict=True)) == [*rows("/r", range(5))]


def test_the_table_has_a_line_for_each_row(
    loaded: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates, ratios, targets and verdicts are printed, each in its unit."""
    results = Results("etcd", rows_of("etcd", PARTS))
    for row in results.rows:
        assert row.base is not None
        for name in (row.figure, row.base, *row.beside.values()):
            worth = 3.0 * 2**20 if name is row.figure else 2.0 * 2**20
            results.figures[name] = [worth]
    print_report(Console(width=300), as_document(loaded), "3 rounds", results)
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["load-plain"].split()[-3:] == ["15", "x", "missed"]
    assert lines["export"].split()[-3:] == ["0.6", "x", "target"]
    assert "1.50 x" in lines["export"]
    assert "/s" in lines["export"]


@pytest.mark.parametrize("store", STORES)
def test_no_part_is_without_a_row(store: str) -> None:
    """A store has rows in each part that it can have: a bare loop needs snapshots."""
    assert [part for part in PARTS if rows_of(store, [part])] == [
        part for part in PARTS if part != "export" or store == "etcd"
    ]

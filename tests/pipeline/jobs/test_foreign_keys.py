"""Jobs on stores with keys that are not valid paths: none claims to be complete without them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import batchkeeper as bk
from batchkeeper.pipeline.options import parse_options
from batchkeeper.pipeline.overwrite import delete_older
from batchkeeper.pipeline.reader import StoreReader
from batchkeeper.pipeline.row_report import RowsFailedError
from batchkeeper.pipeline.source import SCHEMA
from batchkeeper.pipeline.streams import ChangesReader

from ...stores.foreign import KEYS, OWN, put_raw
from .test_jobs import Job, fill, held

VALUES = {"/a": b"1", "/a/b": b"2", "/b": b"3"}
ALLOWED = "--allow-foreign-keys"


# Each store finds its own foreign keys (tests/stores); what jobs say of them is the same.
@pytest.fixture(
    params=[
        "rocksdb",
        pytest.param("etcd", marks=pytest.mark.full),
        pytest.param("zookeeper", marks=pytest.mark.full),
    ]
)
def mixed(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> tuple[str, list[str]]:
    """A store with paths and foreign keys: its URL, and the names of the keys."""
    url = fresh_url(request.param)
    keys = {
        "etcd": KEYS,
        "rocksdb": sorted([*KEYS, *OWN]),  # Where this client keeps nothing of its own.
        "zookeeper": [b"/zookeeper", b"/zookeeper/x"],
    }[request.param]
    fill(url, VALUES)
    put_raw(url, dict.fromkeys(keys, b"theirs"))
    if request.param == "etcd":
        put_raw(url, dict.fromkeys(OWN, b"ours"))
    names = bk.ForeignKeys()
    names.add(keys)
    return url, [*names.names(), *[""] * (names.count - len(names.first))]


def told(errors: list[str], count: int) -> bool:
    """Say whether the one line of errors has the number of keys, and what to do."""
    (line,) = errors
    return f"they are not valid paths: {count}. " in line and ALLOWED in line


def test_an_export_ends_with_1_and_is_whole_in_all_else(
    job: Job, mixed: tuple[str, list[str]], fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Summary and manifest say how many keys are missing, and name the first; restore says it."""
    url, keys = mixed
    out, target = tmp_path / "out", fresh_url("etcd")
    export = ("export", out, "--store", url, "--option", "partitions=3")
    code, summary, errors = job(*export)
    assert (code, summary["rows"]) == (1, len(VALUES))
    assert told(errors, len(keys))
    manifest = json.loads((out / "manifest.json").read_text())
    for said in (summary, manifest):
        assert said["foreign_keys"] == len(keys)
        assert said["first_foreign_keys"] == keys[:10]
    code, summary, errors = job(*export, "--overwrite", ALLOWED)
    assert (code, errors, summary["foreign_keys"]) == (0, [], len(keys))
    code, summary, errors = job("restore", out, "--store", target)
    assert (code, errors, summary["foreign_keys"]) == (0, [], len(keys))
    assert summary["first_foreign_keys"] == keys[:10]
    assert held(target) == VALUES


def test_a_diff_says_it_of_each_side(
    job: Job, mixed: tuple[str, list[str]], fresh_url: Callable[[str], str]
) -> None:
    """Two sides are not the same while one of them has keys that were not compared."""
    url, keys = mixed
    plain = fresh_url("etcd")
    fill(plain, VALUES)
    here, there = ("foreign_keys_left", "foreign_keys_right")
    for left, right in ((url, plain), (plain, url)):
        code, summary, errors = job("diff", left, right)
        expected = {
            here: 0 if left is plain else len(keys),
            there: 0 if right is plain else len(keys),
        }
        assert (code, summary["same"], summary["equal"]) == (1, False, len(VALUES))
        assert {side: summary[side] for side in expected} == expected
        for side, count in expected.items():
            assert summary.get(f"first_{side}", []) == (keys[:10] if count else [])
        assert told(errors, sum(expected.values()))
    code, summary, errors = job("diff", url, url, ALLOWED)
    assert (code, errors, summary["same"]) == (0, [], True)
    assert summary[here] == summary[there] == len(keys)


@pytest.mark.full
def test_below_a_prefix_those_beside_it_do_not_count(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """An export names the keys that it left out, so those outside the prefix do not count."""
    url, out = fresh_url("etcd"), tmp_path / "out"
    fill(url, VALUES)
    # A manifest escapes the second one.
    put_raw(url, {b"/q//x": b"theirs", b"/it's\\//x": b"theirs"})
    assert job("export", out, "--store", url)[0] == 1
    for prefix, code, count in (("/a", 0, 0), ("/q", 1, 1), ("/it's\\", 1, 1)):
        ended, summary, _ = job("diff", out, url, "--prefix", prefix)
        assert (ended, summary["foreign_keys_left"], summary["same"]) == (code, count, not count)


def test_a_copy_reports_them_and_a_resumed_one_forgets_none(
    job: Job, mixed: tuple[str, list[str]], fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """The report has a row for each key, so that keys of an earlier run also count."""
    url, keys = mixed
    target, state = fresh_url("etcd"), tmp_path / "state"
    copy = ("copy", "--from", url, "--to", target, "--state", state, "--option", "partitions=3")
    code, summary, errors = job(*copy)
    assert (code, summary["verified"], summary["paths"]) == (1, True, {"ok": len(VALUES)})
    assert (summary["foreign_keys"], summary["rows"]) == (len(keys), len(VALUES))
    assert len(summary["first_foreign_keys"]) == len(keys[:10])
    assert told(errors, len(keys))
    assert held(target) == VALUES
    rows = pq.read_table(state / "report").to_pylist()
    named = sorted(row["path"] for row in rows if row["status"] == "foreign")
    assert len(named) == len(keys)
    assert summary["first_foreign_keys"] == named[:10]

    (state / "report" / "range-00000.parquet").unlink()
    code, summary, errors = job(*copy, "--resume", ALLOWED)
    assert (code, errors, summary["verified"]) == (0, [], True)
    assert summary["ranges_done_before"] == len([*(state / "report").glob("range-*")]) - 1
    assert (summary["foreign_keys"], summary["changed_meanwhile"]) == (len(keys), 0)
    code, summary, errors = job(*copy, "--resume")
    assert (code, summary["rows"], summary["foreign_keys"]) == (1, 0, len(keys))
    assert told(errors, len(keys))


@pytest.mark.full
def test_ten_thousand_of_them_are_counted_over_the_ranges(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Each key counts exactly once in an export, a copy and a diff, whatever the ranges."""
    url, target = fresh_url("etcd"), fresh_url("etcd")
    put_raw(url, {b"/m//%05d" % number: b"" for number in range(10_000)})
    fill(url, {f"/{place}/{number:04}": b"" for place in "an" for number in range(1500)})
    eight = ("--option", "partitions=8")
    code, summary, _ = job("export", tmp_path / "out", "--store", url, *eight)
    assert (code, summary["rows"], summary["foreign_keys"]) == (1, 3000, 10_000)
    assert summary["first_foreign_keys"] == [f"/m//{number:05}" for number in range(10)]
    state = tmp_path / "state"
    code, summary, _ = job("copy", "--from", url, "--to", target, "--state", state, *eight)
    assert (code, summary["verified"], summary["foreign_keys"]) == (1, True, 10_000)
    code, summary, _ = job("diff", url, target, *eight)
    assert (code, summary["foreign_keys_left"], summary["foreign_keys_right"]) == (1, 10_000, 0)
    assert summary["first_foreign_keys_left"] == [f"/m//{number:05}" for number in range(10)]


@pytest.mark.full
def test_a_store_without_any_says_that_there_are_none(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A zero in summary and manifest: that was counted. Exit codes are as they were."""
    url, target, out = fresh_url("etcd"), fresh_url("rocksdb"), tmp_path / "out"
    fill(url, VALUES)
    code, summary, errors = job("export", out, "--store", url)
    assert (code, errors, summary["foreign_keys"]) == (0, [], 0)
    assert json.loads((out / "manifest.json").read_text())["foreign_keys"] == 0
    code, summary, errors = job("copy", "--from", url, "--to", target, "--state", tmp_path / "s")
    assert (code, errors, summary["foreign_keys"]) == (0, [], 0)
    code, summary, errors = job("diff", out, target)
    assert (code, errors, summary["same"]) == (0, [], True)
    assert (summary["foreign_keys_left"], summary["foreign_keys_right"]) == (0, 0)


@pytest.mark.full
def test_an_export_that_did_not_count_them_can_be_read(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A manifest of schema version 1 serves as before, and a summary says what is not known."""
    url, target, out = fresh_url("etcd"), fresh_url("etcd"), tmp_path / "out"
    fill(url, VALUES)
    job("export", out, "--store", url)
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["foreign_keys"], manifest["first_foreign_keys"]
    (out / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 1}))
    code, summary, errors = job("restore", out, "--store", target)
    assert (code, errors, summary["foreign_keys"]) == (0, [], "not counted")
    assert held(target) == VALUES
    code, summary, errors = job("diff", out, target)
    assert (code, errors, summary["foreign_keys_left"]) == (0, [], "not counted")
    (out / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 3}))
    code, _, errors = job("restore", out, "--store", target)
    assert code == 3
    assert "its schema version is 3, but only 1 and 2 are supported" in errors[0]


# --- what is no job


def warned(caplog: pytest.LogCaptureFixture, what: str, count: int) -> int:
    """Return the number of warnings, whose counts must add up to the number of keys."""
    found = [record.getMessage() for record in caplog.records if what in record.getMessage()]
    numbers = [int(text.split("count=")[1].split()[0]) for text in found]
    assert sum(numbers) == count
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return len(found)


def test_a_read_warns_in_each_partition(
    mixed: tuple[str, list[str]], spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The data source returns the paths, and its tasks log the number of keys left out."""
    url, keys = mixed
    rows = spark.read.format("batchkeeper").option("url", url).load()
    assert sorted(row.path for row in rows.collect()) == sorted(VALUES)
    reader = StoreReader(StructType.fromDDL(SCHEMA), parse_options({"url": url, "partitions": "2"}))
    caplog.set_level(logging.WARNING, "batchkeeper")
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == len(VALUES)
    assert warned(caplog, "not valid paths: not read", len(keys)) in {1, 2}
    assert "first=['/" in caplog.text


@pytest.mark.server
def test_an_overwrite_warns_of_what_it_leaves(
    mixed: tuple[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """An overwrite does not delete keys that callers cannot see."""
    url, keys = mixed
    caplog.set_level(logging.WARNING, "batchkeeper")
    with bk.open_store(url) as store:
        if url.startswith("zookeeper"):
            assert delete_older(store, "/", store.revision()) == len(VALUES)
            left = []
        else:
            # They count as values below a path, and so keep it where it is.
            with pytest.raises(RowsFailedError, match=r"'/a': .*keys that are not valid paths"):
                delete_older(store, "/", store.revision())
            left = ["/a"]
        scan = store.scan("/")
        assert ([found.path for found in scan], scan.foreign.count) == (left, len(keys))
        assert warned(caplog, "not valid paths: not deleted", len(keys)) == 1


def test_a_stream_warns_of_changes_that_it_passes_over(
    spark: SparkSession, fresh_url: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """A part of a micro-batch logs how many changes of foreign keys lie between its own."""
    url = fresh_url("etcd")
    with bk.open_store(url) as store:
        first = store.put("/a", b"").result().revision
        put_raw(url, dict.fromkeys(KEYS, b""))
        last = store.put("/a", b"").result().revision
    options: dict[str, Any] = {"url": url, "prefix": "/"}
    reader = ChangesReader(StructType.fromDDL(SCHEMA), parse_options(options))
    caplog.set_level(logging.WARNING, "batchkeeper")
    (part,) = reader.partitions({"revision": first}, {"revision": last})
    assert [batch.column("path").to_pylist() for batch in reader.read(part)] == [["/a"]]
    assert warned(caplog, "not valid paths: changes not read", len(KEYS)) == 1

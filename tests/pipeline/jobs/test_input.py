"""Bad input is refused in one line, before anything is written."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import batchkeeper as bk
from batchkeeper import cli
from batchkeeper.pipeline.jobs.folder import Folder
from batchkeeper.pipeline.jobs.running import _code_of_error
from batchkeeper.pipeline.jobs.spark_session import JobError

from ...contents import contents
from ...programs import COMMAND
from .conftest import Job
from .test_jobs import fill


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the cases below are about."""
    folder = tmp_path_factory.mktemp("input")
    good = b'{"path": "/good/%d", "value": "x"}\n'
    lines = b"".join(good % number for number in range(3000))
    (folder / "line.jsonl").write_bytes(lines + b'\n{"path": "/b"}\n' + lines)
    (folder / "path.jsonl").write_bytes(lines + b'{"path": "/b/", "value": ""}\n')
    (folder / "utf8.jsonl").write_bytes(b'{"path": "/a", "value": "\xff"}\n')
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(lines + b"nothing\n"))
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(lines)[:-2000])
    (folder / "columns.csv").write_bytes(b"key,value\n/a,1\n")
    (folder / "fields.csv").write_bytes(b'path,value\n/a,"1\n2"\n/b\n')
    (folder / "none.csv").write_bytes(b"")
    pq.write_table(pa.table({"path": ["/a", "/b"], "value": [1, 2]}), folder / "type.parquet")
    pq.write_table(pa.table({"path": ["/a"], "data": [b"1"]}), folder / "column.parquet")
    pq.write_table(pa.table({"path": ["/a", None], "value": [b"", b""]}), folder / "null.parquet")
    (folder / "torn.parquet").write_bytes((folder / "null.parquet").read_bytes()[:-20])
    (folder / "what.bin").write_bytes(b"")
    (folder / "_line.jsonl").write_bytes(lines)
    return folder


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "line.jsonl",
            'line.jsonl:3002: not a record with "path" and "value"; nothing',
        ),
        ("path.jsonl", "path.jsonl:3001: a path must not end in '/': '/b/'; nothing was written"),
        (
            "utf8.jsonl",
            "utf8.jsonl:1: not UTF-8: invalid start byte (byte 26)",
        ),
        ("packed.jsonl.gz", "packed.jsonl.gz:3001: not JSON: Expecting value (column 1)"),
        ("cut.jsonl.gz", "cut.jsonl.gz cannot be read: EOFException: Unexpected end of input"),
        ("columns.csv", "columns.csv: no column 'path'; its columns are 'key', 'value'"),
        (
            "fields.csv",
            "fields.csv:2: the number of fields differs from the header's, or a quote is open",
        ),
        ("none.csv", "none.csv: no column 'path'; its columns are none"),
        ("type.parquet", "type.parquet: the column 'value' is bigint, not string or binary"),
        ("column.parquet", "column.parquet: no column 'value'; its columns are 'path', 'data'"),
        ("null.parquet", "null.parquet:2: no path; nothing was written"),
        ("torn.parquet", "torn.parquet is not a Parquet file"),
        ("missing.jsonl", "missing.jsonl cannot be read: Path does not exist"),
        ("_line.jsonl", "_line.jsonl cannot be read: Spark skips files whose names begin with _"),
        ("what.bin", "what.bin: the name does not show the format; pass --format"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_and_nothing_is_written(
    job: Job, fresh_url: Callable[[str], str], full: Path, name: str, told: str
) -> None:
    """The one-line error names the file and, if there is one, the line."""
    url = fresh_url("etcd")
    code, summary, errors = job("load", full / name, "--store", url)
    assert (code, summary, len(errors)) == (3, None, 1), errors
    assert told in errors[0]
    assert len(errors[0]) < 500
    with bk.open_store(url) as store:
        assert list(store.scan("/")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["load", "x.jsonl"], 3, "no store given: pass --store URL"),
        (["load", "x.jsonl", "--store", "nats://127.0.0.1"], 3, "nats"),
        (["load", "x.jsonl", "--store", "memory://m"], 3, "memory://"),
        (["load", "x.jsonl", "--store", "etcd://me:secret@127.0.0.1:1"], 3, "password"),
        (
            ["export", "out", "--store", "etcd://127.0.0.1:1", "--connect-timeout", "0.5"],
            2,
            "127.0.0.1:1",
        ),
        (
            ["export", "out", "--store", "etcd://127.0.0.1:1", "--prefix", "a"],
            3,
            "must start with '/'",
        ),
        (["export", "out", "--store", "etcd://127.0.0.1:1", "--option", "rate=1"], 3, "'rate'"),
        (["export", "out", "--store", "etcd://127.0.0.1:1", "--option", "rate"], 3, "NAME=VALUE"),
        (["export", "out", "--store", "etcd://127.0.0.1:1", "--conf", "x"], 3, "NAME=VALUE"),
        (["restore", "nowhere", "--store", "ETCD"], 3, "not an export: it has no manifest.json"),
        (
            ["copy", "--from", "ETCD", "--to", "ETCD", "--state", "s"],
            3,
            "--from and --to are the same store",
        ),
        (
            ["copy", "--from", "ETCD", "--to", "ETCD/other", "--state", "s", "--resume"],
            3,
            "nothing to resume",
        ),
        (
            [
                "copy",
                "--from",
                "ETCD",
                "--to",
                "ETCD/x",
                "--state",
                "s",
                "--to-option",
                "prefix=/x",
            ],
            3,
            "a copy has one prefix for both sides, not '/' and '/x': pass --prefix",
        ),
        (
            ["diff", "etcd://127.0.0.1:1", "ETCD", "--connect-timeout", "0.5"],
            2,
            "127.0.0.1:1",
        ),
        (["export", "out", "--store", "ETCD", "--option", "revision=999999999"], 3, "newest"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    job: Job,
    fresh_url: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    """A wrong URL, option or folder has its exit code and one line, without a word of Java."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHKEEPER_STORE", raising=False)
    etcd = fresh_url("etcd")
    found, summary, errors = job(*(text.replace("ETCD", etcd) for text in arguments))
    assert (found, summary, len(errors)) == (code, None, 1), errors
    assert told in errors[0]
    assert "secret@" not in errors[0]
    assert "java" not in errors[0].lower()


@pytest.mark.parametrize("on_error", ["collect", "skip"])
def test_bad_lines_may_be_counted_and_left_out(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path, on_error: str
) -> None:
    """With --on-error, good lines are written; bad ones are counted, and reported or not."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            f'{{"path": "/{name}/1", "value": "x"}}\nnothing\n{{"path": "/{name}/2", "value": ""}}'
        )
    url = fresh_url("etcd")
    code, summary, errors = job(
        "load", tmp_path, "--format", "jsonl", "--store", url, "--on-error", on_error
    )
    assert (code, errors) == (1, [])
    assert (summary["bad_rows"], summary["outcomes"]["ok"]) == (2, 4)
    told = summary.get("first_bad_rows")
    wanted = [f"{tmp_path}/{name}.jsonl:2: not JSON: Expecting value (column 1)" for name in "ab"]
    assert told == (wanted if on_error == "collect" else None)
    with bk.open_store(url) as store:
        assert [found.path for found in store.scan("/")] == ["/a/1", "/a/2", "/b/1", "/b/2"]


def test_bad_lines_are_numbered_over_the_blocks_of_a_file(
    job: Job, spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Spark reads a large file in blocks, whose tasks know the lines of their own block only."""
    lines = [f'{{"path": "/{number:02}", "value": ""}}' for number in range(20)]
    lines[19] = "nothing"
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "150")  # five lines
    try:
        code, summary, _ = job(
            *("load", file, "--store", fresh_url("rocksdb"), "--on-error", "collect")
        )
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert (code, summary["outcomes"]["ok"]) == (1, 19)
    assert summary["first_bad_rows"] == [f"{file}:20: not JSON: Expecting value (column 1)"]


def test_csv_and_parquet_are_loaded_as_they_are(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Line breaks and quotes in a CSV field, and bytes in Parquet, arrive as they are."""
    (tmp_path / "in.csv").write_text(
        'id,path,value\n1,/c/1,"two\nlines"\n2,/c/2,"a ""quote"", a comma"\n3,/c/3,\n4,/c/ü,ü\n'
    )
    table = pa.table({"value": [b"\xff\x00", b""], "path": ["/p/1", "/p/2"], "more": [1, 2]})
    # A name means its file, and not one that it would match as a pattern.
    pq.write_table(table, tmp_path / "i[mn].parquet")
    pq.write_table(pa.table({"path": ["/beside"], "value": [b""]}), tmp_path / "in.parquet")
    url = fresh_url("etcd")
    for name in ("in.csv", "i[mn].parquet"):
        code, _, errors = job("load", tmp_path / name, "--store", url)
        assert (code, errors) == (0, [])
    with bk.open_store(url) as store:
        assert contents(store) == {
            "/c/1": b"two\nlines",
            "/c/2": b'a "quote", a comma',
            "/c/3": b"",
            "/c/ü": "ü".encode(),
            "/p/1": b"\xff\x00",
            "/p/2": b"",
        }
    (tmp_path / "again.csv").write_text("path,value\n/c/1,other\n/c/5,new\n")
    arguments = ("load", tmp_path / "again.csv", "--store", url, "--create-only")
    code, summary, _ = job(*arguments, "--on-error", "collect")
    assert (code, summary["outcomes"]["ok"], summary["outcomes"]["conflict"]) == (1, 1, 1)
    assert summary["first_failed_rows"][0].startswith("'/c/1': conflict: ")
    code, summary, errors = job(*arguments)
    assert (code, summary, len(errors)) == (1, None, 1)
    assert errors[0].startswith("batchkeeper: '/c/1': BadVersionError")


def test_an_export_that_is_not_as_its_manifest_says_is_not_restored(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A missing, changed or added file is named, and nothing is written."""
    source, target = fresh_url("etcd"), fresh_url("etcd")
    with bk.open_store(source) as store:
        store.put("/a", b"1").result()
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert job("export", whole, "--store", source, "--option", "partitions=1")[0] == 0
    [name] = [file.relative_to(whole) for file in (whole / "data").glob("*.parquet")]
    data = (whole / name).read_bytes()
    manifest = json.loads((whole / "manifest.json").read_text())

    def states(**changed: Any) -> bytes:
        return json.dumps({**manifest, **changed}).encode()

    damages: list[tuple[str, str | Path, bytes | None]] = [
        ("has changed: its checksum differs", name, bytes([*data[:20], data[20] ^ 1, *data[21:]])),
        ("bytes instead of", name, data[:-1]),
        ("is missing", name, None),
        ("data/part-00099.parquet does not belong to it", "data/part-00099.parquet", data),
        ("is an unfinished export: it has no manifest.json", "manifest.json", None),
        (
            "its schema version is 99, but only 1 and 2 are supported",
            "manifest.json",
            states(schema_version=99),
        ),
        (
            "manifest.json cannot be used: it is not a manifest of an export (",
            "manifest.json",
            json.dumps({"format": manifest["format"]}).encode(),
        ),
        (
            "it states 2 rows, 0 of them ephemeral, but 1 rows for its files",
            "manifest.json",
            states(rows=2),
        ),
        ("manifest.json cannot be used: it names no file", "manifest.json", states(files=[])),
    ]
    for message, damaged, instead in damages:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        if instead is None:
            (out / damaged).unlink()
        else:
            (out / damaged).write_bytes(instead)
        for arguments in (("restore", out, "--store", target), ("diff", target, out)):
            code, summary, errors = job(*arguments)
            assert (code, summary, len(errors)) == (2 if arguments[0] == "diff" else 3, None, 1)
            assert message in errors[0]
    with bk.open_store(target) as store:
        assert list(store.scan("/")) == []
    # Existing data is not overwritten by accident.
    code, _, errors = job("export", out, "--store", source)
    assert (code, len(errors)) == (3, 1)
    assert "is not empty; --overwrite replaces an earlier export" in errors[0]
    assert job("export", out, "--store", source, "--overwrite")[0] == 0
    assert job("restore", out, "--store", target)[0] == 0


@pytest.mark.parametrize(
    "name", ["data/mine.parquet", "data/mine/x", "manifest.json", "mine", "data/part-00000.parquet"]
)
def test_an_export_removes_no_file_that_it_has_not_made(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    """A folder with anything else than an export in it is refused, with --overwrite as well."""
    url = fresh_url("etcd")
    there = tmp_path / "out" / name
    there.parent.mkdir(parents=True)
    there.write_text('{"format": "another"}')
    (tmp_path / "out" / "README").write_text("mine")
    for overwrite in ((), ("--overwrite",)):
        code, summary, errors = job("export", tmp_path / "out", "--store", url, *overwrite)
        assert (code, summary, len(errors)) == (3, None, 1)
        assert errors[0].endswith("is not empty and not an export")
    assert there.read_text() == '{"format": "another"}'


def test_an_export_to_a_finished_one_refuses_what_is_none_of_its_files(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A file beside an export's own ones is named, and nothing is replaced."""
    url, out = fresh_url("etcd"), tmp_path / "out"
    fill(url, {"/a": b"1"})
    assert job("export", out, "--store", url)[0] == 0
    before = (out / "manifest.json").read_bytes()
    (out / "data" / "mine.parquet").write_text("mine")
    code, _, errors = job("export", out, "--store", url, "--overwrite")
    assert (code, len(errors)) == (3, 1)
    assert "data/mine.parquet is not one of its files" in errors[0]
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("scheme", ["zookeeper", "rocksdb"])
def test_an_old_revision_of_a_store_that_keeps_none_is_refused(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path, scheme: str
) -> None:
    """Without snapshots, an export and a copy refuse an old revision."""
    url = fresh_url(scheme)
    with bk.open_store(url) as store:
        store.put("/a", b"1").result()
    out = tmp_path / "out"
    for arguments in (
        ("export", out, "--store", url),
        ("copy", "--from", url, "--to", fresh_url("etcd"), "--state", out),
    ):
        code, summary, errors = job(*arguments, "--option", "revision=1")
        assert (code, summary, len(errors)) == (3, None, 1)
        assert "needs the capability 'snapshots'" in errors[0]
        assert not out.exists()


def test_a_copy_is_taken_up_again_as_it_was_begun(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Another store, prefix or revision, or overwriting or not, is another copy."""
    source, target, state = fresh_url("etcd"), fresh_url("etcd"), tmp_path / "state"
    with bk.open_store(source) as store:
        revision = store.put("/a", b"1").result().revision
        store.put("/a", b"2").result()
    begun = ["copy", "--state", state, "--from", source, "--option", "partitions=1", "--to"]
    assert job(*begun, target, "--from-option", f"revision={revision}")[0] == 0
    for arguments, message in (
        ([fresh_url("etcd")], "the state of another copy"),
        ([target, "--prefix", "/b"], "the state of another copy"),
        ([target, "--overwrite"], "the state of another copy"),
        ([target, "--from-option", f"revision={revision + 1}"], f"of revision {revision:,}, not"),
    ):
        code, _, errors = job(*begun, *arguments, "--resume")
        assert (code, len(errors)) == (3, 1), errors
        assert message in errors[0]
    code, summary, errors = job(*begun, target, "--resume")
    assert (code, errors, summary["ranges_done_before"]) == (0, [], 1)
    with bk.open_store(target) as store:
        assert [found.value for found in store.scan("/")] == [b"1"]


def test_a_folder_with_nothing_in_it_is_as_good_as_none(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A driver that was killed before its first file leaves no export."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    url = fresh_url("etcd")
    with bk.open_store(url) as store:
        store.put("/a", b"1").result()
    code, summary, errors = job("export", tmp_path / "out", "--store", url)
    assert (code, errors, summary["rows"]) == (0, [], 1)


def test_a_file_that_is_not_written_to_its_end_goes(tmp_path: Path) -> None:
    """An unfinished file is removed, even if the failure has nothing to do with it."""

    def fail_half_way(error: Exception) -> None:
        with Folder(str(tmp_path)).output("data/x") as output:
            output.write(b"half")
            raise error

    def fail_in_a_table(error: Exception) -> None:
        with Folder(str(tmp_path)).table("data/x", pa.schema([])):
            raise error

    # A time-out of the store is an OSError, but says nothing of the file.
    late, full = bk.OperationTimeoutError("late"), OSError(errno.ENOSPC, "no space")
    for fail in (fail_half_way, fail_in_a_table):
        for error, raised in (
            (ZeroDivisionError(), ZeroDivisionError),
            (late, type(late)),
            (full, JobError),
        ):
            with pytest.raises(raised):
                fail(error)
            assert [*tmp_path.glob("data/*")] == []


def test_without_the_extra_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without pyspark, the command names the extra to install, and its help works."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("batchkeeper.pipeline.jobs.command.find_spec", lambda _name: None)
    assert cli.main(["spark", "export", "out", "--store", "etcd://127.0.0.1:1"]) == 3
    assert "pip install 'batchkeeper[spark]'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["spark", "copy", "--help"])
    assert "--resume" in capsys.readouterr().out
    assert not any(name.partition(".")[0] == "pyspark" for name in sys.modules)


def test_without_any_java_it_is_said_where_to_get_one(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a Java for Spark, the job says so in one line and starts nothing.

    Files and folders that cannot be used are refused before that.
    """
    url = fresh_url("etcd")
    fill(url, {"/a": b"1"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("batchkeeper.pipeline.java.find_spec", lambda _name: None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    copy = ("copy", "--from", url, "--to", f"{url}/other", "--state")
    for arguments, message in (
        (("export", "out", "--store", url), "no Java 17 or newer"),
        (("load", "none.jsonl", "--store", url), "none.jsonl cannot be read"),
        (("load", "full", "--store", url), "pass --format"),
        (("export", "full", "--store", url), "not an export"),
        (("restore", "none", "--store", url), "not an export"),
        ((*copy, "none", "--resume"), "nothing to resume"),
        (("diff", url, "none"), "not an export"),
    ):
        code, summary, errors = job(*arguments)
        assert (code, summary, len(errors)) == (2 if arguments[0] == "diff" else 3, None, 1)
        assert message in errors[0]


def is_spark(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    return False


@pytest.mark.full
@pytest.mark.server
def test_an_interrupt_while_spark_starts_leaves_no_java(
    fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Ctrl-C ends the command as soon as Spark can be ended, and all that it has started."""
    (tmp_path / "in.jsonl").write_text('{"path": "/a", "value": ""}\n')
    running = psutil.Popen(
        [*COMMAND, "spark", "load", str(tmp_path / "in.jsonl")],
        env={**os.environ, "BATCHKEEPER_STORE": fresh_url("etcd")},
    )
    started: set[psutil.Process] = set()
    try:
        until = time.monotonic() + 60
        while not any(is_spark(process) for process in started):
            assert time.monotonic() < until
            started.update(running.children(recursive=True))
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert running.wait(180) == 130
        assert psutil.wait_procs(started, 30)[1] == []
    finally:
        for process in (running, *started):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        running.wait()


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("AnalysisException", 3),
        ("InvalidSettingError", 3),
        ("RevisionCompactedError", 3),
        ("StoreUnavailableError", 2),
        ("IndeterminateError", 2),
        ("QueueFullError", 2),
        ("AuthenticationError", 1),
        ("ZeroDivisionError", 1),
        ("", 1),
    ],
)
def test_an_error_in_a_task_has_the_exit_code_of_its_class(cause: str, code: int) -> None:
    """For an error in another process, only the name of its class is known."""
    assert _code_of_error(cause) == code

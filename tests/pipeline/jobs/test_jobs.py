"""``batchkeeper spark``: records loaded, exported, restored, copied, compared, on real stores."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import batchkeeper as bk
from batchkeeper.pipeline.jobs.folder import Folder
from batchkeeper.pipeline.jobs.spark_session import JobError
from batchkeeper.testing.servers import EtcdServer, ZooKeeperServer

from ...contents import contents, put_all
from ...programs import COMMAND
from ...stores.foreign import zookeeper_client
from ...waiting import until
from .conftest import Job

#: Of a folder: with pattern characters of Spark, and characters quoted in a URI.
ANY_NAME = "a b%20c [x]{a,b}*? ü\\d"


def values(count: int) -> dict[str, bytes]:
    """Values like a hub's: text and bytes of skewed size, on paths of several depths."""
    dice = random.Random(4711)
    made = {"/topics": b"a parent with a value", "/topics/empty": b""}
    for number in range(count):
        tenant = dice.choice(["billing", "ümläut", "logs.v2"])
        value = json.dumps({"hub": f"hub-{number % 7}", "about": "é 中 \n" * (number % 5)}).encode()
        if number % 10 == 0:
            value = dice.randbytes(int(60 * dice.paretovariate(1.2)) % 9000)
        made[f"/topics/{tenant}/t{number:05}"] = value
    return made


def fill(url: str, given: Mapping[str, bytes]) -> None:
    with bk.open_store(url) as store:
        put_all(store, given)


def held(url: str, prefix: str = "/") -> dict[str, bytes]:
    with bk.open_store(url) as store:
        return contents(store, prefix)


def json_lines(given: Mapping[str, bytes]) -> bytes:
    def spelled(value: bytes) -> str | dict[str, str]:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}

    lines = [
        json.dumps({"path": path, "value": spelled(value)}, ensure_ascii=False)
        for path, value in given.items()
    ]
    return "\n".join(lines).encode()


def test_records_are_loaded_exported_and_restored_as_they_were(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Values loaded from JSON lines are exported, and restored into a store of another kind."""
    given = values(3000)
    etcd, rocksdb = fresh_url("etcd"), fresh_url("rocksdb")
    (tmp_path / "in.jsonl").write_bytes(json_lines(given) + b"\n\n")
    code, summary, errors = job("load", tmp_path / "in.jsonl", "--store", etcd)
    assert (code, errors) == (0, [])
    assert summary["outcomes"]["ok"] == summary["rows"] == len(given)
    assert held(etcd) == given

    out = tmp_path / ANY_NAME
    code, summary, errors = job("export", out, "--store", etcd, "--option", "partitions=3")
    assert (code, errors) == (0, [])
    assert (summary["rows"], summary["snapshot"]) == (len(given), True)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["revision"] == summary["revision"]
    assert sum(file["rows"] for file in manifest["files"]) == len(given)
    assert {"url": etcd, "prefix": "/", "schema_version": 2}.items() <= manifest.items()
    for file in manifest["files"]:
        table = pq.read_table(out / "data" / file["name"])
        paths = table.column("path").to_pylist()
        assert paths == sorted(paths)
        assert (len(paths), paths[0], paths[-1]) == (file["rows"], file["first"], file["last"])
    assert job("diff", etcd, out)[0] == 0

    with bk.open_store(rocksdb) as store:
        store.put("/topics/empty", b"mine").result()
    dry = {"dry_run": True, "would_create": len(given) - 1, "would_replace": 1}
    assert job("restore", out, "--store", rocksdb, "--dry-run")[1] == {"job": "restore", **dry}
    with bk.open_store(rocksdb) as store:
        store.delete("/topics/empty").result()
        # A load tells the same.
        records, args = tmp_path / "in.jsonl", ("--store", rocksdb, "--dry-run")
        assert next(store.scan("/"), None) is None
    dry |= {"would_create": len(given), "would_replace": 0, "bad_rows": 0}
    assert job("load", records, *args)[1] == {"job": "load", **dry}
    code, summary, errors = job("restore", out, "--store", rocksdb)
    assert (code, errors) == (0, [])
    assert summary["outcomes"]["ok"] == len(given)
    assert held(rocksdb) == given

    changed = "/topics/empty"
    with bk.open_store(rocksdb) as store:
        store.put(changed, b"not any more").result()
        store.put("/topics/new", b"").result()
    code, summary, errors = job("diff", out, rocksdb, "--prefix", "/topics")
    assert (code, errors) == (1, [])
    assert (summary["different"], summary["paths_different"]) == (1, [changed])
    assert (summary["only_right"], summary["paths_only_right"]) == (1, ["/topics/new"])
    assert (summary["only_left"], summary["equal"]) == (0, len(given) - 1)


@pytest.mark.full
def test_copies_between_all_pairs_of_stores_are_equal(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Values copied along a chain of all six pairs of stores arrive unchanged."""
    given = values(1200)
    stores = [
        fresh_url(scheme)
        for scheme in ("etcd", "zookeeper", "rocksdb", "etcd", "rocksdb", "zookeeper", "etcd")
    ]
    fill(stores[0], given)
    with bk.open_store(stores[0]) as store:
        store.put("/topics/empty", b"").result()  # At version 1 now.
    for number, (source, target) in enumerate(pairwise(stores)):
        state = tmp_path / f"state-{number}"
        code, summary, errors = job(
            "copy", "--from", source, "--to", target, "--state", state, "--option", "partitions=4"
        )
        assert (code, errors) == (0, []), (source, target, summary)
        assert summary["verified"]
        assert summary["paths"] == {"ok": len(given)}
        assert summary["changed_meanwhile"] == 0
        rows = {row["path"]: row for row in pq.read_table(state / "report").to_pylist()}
        assert len(rows) == len(given)
        if number == 0:
            assert rows["/topics/empty"]["source_version"] == 1
        assert rows["/topics/empty"]["target_version"] == 0
    assert held(stores[-1]) == given
    with bk.open_store(stores[-1]) as store:
        store.put("/topics/empty", b"other").result()
    code, summary, _ = job("diff", stores[0], stores[-1])
    assert (code, summary["paths_different"]) == (1, ["/topics/empty"])
    assert summary["equal"] == len(given) - 1


def test_an_export_is_of_one_revision_while_others_write(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Every value of an export is the one that the store held at the manifest's revision."""
    url = fresh_url("etcd")
    paths = [f"/counters/c{number:02}" for number in range(40)]
    fill(url, dict.fromkeys(paths, b"0"))
    ended = Event()

    def count() -> None:
        with bk.open_store(url) as store:
            turn = 0
            while not ended.is_set():
                turn += 1
                for path in paths:  # One after the other: at a revision, no two turns apart.
                    store.put(path, str(turn).encode()).result()

    writer = Thread(target=count)
    writer.start()
    try:
        code, summary, errors = job(
            "export", tmp_path / "out", "--store", url, "--option", "partitions=8"
        )
    finally:
        ended.set()
        writer.join()
    assert (code, errors) == (0, [])
    rows = pq.read_table(tmp_path / "out" / "data").to_pylist()
    assert [row["path"] for row in rows] == paths
    assert max(row["revision"] for row in rows) <= summary["revision"]
    turns = [int(row["value"]) for row in rows]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] - turns[-1] <= 1
    with bk.open_store(url) as store:
        then = contents(store, revision=summary["revision"])
        assert {row["path"]: row["value"] for row in rows} == then
        assert int(store.get(paths[0]).result().value) > turns[0]  # type: ignore[union-attr]


def test_an_attempt_that_fails_leaves_nothing_in_an_export(
    job: Job, spark: SparkSession, own_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> None:
    """A retried task writes its range again, and the file of the earlier attempt is removed."""
    server = own_etcd()
    given = {f"/t/{number:05}": bytes(2000) for number in range(12_000)}
    fill(server.url, given)
    out = tmp_path / "out"
    tracker = spark.sparkContext.statusTracker()

    def failed() -> bool:
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(info.numFailedTasks for info in infos if info is not None)

    def interfere() -> list[str]:
        begun = until(lambda: [path.name for path in out.glob("data/.part*")])
        server.pause()
        try:
            until(failed)
        finally:
            server.resume()
        return begun

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(interfere)
        code, summary, errors = job(
            "export", out, "--store", server.url, "--option", "partitions=1", "--timeout", "1"
        )
        (lost,) = seen.result()
    assert (code, errors, summary["rows"]) == (0, [], len(given))
    [kept] = [path.name for path in (out / "data").iterdir()]
    assert kept.startswith("part-00000-")
    assert lost.startswith(".part-00000.")
    assert job("diff", server.url, out)[0] == 0


def test_an_export_that_fails_leaves_the_earlier_one_as_it_was(
    job: Job,
    own_etcd: Callable[..., EtcdServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --overwrite, an export is replaced by a whole one, or not at all."""
    server, out = own_etcd(), tmp_path / "out"
    given = {f"/t/{number:05}": bytes(2000) for number in range(12_000)}
    fill(server.url, given)
    export = ("export", out, "--store", server.url, "--option", "partitions=1", "--timeout", "1")
    assert job(*export)[0] == 0
    before = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def interfere() -> None:
        until(lambda: list(out.glob("data/.part*")))
        server.kill()

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(interfere)
        code, summary, errors = job(*export, "--overwrite", "--connect-timeout", "1")
        seen.result()
    assert (code, summary, len(errors)) == (2, None, 1)
    assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    server.start()
    assert job("diff", server.url, out)[0] == 0

    def fail(*_: object) -> None:
        raise JobError("the folder has gone", "InputError")

    # Where the last files get their names, or the manifest its content.
    for failing in ("move", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(Folder, failing, fail)
            assert job(*export, "--overwrite")[0] == 3
        assert job("diff", server.url, out)[0] == 0
    with bk.open_store(server.url) as store:
        store.put("/t/00000", b"new").result()
    assert job(*export, "--overwrite")[0] == 0
    assert len([*(out / "data").iterdir()]) == 1
    assert pq.read_table(out / "data").column("value")[0].as_py() == b"new"
    assert sorted(path.name for path in out.iterdir()) == ["data", "manifest.json"]


@pytest.mark.full
def test_a_killed_export_is_no_export_and_is_replaced(
    job: Job, own_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> None:
    """The files of a killed driver are refused by name, and --overwrite replaces them."""
    server, out = own_etcd(), tmp_path / "out"
    given = {f"/t/{number:05}": bytes(2000) for number in range(12_000)}
    fill(server.url, given)
    arguments = ["export", str(out), "--store", server.url, "--option", "partitions=4"]
    running = subprocess.Popen(
        [*COMMAND, "spark", *arguments, "--master", "local[1]"],
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    with running:
        try:
            until(lambda: running.poll() is not None or list(out.glob("data/.part*")))
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    code, _, errors = job("restore", out, "--store", server.url)
    assert (code, len(errors)) == (3, 1)
    assert "it has no manifest.json" in errors[0]
    code, _, errors = job(*arguments)
    assert (code, len(errors)) == (3, 1)
    assert "--overwrite replaces an earlier export" in errors[0]
    code, summary, errors = job(*arguments, "--overwrite")
    assert (code, errors, summary["rows"]) == (0, [], len(given))
    assert not list(out.glob("data/.*"))
    assert job("diff", server.url, out)[0] == 0


@pytest.mark.full
def test_folders_may_have_any_name(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A name may contain pattern characters of Spark, and characters quoted in a URI."""
    source, target = fresh_url("etcd"), fresh_url("etcd")
    fill(source, {"/a": b"1"})
    out = tmp_path / ANY_NAME
    assert job("export", out, "--store", source)[0] == 0
    assert (out / "manifest.json").exists()
    assert job("diff", source, out)[0] == 0
    assert job("diff", source, out.as_uri())[0] == 0
    assert job("restore", out.as_uri(), "--store", target)[0] == 0
    assert held(target) == {"/a": b"1"}
    state = tmp_path / f"state {ANY_NAME}"
    code, _, errors = job("copy", "--from", source, "--to", fresh_url("etcd"), "--state", state)
    assert (code, errors) == (0, [])


@pytest.mark.full
def test_a_killed_copy_is_taken_up_again_and_says_what_has_changed(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """After a kill, --resume copies the rest, and reports changes in ZooKeeper since then."""
    given = values(600)
    source, target = fresh_url("zookeeper"), fresh_url("etcd")
    fill(source, given)
    state = tmp_path / "state"
    arguments = ["copy", "--from", source, "--to", target, "--state", str(state)]
    slowly = ["--option", "rate_limit=75", "--option", "rate_tasks=2", "--option", "partitions=12"]
    running = subprocess.Popen(
        [*COMMAND, "spark", *arguments, *slowly, "--master", "local[2]"],
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    with running:
        try:
            while len(list((state / "report").glob("range-*.parquet"))) < 3:
                assert running.poll() is None, running.stderr
                time.sleep(0.05)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    done = pq.read_table(sorted((state / "report").glob("range-*.parquet"))).to_pylist()
    assert 0 < len(done) < len(given)
    # Tasks of the killed driver may still write or remove a file that is no range yet.
    shutil.copytree(state, tmp_path / "again", ignore=shutil.ignore_patterns(".*"))

    code, _, errors = job(*arguments)
    assert (code, len(errors)) == (3, 1)
    assert "pass --resume to continue it" in errors[0]

    code, summary, errors = job(*arguments, "--resume")
    assert (code, errors) == (0, []), summary
    assert 3 <= summary["ranges_done_before"] < 12
    assert summary["rows"] < len(given)
    assert sum(summary["paths"].values()) == len(given)
    assert (summary["verified"], summary["changed_meanwhile"]) == (True, 0)
    assert held(target) == given

    kept = [row["path"] for row in done if row["path"] != "/topics"]
    with bk.open_store(source) as store:
        store.put(kept[0], b"changed after it was copied").result()
        store.delete(kept[1]).result()
        store.put("/topics/zzz", b"made after the copy began").result()
    arguments[-1] = str(tmp_path / "again")
    code, summary, errors = job(*arguments, "--resume")
    assert (code, errors) == (1, [])
    assert summary["changed_meanwhile"] == 3
    assert summary["verification"] == {
        "equal": len(given) - 1,
        "missing": 0,
        "different": 1,
        "only_in_target": 1,
    }
    assert summary["unlike"] == [kept[0]]


def test_what_a_session_holds_is_left_out_and_counted(
    job: Job, zookeeper_server: ZooKeeperServer, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Ephemeral nodes stay behind, in a copy and in a restore, and are counted."""
    source, target, other = (fresh_url(scheme) for scheme in ("zookeeper", "etcd", "etcd"))
    fill(source, {"/hubs": b"", "/topics/a": b"1"})
    with zookeeper_client(source) as client:
        client.create("/hubs/h1", b"alive", ephemeral=True)
        code, summary, _ = job(
            "copy", "--from", source, "--to", target, "--state", tmp_path / "state"
        )
        assert (code, summary["ephemeral_left_out"]) == (0, 1)
        job("export", tmp_path / "out", "--store", source)
        code, summary, _ = job("restore", tmp_path / "out", "--store", other)
        assert (code, summary["ephemeral_left_out"]) == (0, 1)
        assert held(target) == held(other) == {"/hubs": b"", "/topics/a": b"1"}
        assert job("diff", source, target)[0] == 0
        code, summary, _ = job("diff", source, target, "--ephemeral")
        assert (code, summary["paths_only_left"]) == (1, ["/hubs/h1"])


def test_a_copy_keeps_what_the_target_holds_unless_told_otherwise(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Another value at the target is a conflict in the report; --overwrite replaces it."""
    source, target = fresh_url("etcd"), fresh_url("etcd")
    fill(source, {"/a": b"1", "/b": b"2"})
    fill(target, {"/b": b"mine", "/c": b"mine"})
    arguments = ("copy", "--from", source, "--to", target, "--option", "partitions=1")
    # A dry run says beforehand which path that is, and writes nothing.
    dry = job(*arguments, "--state", tmp_path / "one", "--dry-run", "--overwrite")[1]
    assert (dry["would_create"], dry["paths_would_replace"]) == (1, ["/b"])
    code, summary, errors = job(*arguments, "--state", tmp_path / "one")
    assert (code, errors) == (1, [])
    assert summary["paths"] == {"ok": 1, "conflict": 1}
    assert summary["unlike"] == ["/b"]
    assert held(target) == {"/a": b"1", "/b": b"mine", "/c": b"mine"}
    code, summary, errors = job(*arguments, "--state", tmp_path / "two", "--overwrite")
    assert (code, errors) == (0, [])
    assert held(target) == {"/a": b"1", "/b": b"2", "/c": b"mine"}
    assert summary["verification"]["only_in_target"] == 1


def test_a_prefix_bounds_a_job_and_must_hold_something(
    job: Job, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A job covers the value at its prefix and all values below it; one without any is mistyped."""
    source, target = fresh_url("etcd"), fresh_url("etcd")
    fill(source, {"/a": b"1", "/a/b": b"2", "/a/b/c": b"3", "/a/bc": b"4", "/a/b.c": b"5"})
    out, copied = tmp_path / "out", ("copy", "--from", source, "--to", target, "--state")
    code, summary, errors = job("export", out, "--store", source, "--prefix", "/a/b")
    assert (code, errors, summary["rows"]) == (0, [], 2)
    assert job("diff", source, out, "--prefix", "/a/b")[0] == 0
    code, summary, errors = job("restore", out, "--store", target)
    assert (code, errors, summary["rows"]) == (0, [], 2)
    below = ("--prefix", "/a/b", "--from-option", "partitions=2")
    code, summary, errors = job(*copied, tmp_path / "state", *below)
    assert (code, errors, summary["verified"]) == (0, [], True)
    assert summary["paths"] == {"already_applied": 2}
    for code, *arguments in (
        (1, "export", out, "--store", source, "--overwrite"),
        (1, *copied, tmp_path / "new"),
        (1, *copied, tmp_path / "new", "--dry-run"),
        (2, "diff", source, out),
    ):
        ended, summary, (error,) = job(*arguments, "--prefix", "/none")
        assert (ended, summary) == (code, None)
        assert error.startswith("batchkeeper: no value is at or below '/none': check the path, ")
        assert "--resume" not in error
    assert pq.read_table(out / "data").column("path").to_pylist() == ["/a/b", "/a/b/c"]
    assert sorted(held(target)) == ["/a/b", "/a/b/c"]
    code, summary, _ = job("diff", source, target)
    assert (code, summary["paths_only_left"]) == (1, ["/a", "/a/b.c", "/a/bc"])

"""The examples, run as their users run them."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batchkeeper import Put, open_store

from ..contents import contents
from ..programs import spark_environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.full
@pytest.mark.server
def test_a_declarative_pipeline(fresh_url: Callable[[str], str], tmp_path: Path) -> None:
    """``spark-pipelines run`` creates tables of a store's contents and of its changes.

    The data source is found by itself, through Spark Connect.
    """
    url = fresh_url("etcd")
    with open_store(url) as store:
        store.apply([Put(f"/topics/{i}", b"hub-%d" % (i % 2)) for i in range(10)])
        store.put("/topics/0", b"hub-1").result()
        store.delete("/topics/1").result()
        held = contents(store, "/topics")
        history = list(store.changes("/topics", 0, store.revision()))
    folder = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "declarative", folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/batchkeeper-pipeline" in text
    storage = (tmp_path / "storage").as_uri()
    spec.write_text(text.replace("file:///tmp/batchkeeper-pipeline", storage))
    command = Path(sys.executable).with_name("spark-pipelines")
    local = ["--conf", "spark.ui.enabled=false", "--remote", "local[2]"]
    local += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1"]
    local += ["--conf", "spark.sql.shuffle.partitions=2"]
    ended = subprocess.run(
        [command, "run", "--spec", spec, *local],
        cwd=tmp_path,
        env={
            **os.environ,
            **spark_environment(),
            "BATCHKEEPER_URL": url,
            # Has Spark take a free port for its Connect server, and not the same one always.
            "SPARK_TESTING": "1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr

    def table(name: str) -> list[dict[str, object]]:
        rows = pq.read_table(tmp_path / "spark-warehouse" / name).to_pylist()
        assert isinstance(rows, list)
        return rows

    assert {f"/topics/{row['topic']}": row["owner"] for row in table("topics")} == {
        path: value.decode() for path, value in held.items()
    }
    assert {row["owner"]: row["topics"] for row in table("owners")} == {"hub-0": 4, "hub-1": 5}
    assert sorted((row["revision"], row["path"], row["op"]) for row in table("moves")) == sorted(
        (change.revision, change.path, change.op) for change in history
    )
    assert len(history) == 12


def test_the_script_that_moves_topics(
    spark: SparkSession,
    fresh_url: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All topics of the hub are moved, others stay, and the count is printed."""
    assert spark is not None  # the script takes the session that is there
    url = fresh_url("etcd")
    with open_store(url) as store:
        store.apply([Put(f"/topics/{i}", b"hub-%d" % (i % 2)) for i in range(10)])
        monkeypatch.setattr(sys, "argv", ["bulk_apply.py", url, "hub-1", "hub-2"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / "bulk_apply.py"), run_name="__main__")
        assert ended.value.code == 0
        assert "5 topics moved, 0 not" in capsys.readouterr().out
        owners = [value for _, value, _ in store.scan("/topics")]
    assert sorted(owners) == [b"hub-0"] * 5 + [b"hub-2"] * 5

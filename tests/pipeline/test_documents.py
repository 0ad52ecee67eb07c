"""The examples of the documents on Spark, run as they stand."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batchkeeper import Put, open_store
from batchkeeper.pipeline import register

from ..contents import contents

DOCS = Path(__file__).parents[2] / "docs"


def examples(document: str) -> list[str]:
    """Return the Python examples of a document."""
    return re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)


@pytest.mark.server
def test_the_examples_on_reading_writing_and_streams_run(
    spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Each runs in the order of the document, with real addresses in place of those in it."""
    source, target, copy = fresh_url("etcd"), fresh_url("etcd"), fresh_url("zookeeper")
    with open_store(source) as store:
        store.apply([Put(f"/topics/{i}", b"hub-1") for i in range(10)])
    reading, writing, streams, java = examples("spark.md")
    space: dict[str, Any] = {"spark": spark, "url": target}

    exec(reading.replace("etcd://127.0.0.1:2379", source), space)
    # One task: each cold worker of Spark takes seconds to start.
    space["rows"] = space["topics"].select("path", "value").coalesce(1)
    exec(writing, space)
    assert {row["status"] for row in space["outcomes"].collect()} == {"ok"}
    with open_store(target) as store:
        assert len(contents(store, "/topics")) == 10

    streams = streams.replace("etcd://127.0.0.1:2379", source)
    streams = streams.replace("zookeeper://127.0.0.1:2181/copy", copy)
    exec(streams.replace("/var/lib/copy", str(tmp_path / "checkpoint")), space)
    (query,) = spark.streams.active
    try:
        query.processAllAvailable()  # It begins with what changes after its start.
        with open_store(source) as store:
            store.put("/topics/new", b"hub-2").result()
        query.processAllAvailable()
        with open_store(copy) as store:
            assert contents(store, "/topics") == {"/topics/new": b"hub-2"}
    finally:
        query.stop()
    exec(java, space)


@pytest.mark.server
def test_the_examples_on_clusters_run(
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The script passes its arguments on to the command; the check names Python and package."""
    job, check = examples("spark-cluster.md")
    (tmp_path / "job.py").write_text(job)
    monkeypatch.setattr(sys, "argv", ["job.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "job.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "restore" in capsys.readouterr().out

    register(spark)
    exec(check, {"spark": spark})
    (line,) = capsys.readouterr().out.splitlines()
    assert sys.prefix in line

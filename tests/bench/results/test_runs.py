"""Results as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.bench.results.advice import summary
from batchkeeper.bench.results.runs import SCHEMA_VERSION, read_run, write_run
from batchkeeper.ops.errors import InvalidSettingError

from .made import measured, noisy, series


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the results of a run."""
    found = noisy({"single": 3e3, "default": 1e4, "max_ops=16": 2e4}, 3)
    found.variants[1].rounds[0] = measured(0, 1e3, series=series(1000))
    file = tmp_path / "run.json"
    file.write_text(write_run(found, summary(found)))
    return file


def test_a_run_is_read_as_it_was_written(file: Path) -> None:
    """Every field comes back, series and histograms included."""
    found = read_run(file)
    assert write_run(found, summary(found)) == file.read_text()
    assert found.variants[1].rounds[0].series[-1].operations == 100
    assert found.variants[1].rounds[0].latencies["all"].histogram
    assert dataclasses.is_dataclass(found.variants[0].rounds[0].latencies["reads"])


def test_the_document_names_its_schema(file: Path) -> None:
    """Programs can tell what they read, and need not compute medians themselves."""
    document = json.loads(file.read_text())
    assert (document["schema"], document["schema_version"]) == ("batchkeeper.bench", SCHEMA_VERSION)
    assert document["summary"]["variants"]["max_ops=16"]["rate"]["median"] > 1e4


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def make(document: dict[str, Any]) -> None:
        document[key] = value

    return make


def rounds_without_rate(document: dict[str, Any]) -> None:
    del document["variants"][0]["rounds"][0]["rate"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change("schema_version", 1), "has version 1 of the schema"),
        (change("schema_version", None), "has version None of the schema"),
        (change("schema", "other"), "is not a result of `batchkeeper bench`"),
        (change("variants", None), "is damaged"),
        (change("variants", [{"name": "x"}]), "is damaged"),
        (change("variants", [7]), "is damaged"),
        (rounds_without_rate, "is damaged"),
    ],
)
def test_other_and_damaged_files_are_refused(
    damage: Callable[[dict[str, Any]], None], said: str, file: Path
) -> None:
    """The message names the file and what is wrong with it."""
    document = json.loads(file.read_text())
    damage(document)
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidSettingError, match=said) as caught:
        read_run(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "is not a"),
    ],
)
def test_what_is_no_result_is_refused(content: bytes, said: str, file: Path) -> None:
    """Empty files, cut ones, other encodings, and other JSON."""
    file.write_bytes(content)
    with pytest.raises(InvalidSettingError, match=said):
        read_run(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The reason is the system's."""
    with pytest.raises(InvalidSettingError, match="No such file"):
        read_run(tmp_path / "absent.json")


def test_fields_of_later_versions_are_ignored(file: Path) -> None:
    """A field that was added later does not stop an older reader."""
    document = json.loads(file.read_text())
    document["later"] = 1
    document["variants"][0]["later"] = document["variants"][0]["rounds"][0]["later"] = 2
    file.write_text(json.dumps(document))
    assert [variant.name for variant in read_run(file).variants] == [
        "single", "default", "max_ops=16"
    ]  # fmt: skip


def test_fields_of_earlier_versions_have_their_defaults(file: Path) -> None:
    """A field that was added since has a default, and a file without it is not damaged."""
    document = json.loads(file.read_text())
    for name in ("broken", "answers_checked", "paths_read_back"):
        del document["variants"][0]["rounds"][0][name]
    found = read_run(file)
    file.write_text(json.dumps(document))
    assert read_run(file).variants[0].rounds[0].answers_checked == 0
    assert read_run(file).variants[1] == found.variants[1]

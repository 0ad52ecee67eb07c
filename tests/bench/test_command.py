"""The command ``batchkeeper bench``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper import Stat
from batchkeeper.bench.baseline import PLAIN_CLIENTS
from batchkeeper.bench.target import BARE_TARGETS
from batchkeeper.cli import main
from batchkeeper.stores import BUILT_IN, memory
from batchkeeper.stores.backend import Answer, Backend, PassingBackend, Request
from batchkeeper.stores.registry import ConnectOptions, StoreURL

from ..programs import TINY_BENCH

SETTINGS = ["single", "default", "5 ops, 5 ms, 1 in flight", "50 ops, 5 ms, 1 in flight"]

# The throw-away servers, which these tests start by their names.
TARGETS = [
    pytest.param(name, marks=[pytest.mark.server] if BUILT_IN[name].server else [])
    for name in BARE_TARGETS
]


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., int]:
    """Run the command with tiny sizes and a new folder."""

    def run(*arguments: str) -> int:
        try:
            return main(["bench", "--dir", str(tmp_path), *TINY_BENCH, *arguments])
        except SystemExit as ended:  # by the parser of arguments
            return int(ended.code or 0)

    return run


def one_line(text: str) -> str:
    """The only line of an output that is an error message."""
    (line,) = text.splitlines()
    return line


@pytest.mark.parametrize("positional", [(), ("memory://measured",)])
def test_the_option_store_names_the_target(
    positional: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--store URL`` before the command is the target; naming it twice is no contradiction."""
    url = "memory://measured"
    common = ["--store", url, "-o", "json"]
    assert main([*common, "bench", "--dir", str(tmp_path), *TINY_BENCH, *positional]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == url


def test_two_different_targets_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store by option and another by position are bad input."""
    stores = ["--store", "memory://one", "bench", "memory://two"]
    assert main([*stores, "--dir", str(tmp_path), *TINY_BENCH]) == 3
    message = one_line(capsys.readouterr().err)
    assert "memory://one" in message
    assert "memory://two" in message


def test_the_environment_names_no_target(
    bench: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store in BATCHKEEPER_STORE is not measured if no target is given."""
    monkeypatch.setenv("BATCHKEEPER_STORE", "memory://of-everyday-use")
    assert bench("-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["target"] == "rocksdb"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_measured_from_end_to_end(
    target: str,
    bench: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each kind of store gives a table with every setting, and a file with the same as JSON."""
    file = tmp_path / "result.json"
    assert bench(target, "--json", str(file)) == 0
    out, err = capsys.readouterr()
    for name in SETTINGS:
        # One row of the hubs' work, one of the puts.
        assert sum(line.startswith(f"{name} ") for line in out.splitlines()) == 2
    assert "all as acknowledged" in out
    assert err.splitlines()[-1] == f"batchkeeper: the same as JSON: {file}"
    report = json.loads(file.read_text())
    assert [setting["name"] for setting in report["settings"]] == SETTINGS
    assert report["paths_read_back"] > 2 * len(SETTINGS) * 32
    assert [path for path in tmp_path.iterdir() if path != file] == []
    assert (report["plain_client"] is None) is (target not in PLAIN_CLIENTS)
    assert (report["disk"] is None) is BUILT_IN[target].in_process
    if target in PLAIN_CLIENTS:
        plain = report["plain_client"]
        assert f"puts against {plain['call']} in a loop" in out
        assert plain["target"] == {"rocksdb": 8, "etcd": 15, "zookeeper": 15}[target]
        assert plain["best_setting"] in SETTINGS[1:]
        assert set(plain["times_plain"]) == set(SETTINGS)
        assert len(plain["puts_per_second"]["rounds"]) == 2
        assert f"disk     {report['disk']['file_system']}; an fsync takes" in out
        assert report["disk"]["fsync_seconds"] > 0


def test_the_json_holds_every_figure(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``-o json`` standard output is one document with stable names, and nothing else."""
    assert bench("memory", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {
        *("batchkeeper", "machine", "target", "store", "members", "disk", "workload", "rounds"),
        *("duration", "settings", "plain_client", "paths_read_back"),
    }
    assert report["workload"]["mix"] == {
        "advance": 50, "owner": 20, "mark": 20, "rival": 0, "drop": 10
    }  # fmt: skip
    single, *others = report["settings"]
    assert not single["batching"]["enabled"]
    assert single["hub"]["operations_per_batch"] == 1
    assert single["hub"]["times_single"] == {"median": 1, "low": 1, "high": 1}
    for setting in [single, *others]:
        for phase in (setting["hub"], setting["puts"]):
            rate = phase["operations_per_second"]
            assert rate["low"] <= rate["median"] <= rate["high"]
            assert min(rate["rounds"]) == rate["low"] > 0
            latency = phase["latency_seconds"]["all"]
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
            assert phase["flush_causes"]
        assert setting["hub"]["latency_seconds"]["reads"]["p50"] > 0
        assert setting["puts"]["latency_seconds"]["reads"]["p50"] == 0
    assert others[1]["batching"]["max_ops"] == 5
    assert 1 < others[1]["puts"]["operations_per_batch"] <= 5


def test_the_output_option_may_stand_before_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``batchkeeper -o jsonl bench`` gives the report on one line."""
    assert main(["-o", "jsonl", "bench", "--dir", str(tmp_path), *TINY_BENCH, "memory"]) == 0
    assert json.loads(one_line(capsys.readouterr().out))["target"] == "memory"


def test_without_a_name_the_json_lies_in_the_directory(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is new, and its path is printed."""
    assert bench("memory") == 0
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("bench-memory-")
    assert str(file) in capsys.readouterr().err


def test_progress_is_lines_where_there_is_no_terminal(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step has a line with its number, and the rounds begin at different settings."""
    assert bench("memory") == 0
    steps = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert steps[0] == "[1/8] round 1 of 2: single"
    assert steps[4] == f"[5/8] round 2 of 2: {SETTINGS[2]}"
    assert len(steps) == 8


def test_several_threads_share_the_work(bench: Callable[..., int]) -> None:
    """The hubs run on as many threads as are asked for, and what they wrote is checked."""
    assert bench("memory", "--threads", "3") == 0


class Liar(PassingBackend):
    """A back end that acknowledges a put and does something else instead."""

    def __init__(self, backend: Backend, path_end: str, instead: bytes | None) -> None:
        super().__init__(backend)
        self._path_end = path_end
        self._instead = instead

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        answers = list(super().write(requests, deadline))
        for request, answer in zip(requests, answers, strict=True):
            if request.path.endswith(self._path_end) and isinstance(answer, Stat):
                undo: Any = memory_request("delete", request.path)
                super().write([undo], deadline)
                if self._instead is not None:
                    redo: Any = memory_request("put", request.path, self._instead)
                    super().write([redo], deadline)
        return answers


def memory_request(kind: str, path: str, value: bytes | None = None) -> Any:
    return SimpleNamespace(kind=kind, path=path, value=value, expected_version=None, options=None)


@pytest.mark.parametrize(
    ("instead", "said"), [(None, "acknowledged at version 0, but missing"), (b"bad", "but holds")]
)
def test_a_store_that_lies_fails_the_bench(
    instead: bytes | None,
    said: str,
    bench: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One acknowledged put that is lost, or holds something else, ends with 1 and its path."""
    honest = memory.connect

    def connect(url: StoreURL, options: ConnectOptions) -> Backend:
        return Liar(honest(url, options), "/puts/7", instead)

    monkeypatch.setattr(memory, "connect", connect)
    assert bench("memory") == 1
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("batchkeeper: the store lost or changed an acknowledged write: ")
    assert said in last
    assert last.endswith("/puts/7")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "neither a store's URL nor one of rocksdb, etcd, zookeeper, memory"),
        (["ftp://host"], "unknown store scheme 'ftp'"),
        (["--hubs", "x"], "argument --hubs: not an int: 'x'"),
        (["--hubs", "0"], "hubs must be an int from 1 to 10000, not 0"),
        (["--rounds", "0"], "argument --rounds: must be at least 1, not 0"),
        (["--seconds", "nan"], "argument --seconds: not a number: 'nan'"),
        (["--max-ops", "5,"], "argument --max-ops: not an int: ''"),
        (["--max-ops", "0"], "max_ops must be an int from 1 to 1000000, not 0"),
        (["--max-delay", "61"], "max_delay must be from 0 to 60 seconds, not 61.0"),
        (["--max-in-flight", "257"], "max_in_flight must be an int from 1 to 256, not 257"),
        (["--mix", "advance"], "argument --mix: must be STEP=WEIGHT, each step once: 'advance'"),
        (
            ["--mix", "mark=1,mark=2"],
            "argument --mix: must be STEP=WEIGHT, each step once: 'mark=2'",
        ),
        (["--mix", "dance=1"], "the mix has no step 'dance'"),
        (
            ["--json", "/nowhere/at/all/file"],
            "not a file that can be written: /nowhere/at/all/file",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_3(
    arguments: list[str],
    message: str,
    bench: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is measured, and the line names what is wrong."""
    assert bench(*arguments) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert message in one_line(err)


def test_an_unreachable_server_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address is in the message, and the time to connect can be chosen."""
    arguments = ["--connect-timeout", "0.5", "bench", "--dir", str(tmp_path), "etcd://127.0.0.1:9"]
    assert main(arguments) == 2
    assert "127.0.0.1:9" in one_line(capsys.readouterr().err)


def test_a_missing_server_is_one_line_and_exit_code_2(
    bench: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says what is missing."""
    monkeypatch.setenv("BATCHKEEPER_ETCD", "/nowhere/etcd")
    assert bench("etcd") == 2
    assert "BATCHKEEPER_ETCD must name an executable file" in one_line(capsys.readouterr().err)


@pytest.mark.server
@pytest.mark.parametrize("target", ["etcd", "zookeeper"])
def test_a_cluster_is_measured(
    target: str, bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--members 3`` measures a cluster; the table and the JSON name the number of members."""
    file = tmp_path / "result.json"
    assert bench(target, "--members", "3", "--json", str(file)) == 0
    assert "members  3, all on this machine" in capsys.readouterr().out.splitlines()
    report = json.loads(file.read_text())
    assert report["members"] == 3
    assert report["store"].count(":") == 4  # Three addresses, and the one of the scheme.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("etcd", "--members", "0"), "must be 1, 3, 5 or 7, not 0"),
        (("etcd", "--members", "2"), "must be 1, 3, 5 or 7, not 2"),
        (("zookeeper", "--members", "many"), "argument --members: not an int: 'many'"),
        (("etcd://127.0.0.1:2379", "--members", "3"), "not for 'etcd://127.0.0.1:2379'"),
        (("rocksdb", "--members", "3"), r"\(etcd, zookeeper\), and not for 'rocksdb'"),
        (("memory", "--members", "1"), r"\(etcd, zookeeper\), and not for 'memory'"),
    ],
)
def test_a_cluster_that_cannot_be(
    arguments: tuple[str, ...],
    message: str,
    bench: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A size that no cluster has, or members of a store that is not started, are bad input."""
    assert bench(*arguments) == 3
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])

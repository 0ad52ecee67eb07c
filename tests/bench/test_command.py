"""The command ``batchkeeper bench``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper import Stat
from batchkeeper.bench.load.job import Job
from batchkeeper.bench.load.parts import Part
from batchkeeper.bench.load.peers import peers_of
from batchkeeper.bench.load.processes import LocalCrew
from batchkeeper.bench.results.runs import read_run
from batchkeeper.bench.target import BARE_TARGETS
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.cli import main
from batchkeeper.stores import BUILT_IN, memory
from batchkeeper.stores.backend import Answer, Backend, PassingBackend, Request
from batchkeeper.stores.registry import ConnectOptions, StoreURL
from batchkeeper.testing.servers import SERVERS

from ..programs import TINY_BENCH

pytestmark = pytest.mark.slow

VARIANTS = ["single", "default", "max_ops=5 max_delay=5ms", "max_ops=50 max_delay=5ms"]

# The throw-away servers, which these tests start by their names. The default and one of the servers
# stand for all.
TARGETS = [
    pytest.param(
        name,
        marks=[
            *([pytest.mark.server] if name in SERVERS else []),
            *([] if name in {"rocksdb", "etcd"} else [pytest.mark.full]),
        ],
    )
    for name in BARE_TARGETS
    if name != "hbase"  # Its server is not on every machine.
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


@pytest.mark.parametrize(
    "positional", [pytest.param((), marks=pytest.mark.full), ("memory://measured",)]
)
def test_the_option_store_names_the_target(
    positional: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--store URL`` before the command is the target; naming it twice is no contradiction."""
    url = "memory://measured"
    common = ["--store", url, "-o", "json"]
    assert main([*common, "bench", "--dir", str(tmp_path), *TINY_BENCH, *positional]) == 0
    assert json.loads(capsys.readouterr().out)["conditions"]["target"] == url


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
    assert json.loads(capsys.readouterr().out)["conditions"]["target"] == "rocksdb"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_measured_from_end_to_end(
    target: str, bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of store, with its peers, gives a table and a file of results."""
    file = tmp_path / "result.json"
    assert bench(target, "--peers", "--json", str(file)) == 0
    out, err = capsys.readouterr()
    peers = [peer.title for peer in peers_of(target)]
    for name in [*VARIANTS, *peers]:
        assert any(line.startswith(f"{name} ") for line in out.splitlines()), name
    assert err.splitlines()[-1] == f"batchkeeper: the results: {file}"
    run = read_run(file)
    assert [variant.name for variant in run.variants] == [*VARIANTS, *peers]
    for variant in run.variants:
        assert [found.round for found in variant.rounds] == [0, 1]
        for found in variant.rounds:
            assert found.errors == {}
            assert found.answers_checked > 0
            assert found.paths_read_back >= 64
            assert found.latencies["all"].count == found.operations
            assert found.client_cpu > 0
            assert (found.server_cpu is not None) is (target in SERVERS)
            # A busy machine may end no operation in such a short time.
            if found.operations or variant.kind == "peer":
                assert (found.batches > 0) is (variant.kind != "peer")
    assert (run.conditions["disk"] is None) is BUILT_IN[target].in_process
    assert run.load["mix"]["name"] == "hub"
    # Nothing is left of the store, of the server and of the peers.
    assert [path for path in tmp_path.iterdir() if path != file] == []


def test_variants_are_the_combinations_of_all_lists(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any setting takes values, lists and ranges; what equals the default is not measured twice."""
    lists = ["--max-ops", "2..8,1000", "--linger", "adaptive,fixed", "--max-bytes", "256KiB"]
    assert bench("memory", *lists, "--max-delay", "5ms", "--rounds", "1", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["schema_version"]) == ("batchkeeper.bench", 2)
    names = [variant["name"] for variant in report["variants"]]
    assert names[:3] == [
        *("single", "default"),
        "max_ops=2 max_bytes=256KiB max_delay=5ms linger=adaptive",
    ]
    assert len(names) == 2 + 4 * 2 - 1
    settings = report["variants"][-1]["settings"]
    assert (settings["max_ops"], settings["linger"]) == (1000, "fixed")
    assert report["variants"][-1]["varied"]["max_bytes"] == 256 * 1024


def test_a_single_line_of_json_and_csv(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """``-o jsonl`` is one line, and ``-o csv`` one for each variant and round.

    Without a terminal, the progress of every measurement is a line with its number.
    """
    assert bench("memory", "-o", "jsonl", "--rounds", "1", "--max-ops", "50") == 0
    assert json.loads(one_line(capsys.readouterr().out))["conditions"]["target"] == "memory"
    assert bench("memory", "-o", "csv") == 0
    out, err = capsys.readouterr()
    head, *rows = out.splitlines()
    assert head.startswith("variant,")
    assert len(rows) == 2 * len(VARIANTS)
    steps = [line for line in err.splitlines() if line.startswith("[")]
    assert [step.split("]")[0] for step in steps] == [f"[{n}/8" for n in range(1, 9)]
    assert sorted(step.split(": ")[1] for step in steps) == sorted(VARIANTS * 2)


@pytest.mark.parametrize(
    "loop",
    [
        ("--threads", "3", "--mix", "hot-path"),
        ("--rate", "2000", "--p99-budget", "1s"),
    ],
    ids=["threads", "rate"],
)
def test_other_loads(loop: tuple[str, ...], bench: Callable[..., int]) -> None:
    """They are measured, and what they wrote is checked."""
    assert bench("memory", *loop) == 0


def test_rounds_go_on_until_the_figures_are_stable(
    bench: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least five, and no more than the most."""
    monkeypatch.setattr("batchkeeper.bench.sweep.MOST_ROUNDS", 6)
    arguments = ("--rounds", "1", "--max-ops", "50", "--seconds", "20ms", "-o", "json")
    for tolerance, rounds in (("100", {5}), ("0.005", {5, 6})):
        assert bench("memory", *arguments, "--until-stable", tolerance) == 0
        report = json.loads(capsys.readouterr().out)
        assert len(report["variants"][0]["rounds"]) in rounds


def test_tasks_submit_instead_of_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each task has one operation under way."""
    tiny = [argument for argument in TINY_BENCH if argument not in ("--in-flight", "16")]
    assert main(["bench", "--dir", str(tmp_path), *tiny, "memory", "--tasks", "5"]) == 0
    assert "5 operations" in capsys.readouterr().out


def test_halving_measures_what_is_left_more_often(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """All settings take part in the first rounds; the default and single execution in all."""
    grid = ("--max-ops", "1,2,200,400", "--rounds", "2", "--successive-halving")
    assert bench("memory", *grid, "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    rounds = {variant["name"]: len(variant["rounds"]) for variant in report["variants"]}
    assert len(rounds) == 6
    assert min(rounds.values()) >= 3
    assert rounds["default"] == rounds["single"] == max(rounds.values()) >= 5


@pytest.mark.server
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(("--processes", "2"), id="processes"),
        pytest.param(("--spark",), id="spark", marks=pytest.mark.full),
    ],
)
def test_several_processes_share_the_load(
    where: tuple[str, ...], bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes of this machine, or executors of Spark, each have a client of their own."""
    assert bench("etcd", *where, "--rounds", "1", "--max-ops", "50", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["load"]["processes"] == 2
    assert report["load"]["spark"] is (where == ("--spark",))
    for variant in report["variants"]:
        assert variant["rounds"][0]["paths_read_back"] >= 64


def test_runs_are_compared_and_reported(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``compare`` reads two files of results, and ``report`` one."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for file in (first, second):
        assert bench("memory", "--max-ops", "50", "--json", str(file)) == 0
    assert main(["bench", "report", str(first)]) == 0
    assert first.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")
    capsys.readouterr()
    assert main(["bench", "compare", str(first), str(second)]) in (0, 1)
    assert "default" in capsys.readouterr().out


def test_a_run_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless an option disables that, beside the results, and their paths are printed."""
    arguments = ["bench", "--dir", str(tmp_path), *TINY_BENCH[:-1], "memory"]
    assert main([*arguments, "--report", "/nowhere/page"]) == 3
    assert one_line(capsys.readouterr().err).startswith("batchkeeper: /nowhere/page cannot be")
    assert main(arguments) == 0
    page, results = sorted(tmp_path.iterdir())
    assert (page.suffix, results.suffix) == (".html", ".json")
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"batchkeeper: the results: {results}",
        f"batchkeeper: the report: {page}",
    ]


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
        return Liar(honest(url, options), "/0/7", instead)

    monkeypatch.setattr(memory, "connect", connect)
    assert bench("memory", "--mix", "bulk-load") == 1
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("batchkeeper: the store lost or changed an acknowledged write: ")
    assert said in last
    assert last.endswith("/0/7")


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (WrongAnswerError("missing: /a"), 1, "missing: /a"),
    ],
    ids=["interrupt", "wrong answer"],
)
def test_a_run_that_ends_early_keeps_what_was_measured(
    error: BaseException,
    code: int,
    why: str,
    bench: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is shown and saved, and the last line names the variant and the round."""
    measured, left = LocalCrew.measure, [None] * 4

    def measure(crew: LocalCrew, job: Job) -> list[Part]:
        if not left:
            raise error
        left.pop()
        return measured(crew, job)

    monkeypatch.setattr(LocalCrew, "measure", measure)
    file = tmp_path / "kept.json"
    try:
        assert bench("memory", "--rounds", "2", "--max-ops", "50", "--json", str(file)) == code
    except KeyboardInterrupt:
        assert code == 130
    run = read_run(file)
    assert sum(len(variant.rounds) for variant in run.variants) == 4
    assert run.broken is not None
    assert run.broken.endswith(f", round 2: {why}")
    out, err = capsys.readouterr()
    assert "2 interleaved rounds" in out
    assert err.splitlines()[-1].endswith(run.broken)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "neither a store's URL nor one of rocksdb, etcd, zookeeper, hbase, memory"),
        (["ftp://host"], "unknown store scheme 'ftp'"),
        (["memory", "file"], "what is 'file'? Files are only for compare and report"),
        (["compare", "one"], "compare needs two files of results, not 1"),
        (["report"], "report needs one file of results, not 0"),
        (["compare", "/nowhere/a", "/nowhere/b"], "/nowhere/a cannot be read: No such file"),
        (["--in-flight", "x"], "argument --in-flight: not an int: 'x'"),
        (["--seconds", "nan"], "argument --seconds: not a duration such as 10s or 100ms: 'nan'"),
        (["--seconds", "0"], "argument --seconds: must be at least 0.01, not 0"),
        (["--seconds", "9999999999h"], "--seconds: must be at most a year, not 9999999999h"),
        (["--rate", "1e300"], "argument --rate: must be at most 10,000,000, not 1e300"),
        (["--seed", "9" * 400], "argument --seed: not an int: '999"),
        (["--keys", "0"], "keys.count must be more than 0 for delete, get, update\n"),
        (["--keys", "1", "--threads", "2"], "--keys 1 is less than one key for each thread"),
        (["--mix", sys.executable], "not TOML: 'utf-8' codec can't decode"),
        (["--max-ops", "5,"], "argument --max-ops: not an int: ''"),
        (["--max-ops", "5,5"], "argument --max-ops: a value stands there twice: 5,5"),
        (["--max-ops", "9..5"], "not a range of numbers above 0, such as 16..128: 9..5"),
        (["--max-ops", "0"], "max_ops must be an int from 1 to 1000000, not 0"),
        (["--max-delay", "61"], "max_delay must be from 0 to 60 seconds, not 61.0"),
        (["--max-bytes", "1k"], "not a size such as 1000 or 256KiB: '1k'"),
        (["--linger", "long"], "linger must be one of adaptive, fixed, not 'long'"),
        (["--mix", "hubb"], "unknown mix 'hubb'; did you mean hub?"),
        (["--tasks", "5"], "leave out --threads and --in-flight"),
        (["--threads", "17"], "--in-flight 16 is less than one operation for each thread"),
        (["--p99-budget", "5ms"], "--p99-budget needs --rate"),
        (["memory", "--processes", "2"], "several processes cannot share memory (memory)"),
        (["rocksdb", "--spark"], "several processes cannot share RocksDB (rocksdb)"),
        (["--json", "/nowhere/file"], "/nowhere/file cannot be written: No such file"),
        (["--csv", "/tmp"], "/tmp cannot be written: Is a directory"),
        (["--json", "/tmp/a", "--csv", "/tmp/a"], "two results cannot go into the same file"),
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
    assert one_line(err)
    assert message in err


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


@pytest.mark.full
@pytest.mark.server
@pytest.mark.parametrize("target", ["etcd", "zookeeper"])
def test_a_cluster_is_measured(
    target: str, bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--members 3`` measures a cluster; the table and the JSON name the number of members."""
    file = tmp_path / "result.json"
    assert bench(target, "--members", "3", "--json", str(file)) == 0
    assert "3 members" in capsys.readouterr().out
    conditions = json.loads(file.read_text())["conditions"]
    assert conditions["members"] == 3
    assert conditions["store"].count(":") == 4  # Three addresses, and the one of the scheme.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("etcd", "--members", "0"), "must be 1, 3, 5 or 7, not 0"),
        (("etcd", "--members", "2"), "must be 1, 3, 5 or 7, not 2"),
        (("zookeeper", "--members", "many"), "argument --members: not an int: 'many'"),
        (("etcd://127.0.0.1:2379", "--members", "3"), "not for 'etcd://127.0.0.1:2379'"),
        (("rocksdb", "--members", "3"), r"\(etcd, zookeeper, hbase\), and not for 'rocksdb'"),
        (("memory", "--members", "1"), r"\(etcd, zookeeper, hbase\), and not for 'memory'"),
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

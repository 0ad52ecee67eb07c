"""Ephemeral and sequential puts, transactions and watches on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import opening
from batchkeeper.commands import arguments as store_arguments
from batchkeeper.stores import BUILT_IN
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import SERVERS

from ..contents import contents, put_all
from ..programs import COMMAND
from ..waiting import result, until
from .conftest import Run

# A command on a store in memory, beside code that has the same store open: it runs the lines that
# arrive on standard input, and the command in the main thread.
BESIDE = """
import signal, sys, threading
import batchkeeper as bk
from batchkeeper.cli import main

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under nohup, which stays in force.
store = bk.open_store("memory://shared")

def follow():
    for line in sys.stdin:
        exec(line)

threading.Thread(target=follow, daemon=True).start()
code = main(sys.argv[1:])
store.close()
sys.exit(code)
"""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[bk.MetadataStore]:
    """A store in memory that commands find in the environment, open for the whole test."""
    monkeypatch.setenv("BATCHKEEPER_STORE", "memory://commands")
    with bk.open_store("memory://commands") as store:
        yield store


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def message(process: subprocess.Popen[str]) -> str:
    """Return the next message that is not the warning about memory."""
    assert process.stderr is not None
    line = process.stderr.readline()
    return message(process) if "lives in this process" in line else line


def event(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


# --- put


def test_a_sequential_put_prints_the_real_path(run: Run, memory: bk.MetadataStore) -> None:
    """The record names the path with its number, which no later put repeats."""
    code, output, _ = run("put", "/jobs/job-", "1", "--sequential", "-o", "json")
    first = json.loads(output)["path"]
    assert (code, first[:10], len(first)) == (0, "/jobs/job-", 20)
    run("delete", first)
    second = json.loads(run("put", "/jobs/job-", "2", "--sequential", "-o", "jsonl")[1])["path"]
    assert second > first
    assert contents(memory) == {second: b"2"}


@pytest.mark.parametrize(
    "line",
    ["/a 1 --sequential", "/a --sequential 1", "--sequential /a 1", "--sequential -- /a -1"],
)
def test_options_may_stand_anywhere(run: Run, memory: bk.MetadataStore, line: str) -> None:
    """An option may stand between the path and the value; after ``--``, all are arguments."""
    assert run("put", *line.split())[0] == 0
    assert {path[:2]: value[-1:] for path, value in contents(memory).items()} == {"/a": b"1"}


def test_expected_revisions(run: Run, memory: bk.MetadataStore) -> None:
    """put and delete change nothing at another revision."""
    revision = str(result(memory.put("/a", b"1")).revision)
    result(memory.put("/a", b"2"))
    for command in (("put", "/a", "3"), ("delete", "/a")):
        code, output, errors = run(*command, "--expected-revision", revision)
        assert (code, output, "expected revision" in errors[-1]) == (1, b"", True)
    revision = str(result(memory.get("/a")).stat.revision)
    assert run("delete", "/a", "--expected-revision", revision)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ephemeral_put_holds_its_value_until_ctrl_c(number: signal.Signals) -> None:
    """The value is there while the command runs, and gone after a signal, which the code tells."""
    arguments = ("put", "/hub", "1", "--ephemeral", "--store", "memory://shared", "-o", "jsonl")
    with running(sys.executable, "-c", BESIDE, *arguments) as process:
        assert message(process) == "batchkeeper: '/hub' is there until Ctrl-C\n"
        stat = event(process)
        assert (stat["path"], stat["version"], stat["ephemeral"]) == ("/hub", 0, True)
        tell(process, "print(store.get('/hub').result().stat.ephemeral, flush=True)")
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + number, "", "")


@pytest.mark.server
@pytest.mark.parametrize("name", SERVERS)
def test_an_ephemeral_put_on_a_server(name: str, fresh_url: Callable[[str], str]) -> None:
    """Others see the value while the command runs, and soon after its end no more."""
    url = fresh_url(name)
    # Longer than the test waits.
    session = ("--ephemeral", "--session-timeout", "40s")
    command = (*COMMAND, "put", "/hub", "1", *session, "--store", url)
    with running(*command) as process, bk.open_store(url) as other:
        if "ephemerals" not in other.capabilities:
            assert "'ephemerals'" in message(process)
            assert process.wait(60) == 3
            return
        assert "until Ctrl-C" in message(process)
        other.sync()
        found = result(other.get("/hub"))
        assert (found.value, found.stat.ephemeral, found.stat.owned) == (b"1", True, False)
        process.terminate()
        assert process.wait(60) == 143

        def gone() -> bool:
            other.sync()
            return not result(other.exists("/hub"))

        until(gone)


def test_a_value_that_existed_before_is_not_held(run: Run, memory: bk.MetadataStore) -> None:
    """It does not become ephemeral, so there is nothing to wait for: a message, and 1."""
    result(memory.put("/hub", b"0"))
    code, output, errors = run("put", "/hub", "1", "--ephemeral")
    assert (code, output[:5]) == (1, b"path ")
    assert errors[-1] == "batchkeeper: '/hub' existed before, and does not end with this command"


def test_a_lost_session_ends_the_wait(
    run: Run, memory: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says what happens to its session, and ends with 1 when it is lost."""
    faults = FaultInjector()
    seen: list[float] = []

    def opened(url: str, **options: Any) -> bk.MetadataStore:
        seen.append(options["session_timeout"])
        return bk.open_store(url, wrap=faults, **options)

    monkeypatch.setattr(store_arguments, "open_store", opened)
    held = faults.delay("put", applied=True)

    def play() -> None:
        held.wait()
        # The listener is there before the put, so the events wait for the command.
        faults.cut()
        faults.restore()
        faults.cut()
        faults.lose_session()
        faults.restore()
        held.release()

    player = Thread(target=play)
    player.start()
    code, _, errors = run("put", "/hub", "1", "--ephemeral", "--session-timeout", "7s")
    player.join()
    assert (code, seen) == (1, [7.0])
    assert errors[1:] == [
        "batchkeeper: '/hub' is there until Ctrl-C",
        "batchkeeper: the connection is lost; '/hub' may end with the session",
        "batchkeeper: the connection is back",
        "batchkeeper: the connection is lost; '/hub' may end with the session",
        "batchkeeper: the connection is back",
        "batchkeeper: the session has ended, and '/hub' with it",
    ]
    assert contents(memory) == {}


@pytest.mark.parametrize("option", ["--ephemeral", "--sequential"])
def test_a_store_without_the_capability_refuses(
    run: Run, memory: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Bad input: exit code 3, and nothing is put."""
    wanted = {"--ephemeral": "ephemerals", "--sequential": "sequences"}[option]
    poor = replace(BUILT_IN["memory"], capabilities=frozenset())
    monkeypatch.setattr(opening, "store_kind", lambda url: poor)
    code, output, errors = run("put", "/a", "1", option)
    assert (code, output) == (3, b"")
    assert f"'{wanted}'" in errors[-1]
    assert contents(memory) == {}


# --- txn


def write(file: Path, *rows: object) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def test_a_transaction(run: Run, memory: bk.MetadataStore, tmp_path: Path) -> None:
    """Its operations take effect together; the results are lines in the same order."""
    put_all(memory, {"/owner": b"me", "/task": b""})
    file = write(
        tmp_path / "txn",
        {"op": "check", "path": "/owner", "expected_version": 0},
        "",
        {"op": "put", "path": "/state", "value": {"base64": "AP8="}, "expected_version": "absent"},
        {"op": "delete", "path": "/task"},
    )
    code, output, _ = run("txn", file)
    check, put, delete = (json.loads(line) for line in output.splitlines())
    assert (code, check, delete) == (
        0,
        {"op": "check", "path": "/owner"},
        {"op": "delete", "path": "/task"},
    )
    assert (put["op"], put["path"], put["version"]) == ("put", "/state", 0)
    assert contents(memory) == {"/owner": b"me", "/state": b"\x00\xff"}


def test_a_refused_transaction_names_the_operation(
    run: Run, memory: bk.MetadataStore, tmp_path: Path
) -> None:
    """Nothing is changed: exit code 1, and one line with the line of the file and the index."""
    file = write(
        tmp_path / "txn",
        {"op": "put", "path": "/a", "value": "1"},
        "",
        {"op": "check", "path": "/owner", "expected_version": 3},
    )
    code, output, errors = run("txn", file)
    assert (code, output) == (1, b"")
    assert errors[-1] == (
        f"batchkeeper: {file}:3: nothing was applied, because operation 1 does not hold: '/owner' "
        "holds no value, expected version 3"
    )
    assert contents(memory) == {}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (['{"op": "put"'], ":1: not JSON"),
        (["", '{"op": "steal", "path": "/a"}'], ':2: "op" must be'),
        ([], "at least one operation"),
        (['{"op": "delete", "path": "/a"}'] * 2, "operation 1 is the second one on '/a'"),
    ],
)
def test_a_bad_transaction_file(
    run: Run, memory: bk.MetadataStore, tmp_path: Path, rows: list[str], reason: str
) -> None:
    """Bad input names the line: exit code 3."""
    code, output, errors = run("txn", write(tmp_path / "txn", *rows))
    assert (code, output) == (3, b"")
    assert reason in errors[-1]


def test_a_transaction_from_standard_input(url: str) -> None:
    """'-' reads standard input; json gives one array."""
    line = '{"op": "put", "path": "/a", "value": "1"}\n'
    done = subprocess.run(
        [*COMMAND, "txn", "-", "-o", "json"],
        input=line,
        capture_output=True,
        text=True,
        check=False,
    )
    with bk.open_store(url) as store:
        if "transactions" in store.capabilities:
            assert [row["path"] for row in json.loads(done.stdout)] == ["/a"]
            assert contents(store) == {"/a": b"1"}
        else:
            assert (done.returncode, "'transactions'" in done.stderr) == (3, True)


# --- watch


def test_watch_writes_a_line_for_each_change() -> None:
    """Created, modified, deleted, below the path and at it; flushed at once; Ctrl-C gives 130."""
    arguments = ("watch", "/a", "--store", "memory://shared")
    with running(sys.executable, "-c", BESIDE, *arguments) as process:
        assert message(process) == "batchkeeper: watching '/a'\n"
        tell(process, "store.put('/a/b', b'1').result()")
        first = event(process)
        assert first == {"kind": "created", "path": "/a/b", "version": 0, "revision": 1}
        tell(process, "store.put('/b', b'').result(); store.put('/a/b', b'2').result()")
        second = event(process)
        assert (second["kind"], second["path"], second["version"]) == ("modified", "/a/b", 1)
        tell(process, "store.delete('/a/b').result()")
        assert event(process)["kind"] == "deleted"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "")


def test_watch_writes_gaps(
    run: Run, memory: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap is a line like any other; a watch that fails ends the command with its error."""
    faults = FaultInjector()
    monkeypatch.setattr(store_arguments, "open_store", partial(bk.open_store, wrap=faults))

    held = faults.delay("watch", applied=True)

    def play() -> None:
        held.wait()
        faults.gap("/a")
        faults.end_watches(bk.AuthenticationError("no more"))
        held.release()

    player = Thread(target=play)
    player.start()
    code, output, errors = run("watch", "/a")
    player.join()
    assert json.loads(output) == {"kind": "gap", "path": "/a", "version": None, "revision": None}
    assert (code, errors[-1]) == (1, "batchkeeper: no more")


def test_watch_ends_when_its_reader_goes_away() -> None:
    """At the next event after the pipe was closed, the command ends without a message, with 141."""
    arguments = ("watch", "--store", "memory://shared")
    with running(sys.executable, "-c", BESIDE, *arguments) as process:
        message(process)
        assert process.stdout is not None
        process.stdout.close()
        tell(process, "store.put('/a', b'1').result()")
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.server
@pytest.mark.parametrize("name", SERVERS)
def test_watch_on_a_server(name: str, fresh_url: Callable[[str], str]) -> None:
    """Changes of another process arrive."""
    url = fresh_url(name)
    with running(*COMMAND, "watch", "/a", "--store", url) as process, bk.open_store(url) as other:
        if "watches" not in other.capabilities:
            assert "'watches'" in message(process)
            assert process.wait(60) == 3
            return
        assert "watching '/a'" in message(process)
        result(other.put("/a", b"1"))
        result(other.delete("/a"))
        assert [(found := event(process))["kind"], found["path"]] == ["created", "/a"]
        assert event(process)["kind"] == "deleted"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


# --- what scan and several paths do with sessions and faults


def test_scan_can_leave_ephemeral_values_out(run: Run, memory: bk.MetadataStore) -> None:
    """A saved store holds the lasting values; omitted values are counted."""
    result(memory.put("/hub", b"1", ephemeral=True))
    put_all(memory, {"/topic": b"2"})
    code, output, errors = run("scan", "-o", "jsonl")
    rows = [json.loads(line) for line in output.splitlines()]
    assert [(row["path"], row["ephemeral"]) for row in rows] == [("/hub", True), ("/topic", False)]
    code, output, errors = run("scan", "--no-ephemeral")
    assert (code, output) == (0, b"/topic\t2\n")
    assert errors[-1] == "batchkeeper: left out 1 ephemeral value"


def test_the_worst_failure_decides_the_exit_code(
    run: Run, memory: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection precedes a refusal, in whatever order they come: trying again may help."""
    faults = FaultInjector()
    monkeypatch.setattr(store_arguments, "open_store", partial(bk.open_store, wrap=faults))
    faults.refuse(bk.AuthenticationError("not yours"), "delete", "/b")
    faults.refuse(bk.StoreUnavailableError("gone"), "delete", "/c")
    code, output, errors = run("delete", "/a", "/b", "/c", "/d")
    assert (code, output) == (2, b"")
    assert errors[1:] == [
        "batchkeeper: nothing to delete at '/a'",
        "batchkeeper: /b: not yours",
        "batchkeeper: /c: gone",
        "batchkeeper: nothing to delete at '/d'",
    ]

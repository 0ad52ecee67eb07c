"""The ``batchkeeper`` command."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import batchkeeper as bk
from batchkeeper.commands import arguments as store_arguments
from batchkeeper.commands import output
from batchkeeper.pipeline import local_load
from batchkeeper.testing.faults import Call, Fault, FaultyBackend
from batchkeeper.testing.servers import SERVERS

from ..programs import COMMAND, TINY_BENCH, run_python
from .conftest import Run


def records(count: int) -> list[dict[str, str]]:
    """Records like a package index's: paths in sections, JSON text of skewed size as values."""
    dice = random.Random(4711)
    return [
        {
            "path": f"/index/{dice.choice(['admin', 'libs', 'ümläut'])}/package-{number}",
            "value": json.dumps(
                {
                    "name": f"package-{number}",
                    "about": "é 中 \U0001f600 \n" * int(dice.paretovariate(1.2)),
                },
                ensure_ascii=number % 2 == 0,
            )[:9000],
        }
        for number in range(count)
    ]


def output_setting(unbuffered: str) -> dict[str, str]:
    """Return an environment in which Python buffers the standard output (``""``), or does not."""
    return {**os.environ, "PYTHONUNBUFFERED": unbuffered}


def lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def summary(output: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output)
    return found


# --- single operations


def test_put_get_ls_delete(run: Run, url: str) -> None:
    """A value is put, printed as it is, listed and deleted."""
    code, output, errors = run("put", "/a/b", "höllo")
    assert (code, errors) == (0, [])
    assert b"version   0\n" in output
    assert run("get", "/a/b") == (0, "höllo".encode(), [])
    assert run("ls", "/a") == (0, b"b\n", [])
    assert run("ls") == (0, b"a\n", [])
    assert run("ls", "/a/b") == (0, b"", [])
    assert run("delete", "/a/b") == (0, b"", [])


def test_json_and_jsonl(run: Run, url: str) -> None:
    """With -o json and -o jsonl, results are JSON; what get prints, load reads."""
    code, output, _ = run("put", "/a", "x", "-o", "json")
    stat = json.loads(output)
    assert (code, stat["path"], stat["version"]) == (0, "/a", 0)
    code, output, _ = run("-o", "jsonl", "get", "/a")
    assert output.count(b"\n") == 1
    assert json.loads(output) == {**stat, "value": "x"}
    assert set(stat) == set(bk.Stat._fields)
    assert run("get", "/a", "-w", "jsonl") == (0, output, [])
    assert run("get", "/a", "--write-out", "simple") == (0, b"x", [])
    assert json.loads(run("ls", "-o", "json")[1]) == [{"name": "a", "path": "/a"}]
    assert json.loads(run("ls", "-o", "jsonl")[1]) == {"name": "a", "path": "/a"}
    assert json.loads(run("delete", "/a", "-o", "json")[1]) == {"path": "/a", "deleted": True}


def test_binary_values(run: Run, url: str, tmp_path: Path) -> None:
    """A value may come from a file; get gives its bytes, and JSON spells them in base64."""
    file = tmp_path / "value"
    file.write_bytes(bytes(range(256)))
    assert run("put", "/a", "--file", str(file))[0] == 0
    assert run("get", "/a") == (0, bytes(range(256)), [])
    found = json.loads(run("get", "/a", "-o", "json")[1])
    assert found["value"]["base64"].startswith("AAECAwQ")


@pytest.mark.slow
def test_values_from_standard_input(tmp_path: Path) -> None:
    """'-' as the value reads standard input, to its end, as bytes."""
    store = f"rocksdb://{tmp_path}/store"
    put = [*COMMAND, "put", "/a", "-", "--store", store]
    subprocess.run(put, input=b"\x00\xff\n", check=True, capture_output=True)
    get = [*COMMAND, "get", "/a", "--store", store]
    assert subprocess.run(get, check=True, capture_output=True).stdout == b"\x00\xff\n"


def test_expected_versions(run: Run, url: str) -> None:
    """put and delete take the expected version of the path, or that it must be absent."""
    assert run("put", "/a", "1", "--expected-version", "absent")[0] == 0
    assert run("put", "/a", "2", "--expected-version", "-1")[0] == 1
    assert run("put", "/a", "2", "--expected-version", "0")[0] == 0
    code, output, errors = run("delete", "/a", "--expected-version", "0")
    assert (code, output) == (1, b"")
    assert errors == ["batchkeeper: '/a' is at version 1, expected version 0"]
    assert run("delete", "/a", "--expected-version", "1")[0] == 0
    assert run("delete", "/a", "--expected-version", "absent")[0] == 3


# --- missing stores, and stores that do not stay


@pytest.mark.parametrize("command", [("get", "/x"), ("ls", "/"), ("delete", "/x")])
def test_a_command_that_puts_nothing_makes_no_store(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A mistyped directory ends with 2 and one line that names it, and leaves no file."""
    typo = tmp_path / "no" / "such" / "place"
    code, output, errors = run(*command, "--store", f"rocksdb://{typo}")
    assert (code, output, len(errors)) == (2, b"", 1)
    assert errors[0].startswith(f"batchkeeper: there is no RocksDB store in {typo}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["put", "load"])
def test_a_command_that_puts_makes_the_store(run: Run, tmp_path: Path, command: str) -> None:
    """The first put, or load, creates the directory, and later commands read its values."""
    store = f"rocksdb://{tmp_path}/a/b/store"
    file = tmp_path / "records"
    file.write_bytes(lines([{"path": "/x", "value": "1"}]))
    arguments = ("/x", "1") if command == "put" else (str(file),)
    assert run(command, *arguments, "--store", store)[0] == 0
    assert run("get", "/x", "--store", store) == (0, b"1", [])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("get", "/x"), 1),
        (("ls",), 1),
        (("put", "/x", "1"), 0),
        (("delete", "/x"), 1),
        (("load", os.devnull), 0),
        pytest.param(
            *(("bench", "memory://x", *TINY_BENCH, "--json", os.devnull), 0),
            marks=(pytest.mark.slow, pytest.mark.xdist_group("bench")),
        ),
    ],
)
def test_memory_on_the_command_line_is_said_not_to_last(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    """A command on memory:// warns once on standard error that its data is lost."""
    monkeypatch.chdir(tmp_path)
    ended, output, errors = run("--store", "memory://x", *command)
    said = "batchkeeper: memory://x lives in this process: its data is lost when the command ends"
    assert (ended, errors.count(said)) == (code, 1)
    assert b"its data is lost" not in output


# --- exit codes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get", "/missing"), "no value at '/missing'"),
        (("delete", "/missing"), "nothing to delete at '/missing'"),
        (("put", "/a", "x", "--expected-version", "7"), "'/a' is at version 0"),
        (("delete", "/parent"), "'/parent' has values below it"),
    ],
)
def test_what_the_store_refuses_ends_with_1(
    run: Run, url: str, arguments: tuple[str, ...], message: str
) -> None:
    """A refusal by the store ends with exit code 1 and one line with the reason."""
    run("put", "/a", "x")
    run("put", "/parent/child", "x")
    code, output, errors = run(*arguments)
    assert (code, output, len(errors)) == (1, b"", 1)
    assert errors[0].startswith(f"batchkeeper: {message}")


def test_damaged_data_ends_with_1(run: Run, url: str, tmp_path: Path) -> None:
    """No other attempt can read it, so the connection is not the cause."""
    with bk.open_store(url) as store:
        store.put("/a", random.Random(1).randbytes(8192)).result()
    bk.open_store(url).close()  # replays the log into a table
    table = max((tmp_path / "store").glob("*.sst"), key=lambda file: file.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 16)
    code, output, (error,) = run("get", "/a")
    assert (code, output) == (1, b"")
    assert "failed to read" in error


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SERVERS)
def test_no_connection_ends_with_2(run: Run, scheme: str) -> None:
    """A server that is not there: exit code 2, and one line with the address."""
    store = f"{scheme}://127.0.0.1:1"
    code, output, errors = run("ls", "--store", store, "--connect-timeout", "0.5")
    assert (code, output, len(errors)) == (2, b"", 1)
    assert "127.0.0.1:1" in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("frobnicate",), "frobnicate"),
        (("get",), "required: PATH"),
        (("get", "relative"), "must start with '/'"),
        (("get", "/a", "-o", "xml"), "xml"),
        (("get", "/a", "--timeout", "0"), "operation_timeout"),
        (("get", "/a", "--connect-timeout", "soon"), "soon"),
        (("put", "/a"), "either a VALUE"),
        (("put", "/a", "x", "--file", "x"), "either a VALUE"),
        (("put", "/a", "--file", "/nowhere/at/all"), "cannot read '/nowhere/at/all'"),
        (("put", "/a", "x", "--expected-version", "new"), "'new'"),
        (("put", "/a", "x", "--expected-version", "-2"), "'-2'"),
        (("ls", "/a/"), "must not end in '/'"),
        (("ls", "--store", "gopher://host"), "unknown store scheme 'gopher'"),
        (("ls", "--store", "no url"), "not a store's URL"),
        (("ls", "--store", ""), "no store"),
        (("ls", "--store", "memory://x?colour=red"), "'colour'"),
        (("load", "/nowhere/at/all"), "cannot read /nowhere/at/all"),
        (("load", "/"), "cannot read /"),
        (("load", "/dev/null", "--max-ops", "0"), "max_ops"),
        (("load", "/dev/null", "--max-delay", "-1"), "max_delay"),
        (("load", "/dev/null", "--max-in-flight", "many"), "many"),
        (("get", "/a", "--keys-only"), "--keys-only and --limit with --prefix only"),
        (("get", "/a", "--prefix", "--limit", "9" * 20), "--limit: must be at most 9,223,"),
        (("scan", "/", "--revision", "9" * 20), "revision must be an int from 0 to 9223372036"),
        # The right help, and what was meant.
        (("gett",), "no command 'gett': did you mean 'get'? (see batchkeeper --help)"),
        (("frobnicate",), "no command 'frobnicate' (known: get, put, "),
        (
            ("get", "/a", "--prefx"),
            "--prefx: did you mean '--prefix'? (see batchkeeper get --help)",
        ),
        (("put", "/a", "1", "--other"), "--other (see batchkeeper put --help)"),
        (("--other", "ls"), "--other (see batchkeeper --help)"),
        (("hubs", "lst"), "no command 'lst': did you mean 'list'? (see batchkeeper hubs --help)"),
        (("hubs", "drain"), "required: HUB (see batchkeeper hubs drain --help)"),
        (("hubs", "list", "--other"), "--other (see batchkeeper hubs list --help)"),
        (("spark", "lod"), "no job 'lod': did you mean 'load'? (see batchkeeper spark --help)"),
    ],
)
def test_bad_input_ends_with_3(
    run: Run, url: str, arguments: tuple[str, ...], message: str
) -> None:
    """Bad arguments, paths and settings: exit code 3, and one line that names the culprit."""
    code, output, errors = run(*arguments)
    assert (code, output, len(errors)) == (3, b"", 1)
    assert errors[0].startswith("batchkeeper: ")
    assert message in errors[0]


def test_a_value_too_large_ends_with_3(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, tmp_path: Path
) -> None:
    """A value beyond the store's limit is bad input, with both sizes."""
    file = tmp_path / "value"
    file.write_bytes(bytes(101))
    code, _, errors = run("put", "/a", "--file", str(file), "--store", f"{url}?max_value_bytes=100")
    assert code == 3
    assert errors == [
        "batchkeeper: the value for '/a' has 101 bytes; the store accepts at most 100"
    ]


def test_without_a_store_the_message_says_how_to_give_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither --store nor BATCHKEEPER_STORE: exit code 3, and both are named."""
    monkeypatch.delenv("BATCHKEEPER_STORE", raising=False)
    code, _, errors = run("ls")
    assert code == 3
    assert "--store" in errors[0]
    assert "BATCHKEEPER_STORE" in errors[0]


def test_an_error_of_the_system_is_told_as_it_is(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the system ends with 3, and names the file if there is one."""
    for error, message in (
        (PermissionError(13, "Permission denied", "/some/file"), "/some/file: Permission denied"),
        (OSError(28, "No space left on device"), "input or output failed: No space left on device"),
        (OSError("odd"), "input or output failed: odd"),
    ):
        with monkeypatch.context() as patched:
            # The output itself must stay, for the test.
            patched.setattr(output, "drop", lambda stream: None)
            patched.setattr(store_arguments, "open_store", Mock(side_effect=error))
            code, _, errors = run("ls")
        assert (code, errors) == (3, [f"batchkeeper: {message}"])


@pytest.mark.slow
@pytest.mark.parametrize("command", ["get /a", "--help"])
def test_output_that_finds_no_room_is_told(tmp_path: Path, command: str) -> None:
    """A full disk behind the standard output: exit code 3 and one line."""
    store = f"rocksdb://{tmp_path}/store"
    with bk.open_store(store) as opened:
        opened.apply([bk.Put("/a", b"x")])
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*COMMAND, "--store", store, *command.split()],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            env=output_setting(""),
        )
    assert ended.returncode == 3
    assert ended.stderr == b"batchkeeper: input or output failed: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_room_in_part_is_told(tmp_path: Path, unbuffered: str) -> None:
    """A disk that takes half of a value is full, whether Python buffers the output or not."""
    store = f"rocksdb://{tmp_path}/store"
    with bk.open_store(store) as opened:
        opened.apply([bk.Put("/a", bytes(1_000_000))])
    # A limit of the process does what the end of a disk does: the write that meets it is short.
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)); "
    with open(tmp_path / "output", "wb") as output:
        ended = subprocess.run(
            [*COMMAND[:2], limited + COMMAND[2], "--store", f"{store}?read_only=true", "get", "/a"],
            check=False,
            stdout=output,
            stderr=subprocess.PIPE,
            env=output_setting(unbuffered),
        )
    assert os.stat(tmp_path / "output").st_size == 500_000
    assert (ended.returncode, ended.stderr) == (
        3,
        b"batchkeeper: input or output failed: File too large\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "command", "code", "output", "errors"),
    [
        ("<&-", "put /a -", 3, b"", b"cannot read standard input: Bad file descriptor"),
        ("<&-", "load -", 3, b"", b"cannot read -: Bad file descriptor"),
        (">&-", "get /a", 3, b"", b"input or output failed: Bad file descriptor"),
        (">&-", "ls", 3, b"", b"input or output failed: Bad file descriptor"),
        ("2>&-", "get /a", 0, b"x", b""),
        ("2>&-", "get /none", 1, b"", b""),
        ("2>/dev/full", "get none", 3, b"", b""),
    ],
)
def test_a_standard_stream_that_is_closed_is_told(
    tmp_path: Path, closed: str, command: str, code: int, output: bytes, errors: bytes
) -> None:
    """Without a stream that it needs, the command ends with one line and exit code 3."""
    store = f"rocksdb://{tmp_path}/store"
    with bk.open_store(store) as opened:
        opened.apply([bk.Put("/a", b"x")])
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, "--store", store, *command.split()],
        check=False,
        capture_output=True,
        env=output_setting(""),
    )
    told = b"batchkeeper: %b\n" % errors if errors else b""
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, output, told)


@pytest.mark.slow
def test_nothing_prints_but_the_command() -> None:
    """gRPC writes no lines of its own, unless the user has asked for them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak_no_tls() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    accepted.sendall(b"HTTP/1.1 400\r\n\r\n")
                    accepted.close()

        threading.Thread(target=speak_no_tls, daemon=True).start()
        store = f"etcds://127.0.0.1:{listener.getsockname()[1]}"
        command = ("-m", "batchkeeper", "--store", store, "--connect-timeout", "0.3", "ls", "/")
        quiet = run_python(*command)
        loud = run_python(*command, env={**os.environ, "GRPC_VERBOSITY": "INFO"})
    assert [line[:13] for line in quiet.stderr.splitlines()] == ["batchkeeper: "]
    assert len(loud.stderr.splitlines()) > 1


def test_help_documents_the_exit_codes(run: Run) -> None:
    """--help, of the command and of each of its commands, lists the exit codes."""
    for command in ([], ["get"], ["put"], ["delete"], ["ls"], ["load"]):
        code, output, errors = run(*command, "--help")
        assert (code, errors) == (0, [])
        assert b"exit codes:\n  0  success\n  1  " in output


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, size: int, unbuffered: str) -> None:
    """When the reader of the output has closed it, the command ends without a word."""
    store = f"rocksdb://{tmp_path}/store"
    with bk.open_store(store) as opened:
        opened.apply([bk.Put("/a", bytes(size))])
    # Python writes the rest of the buffer once more when it ends. That must print no error.
    with subprocess.Popen(
        [*COMMAND, "get", "/a", "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=output_setting(unbuffered),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# --- load


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_load_writes_every_record(
    run: Run, fresh_url: Callable[[str], str], store_url: str, tmp_path: Path, compressed: bool
) -> None:
    """Every record of a file is in the store afterwards, on all stores, and the summary says so."""
    rows = records(2000)
    file = tmp_path / "records"
    file.write_bytes(gzip.compress(lines(rows)) if compressed else lines(rows))
    # Values in memory go with their last opener, so one stays.
    with bk.open_store(store_url) if bk.store_kind(store_url).in_process else nullcontext():
        code, output, errors = run("load", str(file), "--store", store_url, "-o", "json")
        assert (code, len(errors)) == (0, bk.store_kind(store_url).in_process)
        found = summary(output)
        assert found.pop("seconds") > 0
        assert found.pop("operations_per_second") > 0
        assert found == {"written": 2000, "conflicts": 0, "errors": 0, "skipped": 0}
        with bk.open_store(store_url) as store:
            values = store.apply(bk.Get(row["path"]) for row in rows)
            assert [outcome.result.value for outcome in values] == [
                row["value"].encode() for row in rows
            ]


@pytest.mark.slow
def test_load_from_standard_input(tmp_path: Path) -> None:
    """'-' reads standard input, gzip too; the summary is a table by default."""
    store = f"rocksdb://{tmp_path}/store"
    for data in (lines(records(10)), gzip.compress(lines(records(10)))):
        done = subprocess.run(
            [*COMMAND, "load", "-", "--store", store], input=data, capture_output=True, check=True
        )
        assert b"written                10\n" in done.stdout
        assert done.stderr == b""


def test_load_can_spare_what_is_there(run: Run, url: str, tmp_path: Path) -> None:
    """--create-only keeps existing values, counts them as conflicts, and ends with 1.

    A dry run counts them beforehand, and writes nothing.
    """
    file = tmp_path / "records"
    file.write_bytes(lines(records(100)))
    run("put", records(1)[0]["path"], "precious")
    code, output, errors = run("load", str(file), "--dry-run", "-o", "json")
    assert summary(output) == {"would_create": 99, "would_replace": 1, "skipped": 0}
    assert (code, errors) == (0, ["batchkeeper: nothing was written (--dry-run)"])
    assert run("count")[1] == b"1\n"
    code, output, errors = run("load", str(file), "--create-only", "-o", "json")
    assert (code, errors) == (1, [])
    assert (summary(output)["written"], summary(output)["conflicts"]) == (99, 1)
    assert run("get", records(1)[0]["path"])[1] == b"precious"


def test_a_corrupt_line_ends_the_load_with_its_number(run: Run, url: str, tmp_path: Path) -> None:
    """Records before a corrupt line are written and counted; the error has the line's number."""
    file = tmp_path / "records"
    rows = records(60)
    file.write_bytes(lines(rows[:41]) + b'{"path": "/a"\n' + lines(rows[41:]))
    code, output, errors = run("load", str(file), "-o", "json")
    assert code == 3
    assert len(errors) == 1
    assert errors[0].startswith(f"batchkeeper: {file}:42: not JSON")
    assert summary(output)["written"] == 41
    with bk.open_store(url) as store:
        values = store.apply(bk.Get(row["path"]) for row in rows)
        assert [outcome.result is not None for outcome in values] == [True] * 41 + [False] * 19


def test_bad_lines_can_be_skipped(run: Run, url: str, tmp_path: Path) -> None:
    """--skip-bad continues, reports and counts bad lines, and ends with 0."""
    file = tmp_path / "records"
    bad = [
        b"nonsense\n",
        b'{"path": "no-slash", "value": "x"}\n',
        b'{"path": "/a", "value": "\\udfff"}\n',
        b'{"path": "/a", "value": {"base64": "?"}}\n',
    ]
    file.write_bytes(
        b"\n" + b"".join(lines([row]) + line for row, line in zip(records(4), bad, strict=True))
    )
    code, output, errors = run("load", str(file), "--skip-bad", "-o", "json")
    assert code == 0
    assert (summary(output)["written"], summary(output)["skipped"]) == (4, 4)
    assert [error.split(": ")[1] for error in errors] == [f"{file}:{n}" for n in (3, 5, 7, 9)]
    assert all("skipped" in error for error in errors)


def test_only_the_first_of_many_bad_lines_are_told(run: Run, url: str, tmp_path: Path) -> None:
    """Of a hundred bad lines, twenty are reported one by one, and all are counted."""
    file = tmp_path / "records"
    file.write_bytes(b"nonsense\n" * 100)
    code, output, errors = run("load", str(file), "--skip-bad", "-o", "json")
    assert (code, len(errors), summary(output)["skipped"]) == (0, 21, 100)


def test_a_truncated_file_is_said_to_be_one(run: Run, url: str, tmp_path: Path) -> None:
    """Compressed data that end too early: what was in them is written, and the error is clear."""
    file = tmp_path / "records.gz"
    data = gzip.compress(lines(records(3000)))
    file.write_bytes(data[: len(data) // 2])
    code, output, errors = run("load", str(file), "-o", "json")
    assert (code, len(errors)) == (3, 1)
    assert f"{file}: unreadable after line {summary(output)['written']}: " in errors[0]
    assert 0 < summary(output)["written"] < 3000


def test_damaged_compression_is_said_to_be_that(run: Run, url: str, tmp_path: Path) -> None:
    """Compressed data with a damaged middle end the load with a clear error, skipping or not."""
    file = tmp_path / "records.gz"
    data = bytearray(gzip.compress(lines(records(3000))))
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    file.write_bytes(data)
    code, _, errors = run("load", str(file), "--skip-bad")
    assert code == 3
    assert f"{file}: unreadable after line" in errors[-1]


def test_a_value_too_large_is_its_records_error(run: Run, url: str, tmp_path: Path) -> None:
    """A record whose value the store refuses is counted and reported; the others are written."""
    file = tmp_path / "records"
    rows = [{"path": f"/{n}", "value": "x" * (200 if n == 5 else 10)} for n in range(10)]
    file.write_bytes(lines(rows))
    code, output, errors = run(
        "load", str(file), "--store", f"{url}?max_value_bytes=100", "-o", "json"
    )
    assert code == 1
    assert (summary(output)["written"], summary(output)["errors"]) == (9, 1)
    assert errors == [
        f"batchkeeper: {file}:6: the value for '/5' has 200 bytes; the store accepts at most 100"
    ]


def test_an_overlong_line_is_a_bad_line(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than any record is skipped in parts, and is one bad line."""
    monkeypatch.setattr(local_load, "LONGEST_LINE", 1000)
    file = tmp_path / "records"
    row = {"path": "/a", "value": "x"}
    file.write_bytes(lines([row]) + b"x" * 12_345 + b"\n" + lines([{**row, "path": "/b"}]))
    code, output, errors = run("load", str(file), "--skip-bad", "-o", "json")
    assert (code, summary(output)["written"], summary(output)["skipped"]) == (0, 2, 1)
    assert f"{file}:2: skipped: longer than" in errors[0]


@pytest.mark.slow
def test_a_store_that_goes_away_ends_the_load(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store is lost, the load stops reading and ends with 2, and the summary is right."""

    def lost(call: Call) -> Fault | None:
        if call.number < 3:
            return None
        return Fault(error=bk.StoreUnavailableError("the store is gone"))

    faulty = partial(bk.open_store, wrap=lambda backend: FaultyBackend(backend, lost))
    monkeypatch.setattr(store_arguments, "open_store", faulty)
    file = tmp_path / "records"
    file.write_bytes(lines(records(50_000)))
    code, output, errors = run("load", str(file), "--max-ops", "100", "-o", "json")
    assert code == 2
    assert errors[-1] == "batchkeeper: the store is gone"
    assert 0 < summary(output)["written"] <= 300
    assert 0 < summary(output)["errors"] < 49_000


@pytest.mark.slow
def test_an_interrupt_ends_the_load_with_a_summary(tmp_path: Path) -> None:
    """After Ctrl-C the summary is printed, without a traceback, and the exit code is 130."""
    with subprocess.Popen(
        [*COMMAND, "load", "-", "--store", f"rocksdb://{tmp_path}/store?sync=false", "-o", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        # More than a pipe holds: when it is written, the load is reading.
        process.stdin.write(lines(records(50_000)))
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    # A slow machine has shown how far it is.
    assert all(b" records written" in line for line in errors.splitlines())
    assert 0 < summary(output)["written"] <= 50_000


def test_load_takes_batch_settings(run: Run, url: str, tmp_path: Path) -> None:
    """The batch settings of load, and batching off, give the same result."""
    file = tmp_path / "records"
    file.write_bytes(lines(records(200)))
    for settings in (
        ["--max-ops", "7", "--max-bytes", "5000", "--max-delay", "0.001", "--max-in-flight", "3"],
        ["--no-batching"],
    ):
        code, output, _ = run("load", str(file), "-o", "json", *settings)
        assert (code, summary(output)["written"]) == (0, 200)


def test_progress_goes_to_standard_error(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal, a long load reports its progress in lines; the output stays clean."""
    monkeypatch.setattr(local_load, "_LINE_EVERY", 0.0)
    file = tmp_path / "records"
    file.write_bytes(lines(records(50)))
    code, output, errors = run("load", str(file), "-o", "json")
    assert (code, summary(output)["written"]) == (0, 50)
    assert errors
    assert all(error.endswith(" records written") for error in errors)

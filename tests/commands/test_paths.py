"""Several paths in one call, old revisions, and walks: ``scan``, ``count`` and ``delete -r``."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import contents, put_all
from ..programs import COMMAND
from ..stores import foreign
from .conftest import Run

VALUES = {
    "/a": b"1",
    "/a/b": b"two\nlines\t\\",
    "/a/c": b"\xff\x00",
    "/a-b": "ümläut".encode(),
    "/z": b"",
}


def nothing(path: str) -> str:
    """The message for a path with no value at or below it."""
    return (
        f"batchkeeper: no value is at or below {path!r}: check the path, and the prefix or chroot "
        "in the store's URL"
    )


@pytest.fixture
def filled(url: str) -> str:
    """A store on disk with a few values."""
    with bk.open_store(url) as store:
        put_all(store, VALUES)
    return url


def parsed(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# --- several paths


def test_get_of_several_paths_gives_a_line_each(run: Run, filled: str) -> None:
    """Path, tab and value, in the order of the arguments; what cannot be printed is escaped."""
    assert run("get", "/a/b", "/a/c", "/a-b", "/a") == (
        0,
        b"/a/b\ttwo\\nlines\\t\\\\\n/a/c\t\\xff\\x00\n" + "/a-b\tümläut\n/a\t1\n".encode(),
        [],
    )


def test_get_of_several_paths_in_json(run: Run, filled: str) -> None:
    """With jsonl a line for each, with json one array; one path gives an object, as ever."""
    code, output, _ = run("get", "/a", "/z", "-o", "jsonl")
    assert (code, [(row["path"], row["value"]) for row in parsed(output)]) == (
        0,
        [("/a", "1"), ("/z", "")],
    )
    assert json.loads(run("get", "/a", "/z", "-o", "json")[1]) == parsed(output)
    assert json.loads(run("get", "/a", "-o", "json")[1]) == parsed(output)[0]


def test_get_with_a_prefix_gives_what_is_below(run: Run, filled: str) -> None:
    """The path and all values below it, in the byte order of paths; "/a-b" is not below "/a"."""
    below = b"/a\t1\n/a/b\ttwo\\nlines\\t\\\\\n/a/c\t\\xff\\x00\n"
    assert run("get", "/a", "--prefix") == (0, below, [])
    assert run("get", "--prefix", "/none") == (1, b"", [nothing("/none")])
    assert run("get", "--prefix", "/z", "/a", "--keys-only")[1] == b"/z\n/a\n/a/b\n/a/c\n"
    assert run("get", "--prefix", "/", "--limit", "2", "--keys-only")[1] == b"/a\n/a-b\n"
    rows = parsed(run("get", "--prefix", "/a", "--limit", "2", "-o", "jsonl")[1])
    assert rows == [json.loads(run("get", path, "-o", "json")[1]) for path in ("/a", "/a/b")]
    assert json.loads(run("get", "--prefix", "/none", "-o", "json")[1]) == []


def test_a_missing_path_does_not_cost_the_others(run: Run, filled: str) -> None:
    """get and delete of several paths do what they can, name the others, and end with 1."""
    assert run("get", "/a", "/none", "/z") == (
        1,
        b"/a\t1\n/z\t\n",
        ["batchkeeper: no value at '/none'"],
    )
    code, output, errors = run("delete", "/z", "/none", "/a", "/a/b", "-o", "jsonl")
    assert (code, parsed(output)) == (
        1,
        [{"path": "/z", "deleted": True}, {"path": "/a/b", "deleted": True}],
    )
    assert errors == [
        "batchkeeper: nothing to delete at '/none'",
        "batchkeeper: '/a' has values below it",
    ]


@pytest.mark.parametrize("command", ["get", "delete", "ls", "count"])
def test_a_bad_path_stops_the_command_before_it_begins(run: Run, filled: str, command: str) -> None:
    """All paths are checked first: exit code 3, and nothing has happened."""
    code, output, errors = run(command, "/z", "relative")
    assert (code, output, len(errors)) == (3, b"", 1)
    assert run("get", "/z")[0] == 0


def test_ls_of_several_paths_has_a_heading_each(run: Run, filled: str) -> None:
    """As the shell's ls; in JSON, the path of each row says where it is."""
    assert run("ls", "/", "/a") == (0, b"/:\na\na-b\nz\n\n/a:\nb\nc\n", [])
    rows = parsed(run("ls", "/", "/a", "-o", "jsonl")[1])
    assert [row["path"] for row in rows] == ["/a", "/a-b", "/z", "/a/b", "/a/c"]
    assert json.loads(run("ls", "/", "/a", "-o", "json")[1]) == rows


# --- scan


def test_scan_gives_everything_under_a_path(run: Run, filled: str) -> None:
    """A line for each value, in the byte order of paths; '/' by default."""
    code, output, errors = run("scan", "/a")
    assert (code, output, errors) == (
        0,
        b"/a\t1\n/a/b\ttwo\\nlines\\t\\\\\n/a/c\t\\xff\\x00\n",
        [],
    )
    assert [line.split(b"\t")[0].decode() for line in run("scan")[1].splitlines()] == sorted(VALUES)
    assert run("scan", "/none") == (1, b"", [nothing("/none")])


def test_scan_in_json_has_stats(run: Run, filled: str) -> None:
    """The fields are those of get; json is one array, also an empty one."""
    rows = parsed(run("scan", "-o", "jsonl")[1])
    assert rows[0] == json.loads(run("get", "/a", "-o", "json")[1])
    assert json.loads(run("scan", "-o", "json")[1]) == rows
    assert run("scan", "/none", "-o", "json")[1] == b"[]\n"


def test_scan_takes_bounds_and_leaves_values_out(run: Run, filled: str) -> None:
    """--start is included, --end is not; --no-values gives paths, or stats in JSON."""
    assert run("scan", "--start", "/a-b", "--end", "/z", "--no-values")[1] == b"/a-b\n/a/b\n/a/c\n"
    (row,) = parsed(run("scan", "/z", "--no-values", "-o", "jsonl")[1])
    assert (row["path"], row["version"], "value" in row) == ("/z", 0, False)


def test_what_scan_saves_load_restores(
    run: Run, filled: str, store_url: str, tmp_path: Path
) -> None:
    """A dump from one store and its restore into any other: the same paths and bytes."""
    file = tmp_path / "saved.jsonl.gz"
    file.write_bytes(gzip.compress(run("scan", "-o", "jsonl")[1]))
    # Values in memory go with their last opener, so one stays.
    with bk.open_store(store_url) if bk.store_kind(store_url).in_process else nullcontext():
        assert run("load", str(file), "--store", store_url)[0] == 0
        with bk.open_store(store_url) as store:
            assert contents(store) == VALUES


@pytest.mark.slow
def test_scan_stops_when_its_reader_goes_away(filled: str) -> None:
    """A closed pipe ends a scan of thousands of values without a message, with 141."""
    with bk.open_store(filled) as store:
        put_all(store, {f"/many/{n:05}": bytes(1000) for n in range(5000)})
    with subprocess.Popen(
        [*COMMAND, "scan", "--store", filled], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"/a\t1\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# --- count and delete -r


def test_count(run: Run, filled: str) -> None:
    """The number of values at and below a path; several paths give a line each."""
    assert run("count") == (0, b"5\n", [])
    assert run("count", "/a", "/none") == (1, b"/a\t3\n/none\t0\n", [nothing("/none")])
    assert json.loads(run("count", "/a", "-o", "json")[1]) == {"path": "/a", "count": 3}
    assert parsed(run("count", "/a", "/z", "-o", "jsonl")[1]) == [
        {"path": "/a", "count": 3},
        {"path": "/z", "count": 1},
    ]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_delete_recursive(run: Run, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes what is at and below the paths, and says how many values that were.

    A dry run says how many there are, and Ctrl-C leaves a word that some may be gone.
    """
    none = "batchkeeper: nothing was removed (--dry-run); scan --no-values lists the paths"
    dry = ("delete", "--dry-run")
    assert run(*dry, "-r", "/a", "/none") == (0, b"/a\t3\n/none\t0\n", [nothing("/none"), none])
    assert json.loads(run(*dry, "-r", "/", "-o", "jsonl")[1]) == {"path": "/", "would_delete": 5}
    assert run(*dry, "/a")[0] == 3
    assert run("delete", "-r", "/a", "/none") == (0, b"/a\t3\n/none\t0\n", [nothing("/none")])
    assert run("scan", "--no-values")[1] == b"/a-b\n/z\n"
    assert run("delete", "-r", "/", "-o", "jsonl") == (0, b'{"path": "/", "deleted": 2}\n', [])
    assert run("count") == (1, b"0\n", [nothing("/")])
    assert run("ls") == (1, b"", [nothing("/")])
    code, _, (error,) = run("delete", "-r", "/a", "--expected-version", "3")
    assert (code, error) == (
        3,
        "batchkeeper: delete -r takes no --expected-version and no --expected-revision",
    )
    monkeypatch.setattr(bk.MetadataStore, "delete_recursive", interrupt)
    left = "batchkeeper: interrupted: a part of '/a' may be removed; count shows what is left"
    assert run("delete", "-r", "/a") == (130, b"", [left])


# --- keys that are not valid paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "output", "verb"),
    [
        (("scan", "/a"), b"/a\t1\n", "left out"),
        (("count", "/a"), b"1\n", "did not count"),
        (("delete", "-r", "/a"), b"/a\t1\n", "kept"),
    ],
)
def test_keys_that_are_no_paths_are_counted_and_cost_the_exit_code(
    run: Run, url: str, tmp_path: Path, command: tuple[str, ...], output: bytes, verb: str
) -> None:
    """They are named on standard error and end the command with 1, unless they are allowed.

    They can be deleted by name, in spite of records that this client cannot read.
    """
    with bk.open_store(url) as store:
        put_all(store, {"/a": b"1"})
    foreign.put_records(url, {b"/a//b": b"", b"/a/\xff": b""})
    keys = b"/a//b\n/a/\\xff\n"
    assert run("scan", "/a", "--foreign-keys") == (0, keys, [])
    told = (
        f"batchkeeper: {verb} 2 keys that are not valid paths (see scan --foreign-keys): "
        r"/a//b, /a/\xff"
    )
    assert run(*command, "--allow-foreign-keys")[::2] == (0, [told])
    if command[0] == "delete":
        output = b"/a\t0\n"
    assert run(*command) == (1, output, [told])
    delete, name = ("delete", "--foreign-keys"), r"/a/\xff"
    assert run(*delete, "--dry-run", name)[:2] == (0, f"{name}\n".encode())
    assert run(*delete, name, "batchkeeper") == (3, b"", ["batchkeeper: 'batchkeeper' is reserved"])
    assert run(*delete, name) == (1, b"", [f"batchkeeper: nothing to delete at '{name}'"])
    assert run(*delete, "/a//b", "--store", f"{url}?read_only=true")[0] == 3
    assert run("scan", "--foreign-keys") == (0, b"/a//b\n", [])
    assert run("count", "--allow-foreign-keys")[1] == (b"0\n" if command[0] == "delete" else b"1\n")


@pytest.mark.server
def test_foreign_keys_of_etcd_are_deleted_by_the_names_that_scan_writes(
    run: Run, fresh_url: Callable[[str], str]
) -> None:
    """Each delete removes one key and nothing else; paths and reserved keys are refused."""
    etcd = fresh_url("etcd")
    keys = [b"/", b"/a/", b"/a/.batchkeeper-x", b"/a//b", b"/a/\xff", b"/a/\xff\xfe", b"/it's\n\\"]
    foreign.put_raw(etcd, dict.fromkeys([*keys, b"/a", b"/a/b", b"/.batchkeeper/x"], b"v"))
    scan = ("scan", "--foreign-keys", "--store", etcd)
    delete = ("delete", "--foreign-keys", "--store", etcd)
    names = run(*scan)[1].decode().splitlines()
    assert len(names) == len(keys)
    dry = "batchkeeper: nothing was removed (--dry-run)"
    assert run(*delete, "--dry-run", *names) == (0, "\n".join([*names, ""]).encode(), [dry])
    for refused in ("/a", "/.batchkeeper/x", "a//b", "", r"/a\xf", "-r"):
        assert run(*delete, refused, names[0])[0] == 3
        foreign.put_raw(etcd, {keys[0]: b"v"})
    for number, name in enumerate(names):
        assert run(*delete, name) == (0, b"", [])
        assert run(*delete, name) == (1, b"", [f"batchkeeper: nothing to delete at '{name}'"])
        assert run(*scan)[1].decode().splitlines() == names[number + 1 :]
    with bk.open_store(etcd) as store:
        assert contents(store) == {"/a": b"v", "/a/b": b"v"}
    with foreign.etcd_client(etcd) as (client, prefix):
        assert client.get(f"{prefix}/.batchkeeper/x")[0] == b"v"


@pytest.mark.server
def test_foreign_nodes_of_zookeeper_are_deleted_by_name(
    run: Run, fresh_url: Callable[[str], str]
) -> None:
    """A node with others below it stays, and so do those of the client and the server."""
    url = fresh_url("zookeeper")
    foreign.put_raw(url, {b"/zookeeper/x": b"", b"/.batchkeeper/z": b"", b"/a": b""})
    delete = ("delete", "--foreign-keys", "-o", "jsonl", "--store", url)
    names = ("/zookeeper", "/zookeeper/x", "/.batchkeeper/z", "/a//", r"/\xff")
    code, output, errors = run(*delete, "--dry-run", *names)
    assert (code, len(errors)) == (3, 5)
    assert [row["name"] for row in parsed(output)] == ["/zookeeper/x"]
    assert run(*delete, *names)[:2] == (
        3,
        b'{"key": "/zookeeper/x", "name": "/zookeeper/x", "deleted": true}\n',
    )
    assert run(*delete, "/zookeeper", "/a")[0] == 3  # a valid path, before anything is deleted
    assert run(*delete, "/zookeeper")[0] == 0
    assert run(*delete[:-1], url.rpartition("/")[0], "/zookeeper/quota")[0] == 3
    with foreign.zookeeper_client(url) as client:
        assert sorted(client.get_children("/")) == [".batchkeeper", "a"]
        assert client.exists("/.batchkeeper/z")


# --- old revisions


@pytest.mark.server
def test_old_revisions(run: Run, fresh_url: Callable[[str], str]) -> None:
    """get, scan and count read what the store held at a revision."""
    etcd = fresh_url("etcd")
    with bk.open_store(etcd) as store:
        old = store.put("/a", b"old").result().revision
        put_all(store, {"/a": b"new", "/a/b": b"later", "/a!": b"neighbour"})
    at = ("--revision", str(old), "--store", etcd)
    assert run("get", "/a", *at) == (0, b"old", [])
    assert run("get", "/a", "/a/b", *at) == (
        1,
        b"/a\told\n",
        ["batchkeeper: no value at '/a/b'"],
    )
    # A missing path is not the first one below it.
    with bk.open_store(etcd) as store:
        below = store.put("/b/c", b"below").result().revision
    at_below = ("--revision", str(below), "--store", etcd)
    assert run("get", "/b", *at_below)[0] == 1
    assert run("get", "/b/c", *at_below)[1] == b"below"
    assert run("scan", "/", *at) == (0, b"/a\told\n", [])
    assert run("count", *at) == (0, b"1\n", [])
    assert run("scan", "/a", "--store", etcd)[1] == b"/a\tnew\n/a/b\tlater\n"


def test_old_revisions_need_a_store_that_keeps_them(run: Run, filled: str) -> None:
    """Elsewhere the error names the missing capability: exit code 3."""
    for command in (("get", "/a"), ("scan",), ("count",)):
        code, output, errors = run(*command, "--revision", "1")
        assert (code, output, len(errors)) == (3, b"", 1)
        assert "'snapshots'" in errors[0]

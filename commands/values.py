"""The commands for single values: ``get``, ``put``, ``delete`` and ``ls``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, cast

from .. import Delete, Get, GetChildren, GetResult, MetadataStore, Outcome, Stat
from ..ops.exit_codes import OK, REFUSED, exit_code
from ..ops.sessions import SessionEvent
from ..pipeline.arguments import at_least, seconds
from .arguments import (
    Add,
    InputError,
    add_foreign,
    add_revision,
    check_paths,
    expected_version,
    open_named,
)
from .output import (
    one_line,
    plain_stat,
    readable_stat,
    tell,
    tell_nothing,
    with_value,
    worst,
    write,
    write_json,
    write_record,
    write_rows,
)
from .walks import delete_foreign, delete_trees, get_trees

__all__ = ["declare"]

# Seconds.
_LONGEST_WAIT: Final = 1.0


def declare(add: Add) -> None:
    """Declare the commands."""
    get = add("get", _get, "write the value of a path to standard output")
    get.add_argument(
        "paths", metavar="PATH", nargs="+", help="several paths give a line each: path, tab, value"
    )
    get.add_argument(
        "--prefix", action="store_true", help="write the values below the paths, too, as scan does"
    )
    get.add_argument("--keys-only", action="store_true", help="with --prefix, write no values")
    get.add_argument(
        "--limit",
        type=at_least(1, int),
        metavar="N",
        help="with --prefix, write at most N values in all",
    )
    add_revision(get)
    add_foreign(get)

    put = add("put", _put, "set the value of a path")
    put.add_argument("path", metavar="PATH")
    put.add_argument("value", metavar="VALUE", nargs="?", help="'-' reads standard input")
    put.add_argument("--file", metavar="FILE", help="read the value from a file")
    put.add_argument(
        "--ephemeral",
        action="store_true",
        help="create a value that ends with this command, which waits for Ctrl-C",
    )
    put.add_argument(
        "--session-timeout",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="with --ephemeral, how long the value outlives a killed command (default: 30s)",
    )
    put.add_argument(
        "--sequential", action="store_true", help="append a growing number to the path; print it"
    )

    delete = add("delete", _delete, "remove the values of paths")
    delete.add_argument("paths", metavar="PATH", nargs="+")
    delete.add_argument(
        "-r", "--recursive", action="store_true", help="remove the values below the paths, too"
    )
    delete.add_argument(
        "--dry-run",
        action="store_true",
        help="with -r or --foreign-keys, say what would be removed, and remove none",
    )
    delete.add_argument(
        "--foreign-keys",
        action="store_true",
        help="remove keys that are not valid paths, by the names that scan --foreign-keys writes",
    )
    add_foreign(delete)

    for command in (put, delete):
        command.add_argument(
            "--expected-version",
            type=expected_version,
            metavar="N|absent",
            help="change nothing unless the path is at this version",
        )
        command.add_argument(
            "--expected-revision",
            type=int,
            metavar="N",
            help="change nothing unless the path is at this revision (not on ZooKeeper)",
        )

    ls = add("ls", _ls, "list the names below paths")
    ls.add_argument("paths", metavar="PATH", nargs="*", default=["/"], help="default: /")


def _get(arguments: argparse.Namespace) -> int:
    if arguments.prefix:
        return get_trees(arguments)
    if arguments.keys_only or arguments.limit is not None:
        raise InputError("get takes --keys-only and --limit with --prefix only")
    check_paths(arguments.paths)
    return _get_each(arguments, arguments.paths)


def _get_each(arguments: argparse.Namespace, paths: Sequence[str]) -> int:
    with open_named(arguments, create=False) as store:
        if arguments.revision is None:
            outcomes = store.apply(map(Get, paths))
        else:
            outcomes = _read_at(store, paths, arguments.revision)
    codes = [OK]
    found: list[GetResult] = []
    for outcome in outcomes:
        if outcome.error is not None:
            codes.append(_failed(outcome, len(paths)))
        elif isinstance(outcome.result, GetResult):
            found.append(outcome.result)
        else:
            tell(f"no value at {outcome.op.path!r}")
            codes.append(REFUSED)
    if len(paths) > 1:
        rows = (
            (with_value(stat, value), f"{stat.path}\t{one_line(value)}") for value, stat in found
        )
        write_rows(rows, arguments.output)
    for value, stat in found if len(paths) == 1 else ():
        if arguments.output == "table":
            write(value)
            if sys.stdout.isatty() and not value.endswith(b"\n"):
                write(b"\n")
        else:
            write_json(with_value(stat, value), arguments.output)
    return worst(codes)


def _read_at(store: MetadataStore, paths: Sequence[str], revision: int) -> list[Outcome]:
    """Return the values of paths at an old revision."""
    outcomes = []
    for path in paths:
        # No valid path lies between a path and the path with a space behind it.
        with closing(store.scan(path, path, f"{path} ", revision)) as found:
            result = next((GetResult(value, stat) for _, value, stat in found), None)
        outcomes.append(Outcome(Get(path), result))
    return outcomes


def _put(arguments: argparse.Namespace) -> int:
    value = _value(arguments)
    with open_named(arguments) as store:
        # From before the put, so that no event of its session is missed.
        events = _session_events(store) if arguments.ephemeral else None
        stat = store.put(
            arguments.path,
            value,
            arguments.expected_version,
            ephemeral=arguments.ephemeral,
            sequential=arguments.sequential,
            expected_revision=arguments.expected_revision,
        ).result()
        write_record(plain_stat(stat), readable_stat(stat), arguments.output)
        return OK if events is None else _hold(stat, events)


def _session_events(store: MetadataStore) -> SimpleQueue[SessionEvent]:
    events: SimpleQueue[SessionEvent] = SimpleQueue()
    store.add_session_listener(events.put)
    return events


def _hold(stat: Stat, events: SimpleQueue[SessionEvent]) -> int:
    """Keep the session of an ephemeral value until Ctrl-C, or until the session is lost."""
    sys.stdout.flush()
    if not stat.owned:
        tell(f"{stat.path!r} existed before, and does not end with this command")
        return REFUSED
    tell(f"{stat.path!r} is there until Ctrl-C")
    while (event := _next_event(events)) != "session_lost":
        if event == "connection_lost":
            tell(f"the connection is lost; {stat.path!r} may end with the session")
        elif event == "reconnected":
            tell("the connection is back")
    tell(f"the session has ended, and {stat.path!r} with it")
    return REFUSED


def _next_event(events: SimpleQueue[SessionEvent]) -> SessionEvent:
    # Python misses a signal that comes as a wait begins, and handles it only when that ends.
    while True:
        with suppress(Empty):
            return events.get(timeout=_LONGEST_WAIT)


def _value(arguments: argparse.Namespace) -> bytes:
    """Return the value to put, from the command line, a file or standard input."""
    if (arguments.value is None) == (arguments.file is None):
        raise InputError("put takes either a VALUE ('-' for standard input) or --file FILE")
    try:
        if arguments.file is not None:
            with open(arguments.file, "rb") as file:
                return file.read()
        if arguments.value == "-":
            return sys.stdin.buffer.read()
        return os.fsencode(arguments.value)
    except OSError as error:
        source = "standard input" if arguments.file is None else repr(arguments.file)
        raise InputError(f"cannot read {source}: {error.strerror}") from error


def _delete(arguments: argparse.Namespace) -> int:
    if arguments.foreign_keys:
        return delete_foreign(arguments)
    if arguments.recursive:
        return delete_trees(arguments)
    if arguments.dry_run:
        raise InputError("delete takes --dry-run with -r or --foreign-keys only")
    paths: list[str] = arguments.paths
    check_paths(paths)
    version, revision = arguments.expected_version, arguments.expected_revision
    deletes = [Delete(path, version, expected_revision=revision) for path in paths]
    codes = [OK]
    with open_named(arguments, create=False) as store:
        for outcome in store.apply(deletes):
            if outcome.error is not None:
                codes.append(_failed(outcome, len(paths)))
            elif arguments.output != "table":
                write_json({"path": outcome.op.path, "deleted": True}, arguments.output)
    return worst(codes)


def _ls(arguments: argparse.Namespace) -> int:
    paths: list[str] = arguments.paths
    check_paths(paths, root=True)
    codes = [OK]
    listed: list[tuple[str, list[str]]] = []
    with open_named(arguments, create=False) as store:
        for outcome in store.apply(map(GetChildren, paths)):
            if outcome.error is not None:
                codes.append(_failed(outcome, len(paths)))
                continue
            path, names = outcome.op.path, cast("list[str]", outcome.result)
            listed.append((path, names))
            if not names and (path == "/" or not store.exists(path).result()):
                codes.append(tell_nothing(path))
    if arguments.output != "table":
        write_rows(((row, "") for row in _rows(listed)), arguments.output)
    elif len(paths) == 1:
        write("".join(f"{name}\n" for _, names in listed for name in names).encode())
    else:
        # As `ls` does it.
        blocks = ("".join(f"{line}\n" for line in (f"{path}:", *names)) for path, names in listed)
        write("\n".join(blocks).encode())
    return worst(codes)


def _rows(listed: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Mapping[str, Any]]:
    for path, names in listed:
        above = path.rstrip("/")
        for name in names:
            yield {"name": name, "path": f"{above}/{name}"}


def _failed(outcome: Outcome, paths: int) -> int:
    """Report the error of one of several operations; return its exit code.

    The error of the only one is raised.
    """
    assert outcome.error is not None
    if paths == 1:
        raise outcome.error
    message = str(outcome.error)
    named = repr(outcome.op.path) in message
    tell(message if named else f"{outcome.op.path}: {message}")
    return exit_code(outcome.error)

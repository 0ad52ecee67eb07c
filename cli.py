"""The ``batchkeeper`` command: single operations, bulk loading, jobs on Spark, the benchmark.

Data go to standard output, in UTF-8; progress and errors to standard error, one line each.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final, NoReturn, TextIO

from . import (
    ABSENT,
    BatchingConfig,
    MetadataStore,
    MetadataStoreError,
    Stat,
    StoreKind,
    open_store,
    store_kind,
)
from .ops.exit_codes import BAD_INPUT, OK, REFUSED, exit_code
from .ops.records import json_value
from .pipeline.local_load import InputError, LineLoad, lines, opened, progress
from .stores import BUILT_IN

__all__ = ["main"]

# The codes that a shell reports for a process that the signal has ended.
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_EXIT_CODES: Final = """\
exit codes:
  0  success
  1  the store refused: no value at the path, another version, values below it, no permission,
     damaged data; load: at least one record was a conflict or ended with an error
  2  no connection: the store cannot be reached or opened, or its answer did not come in time
  3  bad input: arguments, paths, settings, values too large, unreadable files, corrupt lines
  130 after an interrupt, 141 after the reader of the output has gone
"""

_LOAD_FORMAT: Final = """\
FILE holds JSON lines, plain or compressed with gzip:
  {"path": "/topics/t1", "value": "stored as UTF-8"}
  {"path": "/topics/t2", "value": {"base64": "AAEC"}}
Empty lines and other fields are ignored. Any other line ends the load with an error that names the
line. Records before it are written; the summary counts them.
"""

# The kinds of stores that the help lists. A store in memory loses its data when the command ends.
_KINDS: Final = tuple(kind for kind in BUILT_IN.values() if not kind.in_process)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        _mend_streams()
        try:
            arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
            # The error itself has everything that users need; kazoo and gRPC log the rest.
            logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL)
            run: Callable[[argparse.Namespace], int] = arguments.run
            code = run(arguments)
        except (InputError, MetadataStoreError) as error:
            _tell(str(error))
            code = BAD_INPUT if isinstance(error, InputError) else exit_code(error)
        finally:
            # Flush here, also after argparse's help: a failure when Python ends gives another code.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        _drop(sys.stdout)
        # Most of these errors come from writing the output, which has no file name.
        _tell(f"{error.filename or 'input or output failed'}: {error.strerror or error}")
        return BAD_INPUT
    return code


def _mend_streams() -> None:
    """Mend the standard streams so that no output is lost without an error.

    A closed stream, as after ``>&-``, is ``None``, and the next opened file takes its number; that
    may be a file of a store. An unbuffered stream (``PYTHONUNBUFFERED``) writes as much as a full
    disk has room for, and drops the rest without an error.
    """
    # Open input and output the wrong way round, so that using them fails with a bad file
    # descriptor, as if they were still closed. Messages alone may be lost.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 - for as long as the process runs
            sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False
        )


def _drop(stream: TextIO) -> None:
    # At its end, Python would try again to write the rest of the buffer, and report the failure.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- the commands


def _get(arguments: argparse.Namespace) -> int:
    with _store(arguments, create=False) as store:
        found = store.get(arguments.path).result()
    if found is None:
        _tell(f"no value at {arguments.path!r}")
        return REFUSED
    if arguments.output == "table":
        _write(found.value)
        if sys.stdout.isatty() and not found.value.endswith(b"\n"):
            _write(b"\n")
    else:
        _write_json({**_plain_stat(found.stat), "value": json_value(found.value)}, arguments)
    return OK


def _put(arguments: argparse.Namespace) -> int:
    if (arguments.value is None) == (arguments.file is None):
        raise InputError("put takes either a VALUE ('-' for standard input) or --file FILE")
    try:
        if arguments.file is not None:
            with open(arguments.file, "rb") as file:
                value = file.read()
        elif arguments.value == "-":
            value = sys.stdin.buffer.read()
        else:
            value = os.fsencode(arguments.value)
    except OSError as error:
        source = arguments.file or "standard input"
        raise InputError(f"cannot read {source}: {error.strerror}") from error
    with _store(arguments) as store:
        stat = store.put(arguments.path, value, arguments.expected_version).result()
    _write_record(_plain_stat(stat), _readable_stat(stat), arguments)
    return OK


def _delete(arguments: argparse.Namespace) -> int:
    with _store(arguments, create=False) as store:
        store.delete(arguments.path, arguments.expected_version).result()
    if arguments.output != "table":
        _write_json({"path": arguments.path, "deleted": True}, arguments)
    return OK


def _ls(arguments: argparse.Namespace) -> int:
    with _store(arguments, create=False) as store:
        names = store.get_children(arguments.path).result()
    if arguments.output == "table":
        _write("".join(f"{name}\n" for name in names).encode())
        return OK
    above = arguments.path.rstrip("/")
    rows = [{"name": name, "path": f"{above}/{name}"} for name in names]
    if arguments.output == "json":
        _write_json(rows, arguments)
    else:
        for row in rows:
            _write_json(row, arguments)
    return OK


def _load(arguments: argparse.Namespace) -> int:
    given = {
        name: getattr(arguments, name)
        for name in ("max_ops", "max_bytes", "max_delay", "max_in_flight")
        if getattr(arguments, name) is not None
    }
    batching = BatchingConfig(enabled=not arguments.no_batching, **given)
    load = LineLoad(
        arguments.file, ABSENT if arguments.create_only else None, arguments.skip_bad, _tell
    )
    failure: Exception | KeyboardInterrupt | None = None
    with (
        opened(arguments.file) as (file, position, size),
        _store(arguments, batching) as store,
        progress(load, position, size, _tell) as report,
        # Closing it makes an interrupt wait for the operations that were sent.
        closing(store.apply_stream(load.puts(lines(file)))) as outcomes,
    ):
        started = time.monotonic()
        try:
            for outcome in outcomes:
                load.count(outcome)
                report()
        except (InputError, KeyboardInterrupt) as error:
            failure = error
        seconds = time.monotonic() - started
    ended = load.written + load.conflicts + load.errors
    summary = {
        "written": load.written,
        "conflicts": load.conflicts,
        "errors": load.errors,
        "skipped": load.skipped,
        "seconds": round(seconds, 3),
        "operations_per_second": round(ended / seconds),
    }
    _write_record(summary, summary, arguments)
    if failure := failure or load.lost:
        raise failure
    return REFUSED if load.conflicts or load.errors else OK


def _bench(arguments: argparse.Namespace) -> int:
    code: int = _bench_command().run(arguments)
    return code


def _bench_command() -> ModuleType:
    # Loaded on demand: its servers and histograms take longer to import than any other command
    # takes to run.
    return importlib.import_module(".bench.command", __package__)


def _servers(arguments: argparse.Namespace) -> int:
    code: int = _servers_command().run(arguments)
    return code


def _servers_command() -> ModuleType:
    return importlib.import_module(".bench.installing", __package__)


def _spark(arguments: argparse.Namespace) -> int:
    code: int = _spark_command().run(arguments)
    return code


def _spark_command() -> ModuleType:
    # Loaded on demand, like the benchmark.
    return importlib.import_module(".pipeline.jobs.command", __package__)


# --- output


def _tell(message: str) -> None:
    try:
        print(f"batchkeeper: {' '.join(message.splitlines())}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)  # The exit code still reports the error.


def _write(data: bytes) -> None:
    # Data is written in UTF-8, whatever the locale.
    sys.stdout.buffer.write(data)


def _write_record(
    plain: Mapping[str, Any], readable: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
    """Write one record, as lines of name and value or as JSON."""
    if arguments.output == "table":
        width = max(map(len, readable))
        rows = [f"{name:<{width}}  {value}\n" for name, value in readable.items()]
        _write("".join(rows).encode())
    else:
        _write_json(plain, arguments)


def _write_json(value: Any, arguments: argparse.Namespace) -> None:
    indent = 2 if arguments.output == "json" else None
    _write(f"{json.dumps(value, ensure_ascii=False, indent=indent)}\n".encode())


def _plain_stat(stat: Stat) -> dict[str, Any]:
    return {
        "path": stat.path,
        "version": stat.version,
        "revision": stat.revision,
        "created": stat.created,
        "modified": stat.modified,
    }


def _readable_stat(stat: Stat) -> dict[str, Any]:
    times = {
        name: "unknown" if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat()
        for name, at in (("created", stat.created), ("modified", stat.modified))
    }
    return {**_plain_stat(stat), **times}


# --- arguments


class _ArgumentParser(argparse.ArgumentParser):
    """Ends with one line and the exit code for bad input."""

    def error(self, message: str) -> NoReturn:
        _tell(f"{message} (see {self.prog} --help)")
        raise SystemExit(BAD_INPUT)


class _Version(argparse.Action):
    """Prints the version of the installed package, and looks it up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{parser.prog} {version('batchkeeper')}")
        raise SystemExit(OK)


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _ArgumentParser(
        prog="batchkeeper",
        description=f"Read and write metadata in {_in_words(_KINDS)}, in batches.",
        epilog=_stores() + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(store=None, output="table", verbose=False)
    parser.set_defaults(connect_timeout=10.0, timeout=30.0)
    _add_common(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], help: str) -> _ArgumentParser:  # noqa: A002
        command: _ArgumentParser = commands.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        return command

    get = add("get", _get, "write the value of a path to standard output")
    get.add_argument("path", metavar="PATH")

    put = add("put", _put, "set the value of a path")
    put.add_argument("path", metavar="PATH")
    put.add_argument("value", metavar="VALUE", nargs="?", help="'-' reads standard input")
    put.add_argument("--file", metavar="FILE", help="read the value from a file")

    delete = add("delete", _delete, "remove the value of a path")
    delete.add_argument("path", metavar="PATH")

    for command in (put, delete):
        command.add_argument(
            "--expected-version",
            type=_expected_version,
            metavar="N|absent",
            help="change nothing unless the path is at this version",
        )

    ls = add("ls", _ls, "list the names below a path")
    ls.add_argument("path", metavar="PATH", nargs="?", default="/")

    load = add("load", _load, "put many records from a file, in batches")
    load.epilog = f"{_LOAD_FORMAT}\n{_EXIT_CODES}"
    load.add_argument("file", metavar="FILE", help="JSON lines; '-' reads standard input")
    load.add_argument("--create-only", action="store_true", help="keep existing values")
    load.add_argument("--skip-bad", action="store_true", help="count bad lines and continue")
    load.add_argument("--no-batching", action="store_true", help="send each record by itself")
    load.add_argument("--max-ops", type=int, metavar="N", help="most records in a batch")
    load.add_argument("--max-bytes", type=int, metavar="N", help="most bytes in a batch")
    load.add_argument("--max-delay", type=float, metavar="SECONDS", help="longest wait for a batch")
    load.add_argument("--max-in-flight", type=int, metavar="N", help="most batches in flight")

    for command in (get, put, delete, ls, load):
        _add_common(command)

    bench = add("bench", _bench, "compare batch settings on a store")
    if "bench" in argv:
        _bench_command().add_arguments(bench)

    servers = add("servers", _servers, "list the servers that bench and tests use; install others")
    if "servers" in argv:
        _servers_command().add_arguments(servers)

    spark = add("spark", _spark, "run bulk jobs on Spark: load, export, restore, copy, diff")
    if "spark" in argv:
        _spark_command().add_arguments(spark)
    return parser


def _stores() -> str:
    forms = (f"  {kind.url_form:<47} {kind.url_note}".rstrip() for kind in _KINDS)
    return "\n".join(("stores:", *forms, "\n"))


def _in_words(kinds: Sequence[StoreKind]) -> str:
    *titles, last = [kind.title for kind in kinds]
    return f"{', '.join(titles)} and {last}"


def _add_common(parser: argparse.ArgumentParser) -> None:
    # Both parsers have these options, so they may precede or follow the command. A default would
    # overwrite an option before the command.
    common = parser.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    common.add_argument("--store", metavar="URL", help="the store (default: $BATCHKEEPER_STORE)")
    common.add_argument("-o", "--output", choices=("table", "json", "jsonl"), help="default: table")
    common.add_argument("--connect-timeout", type=float, metavar="SECONDS", help="default: 10")
    common.add_argument("--timeout", type=float, metavar="SECONDS", help="default: 30")
    common.add_argument("-v", "--verbose", action="store_true", help="log to standard error")


def _expected_version(text: str) -> int:
    if text in {"absent", str(ABSENT)}:
        return ABSENT
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"neither a version nor 'absent': {text!r}")


def _store(
    arguments: argparse.Namespace, batching: BatchingConfig | None = None, *, create: bool = True
) -> MetadataStore:
    """Open the store of a command; ``create`` says whether it may create a missing store."""
    url = arguments.store
    if url is None:
        url = os.environ.get("BATCHKEEPER_STORE")
    if not url:
        raise InputError("no store given: pass --store URL, or set BATCHKEEPER_STORE")
    store = open_store(
        url,
        batching=batching,
        connect_timeout=arguments.connect_timeout,
        operation_timeout=arguments.timeout,
        create=create,
    )
    if store_kind(url).in_process:
        _tell(f"{url} lives in this process: its data is lost when the command ends")
    return store

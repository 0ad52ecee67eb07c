"""The ``batchkeeper`` command: its parser, its exit codes, and the groups of commands.

Data go to standard output, in UTF-8; progress and errors to standard error, one line each. The
commands themselves are in ``commands/``.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NoReturn

from . import MetadataStoreError, StoreKind
from .commands import (
    acls,
    completion,
    load,
    locks,
    named_stores,
    output,
    transactions,
    values,
    walks,
    watches,
)
from .commands.arguments import InputError, Run, add_common
from .ops.acceleration import ACCELERATED, REASON
from .ops.exit_codes import BAD_INPUT, INTERRUPTED, OK, ending_signals, exit_code
from .stores import BUILT_IN

__all__ = ["main"]

# The code that a shell reports for a process that the signal has ended.
BROKEN_PIPE: Final = 141

_EXIT_CODES: Final = """\
exit codes:
  0  success
  1  the store refused: no value at the path (scan, count, ls: nor below it), another version,
     values below it, no permission, damaged data; load: at least one record was a conflict or
     ended with an error; locks: nobody is in line
  2  no connection: the store cannot be reached or opened, or its answer did not come in time
  3  bad input: arguments, paths, settings, values too large, unreadable files, corrupt lines
  130 after an interrupt (Ctrl-C), 143 after SIGTERM, 129 after SIGHUP, 141 after the reader of
     the output has gone
"""

# The kinds of stores that the help lists. A store in memory loses its data when the command ends.
_KINDS: Final = tuple(kind for kind in BUILT_IN.values() if not kind.in_process)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    with ending_signals() as ended:
        code = _main(argv)
    return 128 + ended[0] if ended and code == INTERRUPTED else code


@contextmanager
def _signals_held() -> Generator[None]:
    """Hold the signals back that end the command: an exception may break argparse anywhere."""
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(argv: Sequence[str] | None) -> int:
    try:
        _mend_streams()
        try:
            with _signals_held():
                arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
            # The error itself has everything that users need; kazoo and gRPC log the rest.
            logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL)
            run: Run = arguments.run
            code = run(arguments)
        except (InputError, MetadataStoreError) as error:
            output.tell(str(error))
            code = BAD_INPUT if isinstance(error, InputError) else exit_code(error)
        finally:
            # Flush here, also after argparse's help: a failure when Python ends gives another code.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        output.drop(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        output.drop(sys.stdout)
        # Most of these errors come from writing the output, which has no file name.
        output.tell(f"{error.filename or 'input or output failed'}: {error.strerror or error}")
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


def _bench(arguments: argparse.Namespace) -> int:
    # These words come before the files of earlier runs, and are no names of stores.
    of_results = arguments.target in {"compare", "report"}
    with named_stores.in_place(arguments, *(() if of_results else ("target", "store"))):
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
    return importlib.import_module(".testing.servers.installing", __package__)


def _hubs(arguments: argparse.Namespace) -> int:
    code: int = _hubs_command().run(arguments)
    return code


def _hubs_command() -> ModuleType:
    # Loaded on demand: with the hubs, it takes longer to import than the rest.
    return importlib.import_module(".commands.hubs", __package__)


def _top(arguments: argparse.Namespace) -> int:
    named_stores.settle(arguments, named_stores.NamedStore(""))
    code: int = _top_command().run(arguments)
    return code


def _top_command() -> ModuleType:
    # Loaded on demand: it draws with rich.
    return importlib.import_module(".commands.top", __package__)


def _spark(arguments: argparse.Namespace) -> int:
    named_stores.for_spark(arguments)
    code: int = _spark_command().run(arguments)
    return code


def _spark_command() -> ModuleType:
    # Loaded on demand, like the benchmark.
    return importlib.import_module(".pipeline.jobs.command", __package__)


def _completion(arguments: argparse.Namespace) -> int:
    return completion.run_with(lambda: _parser((), whole=True), arguments)


# --- arguments


class _ArgumentParser(argparse.ArgumentParser):
    """Ends with one line that names the right help, and with the exit code for bad input."""

    def error(self, message: str) -> NoReturn:
        output.tell(f"{message} (see {self.prog} --help)")
        raise SystemExit(BAD_INPUT)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        self._refuse(unknown)
        return found, unknown

    def _refuse(self, unknown: Sequence[str]) -> None:
        # The parser of the whole command would name its own help, and not that of the command.
        if unknown:
            options = self._option_string_actions
            advice = _advice(unknown[0].partition("=")[0], options)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = ", ".join(action.choices)
            advice = _advice(value, action.choices) or f" (known: {known})"
            self.error(f"no {str(action.metavar).lower()} {value!r}{advice}")
        super()._check_value(action, value)


class _CommandParser(_ArgumentParser):
    """Lets options stand between the arguments of a command: ``put PATH --ephemeral VALUE``."""

    _between = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._between:
            return argparse.ArgumentParser.parse_known_args(self, args, namespace)
        if self._subparsers is not None or "--" in (args or ()):  # argparse cannot do both
            return super().parse_known_args(args, namespace)
        self._between = True  # the next line calls this method again
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._between = False
        self._refuse(unknown)
        return found, unknown


def _advice(given: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message, if something known looks like what was given."""
    difflib = importlib.import_module("difflib")  # It is slow to import, and most need no advice.
    names = {name.lstrip("-"): name for name in known}  # All options have these in common.
    near = difflib.get_close_matches(given.lstrip("-"), names, n=1)
    return f": did you mean {names[near[0]]!r}?" if near else ""


class _Version(argparse.Action):
    """Prints the version of the installed package, and whether it is accelerated."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        # This import takes a tenth of the time that the command takes to start.
        version = importlib.import_module("importlib.metadata").version
        state = "accelerated" if ACCELERATED else f"not accelerated: {REASON}"
        print(f"{parser.prog} {version('batchkeeper')} ({state})")
        raise SystemExit(OK)


def _parser(argv: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the command.

    Args:
        argv: the arguments. Commands with slow imports declare theirs only if they are named.
        whole: whether they do so in any case.
    """
    parser = _ArgumentParser(
        prog="batchkeeper",
        description=f"Read and write metadata in {_in_words(_KINDS)}, in batches.",
        epilog=_stores() + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(store=None, config=None, output="table", verbose=False)
    parser.set_defaults(connect_timeout=None, timeout=None)
    add_common(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_CommandParser)

    def add(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        command: _ArgumentParser = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        return command

    for group in (values, walks, watches, locks, transactions, load, acls):
        group.declare(add)
    for command in commands.choices.values():
        add_common(command)

    bench = add("bench", _bench, "compare batch settings on a store")
    if whole or "bench" in argv:
        _bench_command().add_arguments(bench)

    servers = add("servers", _servers, "list the servers that bench and tests use; install others")
    if whole or "servers" in argv:
        _servers_command().add_arguments(servers)

    hubs = add("hubs", _hubs, "list message hubs and their topics; simulate hubs that are killed")
    if whole or "hubs" in argv:
        _hubs_command().add_arguments(hubs, simulate=whole or "simulate" in argv)

    top = add("top", _top, "show what a running client does: rates, queues, latencies, session")
    if whole or "top" in argv:
        _top_command().add_arguments(top)

    spark = add("spark", _spark, "run bulk jobs on Spark: load, export, restore, copy, diff")
    if whole or "spark" in argv:
        _spark_command().add_arguments(spark)

    completion.add_arguments(
        add("completion", _completion, "write a script that completes this command in a shell")
    )
    return parser


def _stores() -> str:
    forms = (f"  {kind.url_form:<47} {kind.url_note}".rstrip() for kind in _KINDS)
    return "\n".join(("stores:", *forms, "\n"))


def _in_words(kinds: Sequence[StoreKind]) -> str:
    *titles, last = [kind.title for kind in kinds]
    return f"{', '.join(titles)} and {last}"

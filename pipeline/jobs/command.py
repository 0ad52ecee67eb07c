"""The command ``batchkeeper spark``: its options, and the jobs that it runs."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from typing import Final, get_args

from ...ops.errors import InvalidSettingError, UnsupportedError
from ..arguments import add_output, add_timeouts
from ..options import OnError, parse_options
from .places import Store, is_store

__all__ = ["add_arguments", "run"]

_EXIT_CODES: Final = """\
exit codes:
  0  success; diff: the sides are the same
  1  at least one row was not written, or a task failed; copy: the target differs from the source;
     diff: the sides differ; export, copy, diff: the job is done, but left out keys of other clients
     that are not valid paths; export, copy: no value is at or below the prefix
  2  no connection: the store cannot be reached or opened; diff: any error
  3  bad input: arguments, settings, files, rows
  130 after an interrupt (Ctrl-C), 143 after SIGTERM, 129 after SIGHUP, 141 after the reader of
     the output has gone
"""

_DESCRIPTION: Final = """\
Run a bulk job on Spark: on this machine, or with --master on a cluster. Options follow the name of
the job.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXIT_CODES
    jobs = parser.add_subparsers(metavar="JOB", dest="job", required=True)

    def add(name: str, help: str) -> argparse.ArgumentParser:  # noqa: A002 - argparse's word
        job: argparse.ArgumentParser = jobs.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        return job

    load = add("load", "put the records of files into a store")
    load.add_argument("files", metavar="FILE", nargs="+", help="a file, a folder or a URI")
    load.add_argument(
        "--format",
        choices=("jsonl", "csv", "parquet"),
        help='JSON lines of {"path": ..., "value": text or {"base64": ...}}, CSV with a header, or '
        "Parquet, with the columns path and value (default: by the file's name)",
    )

    export = add("export", "write the values under a path to Parquet files")
    export.add_argument("folder", metavar="DIR", help="a new or empty folder, or its URI")
    export.add_argument("--overwrite", action="store_true", help="replace an earlier export")

    restore = add("restore", "put an export back into a store, the same or any other")
    restore.add_argument("folder", metavar="DIR", help="the folder of an export, or its URI")

    copy = add("copy", "copy what a store holds below a path into another store")
    copy.add_argument(
        "--from", dest="source", metavar="URL", required=True, help="the store to read"
    )
    copy.add_argument(
        "--to", dest="target", metavar="URL", required=True, help="the store to write"
    )
    copy.add_argument(
        "--state",
        metavar="DIR",
        required=True,
        help="a folder, or its URI, for the copy's progress and its report in Parquet",
    )
    copy.add_argument("--resume", action="store_true", help="continue a copy that ended early")
    copy.add_argument(
        "--overwrite", action="store_true", help="replace different values in the target"
    )

    diff = add("diff", "compare two stores, or a store and an export, by path and value")
    for name in ("left", "right"):
        diff.add_argument(name, metavar=name.upper(), help="a store's URL, or an export's folder")
    diff.add_argument("--ephemeral", action="store_true", help="compare ephemeral values, too")
    diff.add_argument(
        "--show", type=int, default=20, metavar="N", help="paths to show of each kind (default: 20)"
    )

    for job, sides in ((copy, ("from", "to")), (diff, ("left", "right"))):
        for side in sides:
            job.add_argument(
                f"--{side}-option",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="like --option, for this side only",
            )
    for job in (load, restore):
        job.add_argument("--create-only", action="store_true", help="keep existing values")
        job.add_argument(
            "--on-error",
            choices=get_args(OnError),
            default="fail",
            help="what to do with a bad row: fail ends the job, collect counts and reports it, "
            "skip only counts it (default: fail)",
        )
    for job in (load, restore, copy):
        job.add_argument(
            "--dry-run", action="store_true", help="count what would be written; write nothing"
        )
    for job in (export, copy, diff):
        job.add_argument("--prefix", metavar="PATH", default="/", help="default: /, everything")
        job.add_argument(
            "--allow-foreign-keys",
            action="store_true",
            help="exit with 0 even if keys are left out because they are not valid paths or may "
            "not be read; the job counts them in any case",
        )
    for job in (load, export, restore):
        job.add_argument(
            "--store",
            metavar="URL|NAME",
            default=argparse.SUPPRESS,
            help="the store (default: $BATCHKEEPER_STORE)",
        )
    for job in (load, export, restore, copy, diff):
        _add_common(job)


def _add_common(job: argparse.ArgumentParser) -> None:
    # A default here would overwrite an option given before the command.
    common = job.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    common.add_argument("--config", metavar="FILE", help="the file that names stores")
    add_output(common)
    add_timeouts(common)
    common.add_argument("-v", "--verbose", action="store_true", help="show Spark's log")
    job.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the data source: rate_limit=5000, max_in_flight=2, "
        "password_file=/path, ...",
    )
    job.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: local[*], on this machine)"
    )
    job.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a job, and return the exit code.

    Raises:
        MetadataStoreError: an argument is bad, or the extra ``spark`` is missing. The classes have
            the same exit codes as in the other commands.
    """
    stores = [
        _store(arguments, name, options) if is_store(name) else None
        for name, options in _named_stores(arguments)
    ]
    if arguments.job == "copy" and arguments.source == arguments.target:
        raise InvalidSettingError(f"--from and --to are the same store: {arguments.source}")
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise UnsupportedError(
                f"the package {package!r} is missing: pip install 'batchkeeper[spark]'"
            )
    # It imports pyspark, which takes a second and may be missing.
    from .running import run as run_job

    return run_job(arguments, stores)


def _named_stores(arguments: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return the names of a job's stores, each with the options for this store only.

    A name may also be the folder of an export.
    """
    if arguments.job == "copy":
        return [
            (arguments.source, arguments.from_option),
            (arguments.target, arguments.to_option),
        ]
    if arguments.job == "diff":
        return [
            (arguments.left, arguments.left_option),
            (arguments.right, arguments.right_option),
        ]
    url = getattr(arguments, "store", None) or os.environ.get("BATCHKEEPER_STORE")
    if not url:
        raise InvalidSettingError("no store given: pass --store URL, or set BATCHKEEPER_STORE")
    return [(url, [])]


def _store(arguments: argparse.Namespace, url: str, options: list[str]) -> Store:
    given: dict[str, object] = {
        "connect_timeout": arguments.connect_timeout,
        "operation_timeout": arguments.timeout,
        "prefix": getattr(arguments, "prefix", "/"),
        "on_error": getattr(arguments, "on_error", "fail"),
    }
    for text in (*arguments.option, *options):
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidSettingError(f"--option takes NAME=VALUE, not {text!r}")
        given[name.lower()] = value
    given["url"] = url
    return Store(parse_options(given), given)

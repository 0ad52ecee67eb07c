"""Runs a job of ``batchkeeper spark``, from its arguments to its summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from ...ops.errors import InvalidSettingError, error_class
from ...ops.exit_codes import BAD_INPUT, OK, REFUSED, exit_code
from ..clients import opened
from ..foreign import check_there
from ..row_report import DONE, STATUSES
from .copies import check_sides, copy, preview, saved_plan
from .diff import diff
from .export import check_place, export, restore
from .folder import Folder
from .inputs import check_files, for_spark, format_of
from .load import load
from .manifest import read_manifest
from .places import Store
from .progress import Steps, progress
from .sides import side
from .spark_session import explain, spark_session, submitted
from .summary import print_summary

__all__ = ["run"]

# As for other commands that compare, 1 means that the sides differ, so errors need another code.
_DIFF_FAILED: Final = 2

# Errors that no store raises, and that bad input or a missing Java causes.
_OF_INPUT: Final = frozenset({"AnalysisException", "InputError", "JavaMissingError"})

# For each job, the places of the stores that it writes.
_WRITTEN: Final[Mapping[str, Sequence[int]]] = {
    "load": (0,),
    "export": (),
    "restore": (0,),
    "copy": (1,),
    "diff": (),
}

_NOT_DONE: Final[Sequence[str]] = [status for status in STATUSES if status not in DONE]

_Ended = tuple[int, dict[str, Any]]


def run(arguments: argparse.Namespace, stores: Sequence[Store | None]) -> int:
    """Run a job, print its summary, and return the exit code.

    An error is shown in one line, regardless of the output of Spark and Java.

    Args:
        arguments: the arguments of the command.
        stores: the stores that the arguments name, in order; ``None`` for an export.
    """
    try:
        settings = dict(_setting(text) for text in arguments.conf)
        _check_places(arguments, stores)
        # Report a store that cannot be opened now, once, and not in every task after Spark's start.
        advisory = None
        # The source of a copy that is resumed may have become empty.
        begins = arguments.job == "export" or (arguments.job == "copy" and not arguments.resume)
        for place, store in enumerate(stores):
            if store is not None:
                dry = getattr(arguments, "dry_run", False)
                writes = place in _WRITTEN[arguments.job] and not dry
                with opened(store.options, read_only=not writes) as found:
                    if place == 0 and begins:
                        check_there(found, store.options.prefix, store.options.revision)
                    advisory = found.advisory if writes else advisory
        with progress() as steps:
            steps.begin("starting Spark")
            with spark_session(arguments.master, settings, verbose=arguments.verbose) as spark:
                steps.spark = spark
                code, summary = _JOBS[arguments.job](spark, arguments, stores, steps)
                steps.spark = None
    except Exception as error:
        if arguments.verbose:
            raise
        message, cause = explain(error)
        code = _code_of_error(cause)
        if arguments.job == "copy" and code != BAD_INPUT and cause != "NotFoundError":
            message += " (what is done is kept: --resume takes the copy up again)"
        sys.stderr.write(f"batchkeeper: {' '.join(message.split())}\n")
        return _DIFF_FAILED if arguments.job == "diff" else code
    if advisory:
        summary["warning"] = advisory
    print_summary(summary, arguments.output)
    return code


def _check_places(  # noqa: C901 - one case for each job
    arguments: argparse.Namespace, stores: Sequence[Store | None]
) -> None:
    """Refuse files and folders that cannot be used, before Spark starts, which takes seconds.

    Raises:
        JobError: the message names the file or folder.
    """
    match arguments.job:
        case "load":
            if arguments.format is None:
                format_of(arguments.files[0])
            if (arguments.master or "local").startswith("local") and not submitted():
                check_files(arguments.files)
        case "export":
            check_place(Folder(arguments.folder), overwrite=arguments.overwrite)
        case "restore":
            read_manifest(Folder(arguments.folder))
        case "copy":
            source, target = stores
            assert source is not None
            assert target is not None
            check_sides(source, target)
            if not arguments.dry_run:
                only = {"resume": arguments.resume, "overwrite": arguments.overwrite}
                saved_plan(source, target, Folder(arguments.state), **only)
        case "diff":
            for name, store in zip((arguments.left, arguments.right), stores, strict=True):
                if store is None:
                    read_manifest(Folder(name))


def _code_of_error(cause: str) -> int:
    """Return the exit code for the name of an error's class. The error may come from a task."""
    if cause in _OF_INPUT:
        return BAD_INPUT
    kind = error_class(cause)
    return REFUSED if kind is None else exit_code(kind)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidSettingError(f"--conf takes NAME=VALUE, not {text!r}")
    return name, value


def _load(
    spark: SparkSession, arguments: argparse.Namespace, stores: Sequence[Store | None], steps: Steps
) -> _Ended:
    [store] = stores
    assert store is not None
    kind = arguments.format or format_of(arguments.files[0])
    files = [*map(for_spark, arguments.files)]
    only, dry = arguments.create_only, arguments.dry_run
    summary = load(spark, files, kind, store.options, steps, create_only=only, dry_run=dry)
    return _code_of(summary), summary


def _export(
    spark: SparkSession, arguments: argparse.Namespace, stores: Sequence[Store | None], steps: Steps
) -> _Ended:
    [store] = stores
    assert store is not None
    folder = Folder(arguments.folder)
    summary = export(spark, store.options, folder, steps, overwrite=arguments.overwrite)
    return _whole(OK, summary, arguments), summary


def _restore(
    spark: SparkSession, arguments: argparse.Namespace, stores: Sequence[Store | None], steps: Steps
) -> _Ended:
    [store] = stores
    assert store is not None
    folder = Folder(arguments.folder)
    only, dry = arguments.create_only, arguments.dry_run
    summary = restore(spark, folder, store.options, steps, create_only=only, dry_run=dry)
    return _code_of(summary), summary


def _copy(
    spark: SparkSession, arguments: argparse.Namespace, stores: Sequence[Store | None], steps: Steps
) -> _Ended:
    source, target = stores
    assert source is not None
    assert target is not None
    if arguments.dry_run:
        return OK, preview(spark, source, target, steps, overwrite=arguments.overwrite)
    folder = Folder(arguments.state)
    fine, summary = copy(
        spark,
        source,
        target,
        folder,
        steps,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
    )
    return _whole(OK if fine else REFUSED, summary, arguments), summary


def _diff(
    spark: SparkSession, arguments: argparse.Namespace, stores: Sequence[Store | None], steps: Steps
) -> _Ended:
    steps.begin("checking")
    left, right = (
        side(spark, Folder(name) if store is None else store, arguments.prefix)
        for name, store in zip((arguments.left, arguments.right), stores, strict=True)
    )
    same, summary = diff(
        left,
        right,
        steps,
        ephemeral=arguments.ephemeral,
        show=arguments.show,
        prefix=arguments.prefix,
        allow_foreign_keys=arguments.allow_foreign_keys,
    )
    return _whole(OK if same else REFUSED, summary, arguments), summary


_JOBS: Final[
    Mapping[
        str,
        Callable[[SparkSession, argparse.Namespace, Sequence[Store | None], Steps], _Ended],
    ]
] = {"load": _load, "export": _export, "restore": _restore, "copy": _copy, "diff": _diff}


def _whole(code: int, summary: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Return the exit code of a job, and warn on standard error if it has left out keys."""
    count = sum(
        value
        for name, value in summary.items()
        if name.startswith("foreign_keys") and isinstance(value, int)
    )
    if not count or arguments.allow_foreign_keys:
        return code
    sys.stderr.write(
        f"batchkeeper: keys left out because they are not valid paths: {count:,}. The summary "
        "names the first ones; those that are valid paths may not be read by this login. Copy them "
        "with the store's own tools (etcdctl on etcd). To accept that they are left out, pass "
        "--allow-foreign-keys\n"
    )
    return REFUSED


def _code_of(summary: Mapping[str, Any]) -> int:
    ended = summary.get("outcomes", {})  # A dry run has none.
    bad = summary.get("bad_rows") or any(ended.get(kind) for kind in _NOT_DONE)
    return REFUSED if bad else OK

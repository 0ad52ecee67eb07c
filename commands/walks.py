"""The commands that walk over all values under a path: ``scan``, ``count`` and ``delete -r``.

Keys that are not valid paths are left out. The commands count and name them, and end with exit code
1 unless the user permits such keys. ``delete --foreign-keys`` removes them by name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final

from .. import ForeignKeys, MetadataStore, ScanPage, StatPage
from ..ops.errors import InvalidPathError, MetadataStoreError, UnsupportedError
from ..ops.exit_codes import OK, exit_code
from ..ops.json_lines import json_value
from ..ops.results import key_named, printable
from ..stores.backend import Backend
from ..stores.keys import ForeignRemoval, path_of
from .arguments import Add, InputError, add_foreign, add_revision, check_paths, open_named
from .output import (
    Format,
    json_line,
    one_line,
    plain_stat,
    tell,
    tell_foreign,
    tell_nothing,
    with_value,
    worst,
    write,
    write_json,
    write_rows,
)

__all__ = ["declare", "delete_foreign", "delete_trees", "get_trees"]

_SCAN: Final = """\
With -o jsonl, the lines are records that load and spark load read. So a store is saved, and put
back into the same or any other store, with:
  batchkeeper scan / --no-ephemeral -o jsonl | gzip > saved.jsonl.gz
  batchkeeper load saved.jsonl.gz
"""


def declare(add: Add) -> None:
    """Declare the commands."""
    scan = add("scan", _scan, "write all values under a path, in the order of paths")
    scan.add_argument("path", metavar="PATH", nargs="?", default="/", help="default: /")
    scan.add_argument("--start", metavar="PATH", help="begin with this path")
    scan.add_argument("--end", metavar="PATH", help="end before this path")
    scan.add_argument("--no-values", action="store_true", help="write paths and stats only")
    scan.add_argument(
        "--no-ephemeral", action="store_true", help="leave out values that end with a session"
    )
    scan.add_argument(
        "--foreign-keys",
        action="store_true",
        help="write only the keys that are not valid paths, which are otherwise left out",
    )
    scan.epilog = f"{_SCAN}\n{scan.epilog}"

    count = add("count", _count, "count the values under paths")
    count.add_argument("paths", metavar="PATH", nargs="*", default=["/"], help="default: /")

    for command in (scan, count):
        add_revision(command)
        add_foreign(command)


def _scan(arguments: argparse.Namespace) -> int:
    foreign = ForeignKeys()
    ephemeral = values = 0

    def rows() -> Iterator[tuple[Mapping[str, Any], str]]:
        nonlocal ephemeral, values
        for page in pages:
            foreign.add(page.foreign)
            values += len(page)
            if arguments.foreign_keys:
                yield from ((_fields(key), printable(key)) for key in page.foreign)
                continue
            for fields, text, leaves in _rows(page, arguments.output):
                if leaves and arguments.no_ephemeral:
                    ephemeral += 1
                else:
                    yield fields, text

    with (
        open_named(arguments, create=False) as store,
        closing(
            store.scan_pages(
                arguments.path,
                arguments.start,
                arguments.end,
                arguments.revision,
                values=not (arguments.no_values or arguments.foreign_keys),
            )
        ) as pages,
    ):
        write_rows(rows(), arguments.output)
    if ephemeral:
        tell(f"left out {ephemeral:,} ephemeral value{'s' * (ephemeral != 1)}")
    if not (values or foreign.count or arguments.start or arguments.end):
        return tell_nothing(arguments.path)
    if arguments.foreign_keys:
        return OK
    return tell_foreign(foreign, "left out", allowed=arguments.allow_foreign_keys)


def _rows(
    page: ScanPage | StatPage, output: Format
) -> Iterator[tuple[Mapping[str, Any], str, bool]]:
    """Yield each row of a page as fields or as text, and whether it is ephemeral.

    A row has only the form that ``output`` needs, because the other one may take longer.
    """
    if isinstance(page, StatPage):
        for stat in page:
            yield plain_stat(stat), stat.path, stat.ephemeral
        return
    for path, value, stat in page:
        if output == "json":
            yield with_value(stat, value), "", stat.ephemeral
        elif output == "jsonl":
            yield {}, json_line(stat, value), stat.ephemeral
        else:
            yield {}, f"{path}\t{one_line(value)}", stat.ephemeral


def _count(arguments: argparse.Namespace) -> int:
    paths: list[str] = arguments.paths
    check_paths(paths, root=True)
    foreign = ForeignKeys()
    counts = []
    codes = [OK]
    with open_named(arguments, create=False) as store:
        for path in paths:
            values, left_out = 0, foreign.count
            for page in store.scan_pages(path, revision=arguments.revision, values=False):
                values += len(page)
                foreign.add(page.foreign)
            counts.append((path, values))
            if not values and foreign.count == left_out:
                codes.append(tell_nothing(path))
    if len(paths) == 1:
        ((path, values),) = counts
        if arguments.output == "table":
            write(f"{values}\n".encode())
        else:
            write_json({"path": path, "count": values}, arguments.output)
    else:
        rows = (({"path": path, "count": n}, f"{path}\t{n}") for path, n in counts)
        write_rows(rows, arguments.output)
    codes.append(tell_foreign(foreign, "did not count", allowed=arguments.allow_foreign_keys))
    return worst(codes)


def get_trees(arguments: argparse.Namespace) -> int:
    """Run ``get --prefix``: write the values at and below paths, in the byte order of paths."""
    check_paths(arguments.paths, root=True)
    foreign = ForeignKeys()

    def rows(store: MetadataStore) -> Generator[tuple[Mapping[str, Any], str]]:
        for path in arguments.paths:
            with closing(
                store.scan_pages(path, revision=arguments.revision, values=not arguments.keys_only)
            ) as pages:
                there = 0
                for page in pages:
                    foreign.add(page.foreign)
                    there += len(page) + len(page.foreign)
                    yield from (row[:2] for row in _rows(page, arguments.output))
                if not there:
                    codes.append(tell_nothing(path))

    codes = [OK]
    with open_named(arguments, create=False) as store, closing(rows(store)) as found:
        write_rows(islice(found, arguments.limit), arguments.output)
    codes.append(tell_foreign(foreign, "left out", allowed=arguments.allow_foreign_keys))
    return worst(codes)


def _removed(store: MetadataStore, path: str) -> int:
    try:
        return store.delete_recursive(path).result()
    except KeyboardInterrupt:  # or SIGTERM
        tell(f"interrupted: a part of {path!r} may be removed; count shows what is left")
        raise


def delete_trees(arguments: argparse.Namespace) -> int:
    """Run ``delete -r``: remove the values at and below paths, and print how many there were.

    With ``--dry-run``, print how many there are, and remove none.
    """
    if arguments.expected_version is not None or arguments.expected_revision is not None:
        raise InputError("delete -r takes no --expected-version and no --expected-revision")
    check_paths(arguments.paths, root=True)
    codes = [OK]
    with open_named(arguments, create=False) as store:
        for path in arguments.paths:
            removed = None if arguments.dry_run else _removed(store, path)
            left, kept = 0, ForeignKeys()
            for page in store.scan_pages(path, values=False):
                left += len(page)
                kept.add(page.foreign)
            if not (removed or left or kept.count):
                tell_nothing(path)
            number, what = (left, "would_delete") if removed is None else (removed, "deleted")
            if arguments.output == "table":
                write(f"{path}\t{number}\n".encode())
            else:
                write_json({"path": path, what: number}, arguments.output)
            codes.append(tell_foreign(kept, "kept", allowed=arguments.allow_foreign_keys))
    if arguments.dry_run:
        tell("nothing was removed (--dry-run); scan --no-values lists the paths")
    return worst(codes)


def delete_foreign(arguments: argparse.Namespace) -> int:
    """Run ``delete --foreign-keys``: remove keys by the names that ``scan`` gives them.

    With ``--dry-run``, print the names of those that are there, and remove none.
    """
    expected = (arguments.expected_version, arguments.expected_revision)
    if arguments.recursive or expected != (None, None):
        raise InputError("delete --foreign-keys takes no -r and no expected version or revision")
    keys = [_key(name) for name in arguments.paths]
    backends: list[Backend] = []

    def seen(backend: Backend) -> Backend:
        backends.append(backend)
        return backend

    codes = [OK]
    with open_named(arguments, create=False, wrap=seen):
        scans = backends[0].scans
        if not isinstance(scans, ForeignRemoval):
            raise UnsupportedError("foreign keys of this store are deleted with its own tools only")
        for key in keys:
            try:
                scans.delete_foreign(key, arguments.timeout, dry_run=arguments.dry_run)
            except MetadataStoreError as error:
                tell(str(error))
                codes.append(exit_code(error))
                continue
            if arguments.output != "table":
                what = "would_delete" if arguments.dry_run else "deleted"
                write_json({**_fields(key), what: True}, arguments.output)
            elif arguments.dry_run:
                write(f"{printable(key)}\n".encode())
    if arguments.dry_run:
        tell("nothing was removed (--dry-run)")
    return worst(codes)


def _key(name: str) -> bytes:
    key = key_named(os.fsencode(name))
    if path_of(key) is not None:
        raise InvalidPathError(
            f"{name!r} is a valid path: delete it without --foreign-keys. Put the name of a "
            "foreign key in quotes, as scan --foreign-keys writes it"
        )
    return key


def _fields(key: bytes) -> dict[str, Any]:
    return {"key": json_value(key), "name": printable(key)}

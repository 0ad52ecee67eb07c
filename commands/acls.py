"""The command ``acl``: shows and sets the access control lists of paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeAlias

from .. import GetChildren, MetadataStore
from ..ops.errors import MetadataStoreError, NotFoundError
from ..ops.exit_codes import exit_code
from .arguments import Add, check_paths, open_named
from .output import tell, worst, write_json, write_rows

__all__ = ["declare"]

#: What is written for a path: the fields of JSON, and a line.
_Row: TypeAlias = tuple[Mapping[str, Any], str]

# The requests at the same time.
_AT_ONCE: Final = 16


def declare(add: Add) -> None:
    """Declare the command."""
    acl = add("acl", _acl, "show or set the access control list of a path (ZooKeeper)")
    acl.add_argument("path", metavar="PATH", help="/ is the root of the store")
    acl.add_argument(
        "--set",
        metavar="ACL",
        help="open, creator-all, read-all, or entries as zkCli has them, with commas between them: "
        "auth::cdrwa,world:anyone:r",
    )
    acl.add_argument(
        "-r", "--recursive", action="store_true", help="the same for all paths below the path"
    )


def _acl(arguments: argparse.Namespace) -> int:
    top, new = arguments.path, arguments.set
    check_paths([top], root=True)
    failed: dict[str, MetadataStoreError] = {}

    def rows() -> Iterator[_Row]:
        store.get_acl(top)  # Its error ends the command before a walk.
        paths = _tree(store, top, failed) if arguments.recursive else [top]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            results = threads.map(partial(_one, store, new), paths)
            for path, found in zip(paths, results, strict=True):
                if not isinstance(found, MetadataStoreError):
                    yield found
                elif path == top:
                    raise found
                elif not isinstance(found, NotFoundError):  # which somebody has deleted
                    failed.setdefault(path, found)

    with open_named(arguments, create=False) as store:
        if arguments.recursive or arguments.output == "table":
            write_rows(rows(), arguments.output)
        else:
            ((fields, _),) = rows()
            write_json(fields, arguments.output)
    for error in failed.values():
        tell(str(error))
    return worst(map(exit_code, failed.values()))


def _tree(store: MetadataStore, top: str, failed: dict[str, MetadataStoreError]) -> list[str]:
    """Return a path and all paths below it, before new lists may forbid to list them."""
    paths, level = [top], [top]
    while level:
        outcomes = list(store.apply(map(GetChildren, level)))
        failed |= {found.op.path: found.error for found in outcomes if found.error is not None}
        level = [
            f"{found.op.path.rstrip('/')}/{name}"
            for found in outcomes
            if isinstance(found.result, list)
            for name in found.result
        ]
        paths += level
    return paths


def _one(store: MetadataStore, new: str | None, path: str) -> _Row | MetadataStoreError:
    """Show a list, or set it unless somebody else does so at the same time."""
    try:
        found = store.get_acl(path)
        if new is not None:
            version = store.set_acl(path, new, found.version)
            return {"path": path, "version": version}, f"{path}\tversion {version}"
    except MetadataStoreError as error:
        return error
    fields = {"path": path, "acl": found.entries, "version": found.version}
    return fields, f"{path}\t{','.join(found.entries)}"

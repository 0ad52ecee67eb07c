"""Arguments that several commands share, and the store that they name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from .. import ABSENT, BatchingConfig, MetadataStore, open_store, store_kind
from ..ops.paths import check_parent, check_path
from ..pipeline.arguments import add_output, add_timeouts
from ..pipeline.local_load import InputError
from .named_stores import find, settle
from .output import tell

__all__ = [
    "Add",
    "InputError",
    "Run",
    "add_common",
    "add_foreign",
    "add_revision",
    "check_paths",
    "expected_version",
    "open_named",
]

#: Runs a command and returns its exit code.
Run: TypeAlias = Callable[[argparse.Namespace], int]


class Add(Protocol):
    """Adds a command to the parser and returns its own parser."""

    def __call__(self, name: str, run: Run, about: str) -> argparse.ArgumentParser: ...


def open_named(
    arguments: argparse.Namespace,
    batching: BatchingConfig | None = None,
    *,
    create: bool = True,
    **options: Any,
) -> MetadataStore:
    """Open the store that the arguments or the environment name.

    Args:
        arguments: the arguments of the command.
        batching: the settings of its batches.
        create: whether opening may create a missing store.
        options: further arguments of :func:`batchkeeper.open_store`.

    Raises:
        InputError: no store is named.
        MetadataStoreError: as for :func:`batchkeeper.open_store`.
    """
    given = arguments.store
    if given is None:
        given = os.environ.get("BATCHKEEPER_STORE")
    if not given:
        raise InputError("no store given: pass --store URL, or set BATCHKEEPER_STORE")
    named = find(given, arguments.config)
    settle(arguments, named)
    named.warn()
    store = open_store(
        named.url,
        batching=batching,
        connect_timeout=arguments.connect_timeout,
        operation_timeout=arguments.timeout,
        session_timeout=getattr(arguments, "session_timeout", 30.0),
        username=named.username,
        password_file=named.password_file,
        sasl=named.sasl,
        sasl_service=named.sasl_service,
        acl=named.acl,
        create=create,
        **options,
    )
    if store_kind(named.url).in_process:
        tell(f"{named.url} lives in this process: its data is lost when the command ends")
    return store


def check_paths(paths: list[str], *, root: bool = False) -> None:
    """Check all paths of a command before it begins.

    Args:
        paths: the paths.
        root: whether ``/`` is a path for this command.

    Raises:
        InvalidPathError: one of them is invalid.
    """
    for path in paths:
        (check_parent if root else check_path)(path)


def add_common(command: argparse.ArgumentParser, *, verbose: bool = True) -> None:
    """Add the options that all commands on a store have.

    The parser of the whole command has them, too, so they may precede or follow a command. They
    have no defaults here, which would replace an option before the command.
    """
    common = command.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--store",
        metavar="URL|NAME",
        help="the store, or its name in the configuration file (default: $BATCHKEEPER_STORE)",
    )
    common.add_argument(
        "--config",
        metavar="FILE",
        help="the configuration file (default: $BATCHKEEPER_CONFIG, or "
        "~/.config/batchkeeper/config.toml)",
    )
    add_output(common)
    add_timeouts(common)
    if verbose:
        common.add_argument("-v", "--verbose", action="store_true", help="log to standard error")


def add_revision(command: argparse.ArgumentParser) -> None:
    """Add the option that reads an old revision."""
    command.add_argument(
        "--revision",
        type=int,
        metavar="N",
        help="read what the store held at this revision (etcd)",
    )


def add_foreign(command: argparse.ArgumentParser) -> None:
    """Add the option that permits keys that are not valid paths."""
    command.add_argument(
        "--allow-foreign-keys",
        action="store_true",
        help="exit with 0 even if keys are left out because they are not valid paths or may not be "
        "read; they are counted in any case",
    )


def expected_version(text: str) -> int:
    """Parse the argument of ``--expected-version``."""
    if text in {"absent", str(ABSENT)}:
        return ABSENT
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"neither a version nor 'absent': {text!r}")

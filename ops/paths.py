"""The path rule of all stores, which is ZooKeeper's.

Source of the rule: ZooKeeper's ``PathUtils.validatePath`` and the data model chapter of its
programmer's guide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .acceleration import accelerated
from .errors import InvalidPathError

__all__ = [
    "OWN",
    "all_reachable",
    "check_parent",
    "check_path",
    "check_stem",
    "children_of",
    "hidden",
    "own",
    "parent",
    "reachable",
]

#: The name under which this client keeps its own data, at the top of a store's prefix or chroot.
#: Callers cannot use it as any part of a path, because another store's top may lie below theirs.
#: Names that begin with it and a hyphen are reserved, too: the ZooKeeper client creates such nodes
#: only to delete them at once.
OWN = ".batchkeeper"

# ZooKeeper's own tree, at the root.
_ZOOKEEPER = "zookeeper"

_FORBIDDEN = "\u0000-\u001f\u007f-\u009f\ud800-\uf8ff\ufff0-\U0010ffff"
# All other characters but the slash. Searching for allowed characters takes two thirds of the time.
_ALLOWED = " -.0-~\u00a0-\ud7ff\uf900-\uffef"
# One pattern decides the common case in a single pass; only after it fails does `_reason` look for
# the reason. It has neither possessive quantifiers nor atomic groups: before 3.11.5, Python matches
# wrongly with them (CPython #106052), and they are no faster.
_ONE = re.compile(
    rf"(?!/zookeeper(?:/|\Z))(?:/(?!\.(?:\.|batchkeeper)?(?:/|\Z)|\.batchkeeper-)[{_ALLOWED}]+)+",
)
_BAD_CHARACTER = f"[{_FORBIDDEN}]"  # Compiled when used, as is the next: sets this large are slow.

# For checking many paths at once, each on a line of its own.
_CHARACTERS = f"[\n/{_ALLOWED}]*"
_RESERVED = re.compile(r"/\.(?:\.|batchkeeper)?[/\n]|/\.batchkeeper-|\n/zookeeper[/\n]")

_match = _ONE.fullmatch


@accelerated
def check_path(path: str) -> str:
    """Return ``path`` if it can hold a value.

    A path is absolute, one ``/`` separates its parts, no part is ``.`` or ``..``, it does not end
    with ``/``, and it has no character that ZooKeeper refuses (control characters, surrogates, the
    private use area, U+FFF0 to U+FFFF and everything above). The root holds no value.
    ``/zookeeper``, parts named :data:`OWN` and those that begin with it and a hyphen are reserved.

    Raises:
        InvalidPathError: the path breaks the rule. The message says how.
    """
    if isinstance(path, str) and _match(path):
        return path
    raise InvalidPathError(_reason(path), path=path if isinstance(path, str) else None)


def check_stem(path: str) -> str:
    """Return ``path`` if a sequential put may append a number to it.

    It may also end with ``/``: the number is then the whole name.

    Raises:
        InvalidPathError: the path breaks the rule. The message says how.
    """
    if isinstance(path, str) and path.endswith("/"):
        check_path(path + "0")
        return path
    return check_path(path)


def check_parent(path: str) -> str:
    """Return ``path`` if its children can be listed: any valid path, and ``/``.

    Raises:
        InvalidPathError: the path breaks the rule. The message says how.
    """
    return path if path == "/" else check_path(path)


def reachable(path: str) -> bool:
    """Say whether callers can reach a path: whether ``check_path`` would return it."""
    return _match(path) is not None


def all_reachable(paths: Sequence[str]) -> bool:
    """Say whether callers can reach all of the paths, in a third of the time of single checks."""
    lines = "\n".join(["", *paths, ""]) if paths else "\n"
    # These are searches for fixed strings, and one pass over the characters. A single pattern for
    # all lines would need a kilobyte of stack for each.
    return (
        lines.count("\n") == len(paths) + 1
        and lines.count("\n/") == len(paths)
        and "/\n" not in lines
        and "//" not in lines
        and not (("/." in lines or "\n/zookeeper" in lines) and _RESERVED.search(lines))
        and re.fullmatch(_CHARACTERS, lines) is not None
    )


def hidden(path: str, name: str) -> bool:
    """Say whether a name below ``path`` is hidden from callers."""
    return own(path, name) or (name == _ZOOKEEPER and path == "/")


def own(path: str, name: str) -> bool:
    """Say whether a name below ``path`` belongs to this client's own data.

    That does not depend on ``path``. It is a parameter because a walk takes either this function or
    :func:`hidden`.
    """
    return name == OWN


def children_of(path: str, names: Sequence[str]) -> list[str]:
    """Return the names below ``path`` that form valid paths."""
    stem = path if path == "/" else path + "/"
    paths = [stem + name for name in names]
    if all_reachable(paths):
        return [*names]
    return [name for name, path in zip(names, paths, strict=True) if reachable(path)]


def parent(path: str) -> str:
    """Return the path above ``path``; ``/`` for a path at the top."""
    return path[: path.rindex("/")] or "/"


def _reason(path: object) -> str:
    if not isinstance(path, str):
        return f"a path must be a str, not {type(path).__name__}: {path!r}"
    if not path.startswith("/"):
        return f"a path must start with '/': {path!r}"
    if path == "/":
        return "the root '/' holds no value; only its children can be listed"
    if path.endswith("/"):
        return f"a path must not end in '/': {path!r}"
    if "//" in path:
        return f"a path must not have an empty part ('//'): {path!r}"
    if bad := re.search(_BAD_CHARACTER, path):
        return (
            f"a path must not have the character U+{ord(bad[0]):04X} (at {bad.start()}): {path!r}"
        )
    parts = path.split("/")
    if "." in parts or ".." in parts:
        return f"a path must not have a part '.' or '..': {path!r}"
    for part in parts:
        if part == OWN or part.startswith(f"{OWN}-"):
            return f"the name {part!r} is reserved: {path!r}"
    return f"paths below '/{parts[1]}' are reserved: {path!r}"

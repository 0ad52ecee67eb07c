"""Access control lists (ACLs), in the syntax of ZooKeeper's command line and as bytes.

An entry is ``scheme:id:permissions``, such as ``world:anyone:r`` or ``digest:hub:HASH:cdrwa``. The
permissions are (c)reate, (d)elete, (r)ead, (w)rite and (a)dmin. The scheme ``auth``, with any id,
stands for the logins of the client that makes the list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final

from ....ops.errors import InvalidSettingError
from .jute import Right, acl, length, version_field

__all__ = [
    "acl_request",
    "format_acl",
    "needs_login",
    "parse_acl",
    "read_acl",
    "read_acl_version",
]

_int = Struct("!i")
_two = Struct("!ii")
# What precedes the version of the list in a Stat, and what follows it.
_stat = Struct("!40xi24x")

# ZooDefs.Perms, in the order of the command line.
_PERMISSIONS: Final = {"c": 4, "d": 8, "r": 1, "w": 2, "a": 16}
_ENTRY: Final = re.compile(r"([a-z0-9_-]+):(.*):([cdrwa]+)")
# In a text with several. An id may contain commas and colons: a certificate's name, an address.
_SEVERAL: Final = re.compile(r"([a-z0-9_-]+:.*?:[cdrwa]+)(?:,|$)")
# The server takes any text for a hash. A password in its place would keep everybody out.
_DIGEST: Final = re.compile(r"[^:]+:[A-Za-z0-9+/]{27,}={0,2}")

_NAMED: Final = {
    "open": ("world:anyone:cdrwa",),
    "creator-all": ("auth::cdrwa",),
    "read-all": ("auth::cdrwa", "world:anyone:r"),
}


def parse_acl(given: str | Sequence[str]) -> tuple[Right, ...]:
    """Parse a name, an entry, or several: in a sequence, or in a text with commas between them.

    Raises:
        InvalidSettingError: it is no list, or an entry is invalid. The message repeats no hash.
    """
    entries: Sequence[str] = ()
    if isinstance(given, str):
        given = "creator-all" if given == "creator" else given  # its earlier name
        entries = _NAMED.get(given) or _SEVERAL.findall(given)
        if given not in _NAMED and ",".join(entries) != given:
            entries = [given]  # which is then refused
    elif isinstance(given, Sequence) and all(isinstance(entry, str) for entry in given):
        entries = given
    if not entries:
        raise InvalidSettingError(
            f"acl must be one of {', '.join(_NAMED)}, or entries such as 'world:anyone:r', "
            f"not {given!r:.80}"
        )
    return tuple(map(_right, entries))


def _right(entry: str) -> Right:
    found = _ENTRY.fullmatch(entry)
    scheme = entry.partition(":")[0]
    shown = f"{scheme}:..." if scheme == "digest" else entry
    if found is None:
        raise InvalidSettingError(
            f"acl must be one of {', '.join(_NAMED)}, or have entries of the form "
            f"scheme:id:permissions, with permissions from 'cdrwa'; not {shown!r:.80}"
        )
    _, name, permissions = found.groups()
    if scheme == "digest" and not _DIGEST.fullmatch(name):
        raise InvalidSettingError(
            "an entry of the scheme 'digest' in acl must be digest:user:HASH:permissions, and HASH "
            "the base64 of the SHA-1 of 'user:password' (kazoo.security.make_digest_acl_credential)"
        )
    return Right(sum(_PERMISSIONS[letter] for letter in set(permissions)), scheme, name)


def format_acl(rights: Sequence[Right]) -> tuple[str, ...]:
    """Return the entries that :func:`parse_acl` takes."""
    return tuple(
        f"{right.scheme}:{right.name}:"
        + "".join(letter for letter, bit in _PERMISSIONS.items() if right.permissions & bit)
        for right in rights
    )


def needs_login(rights: Sequence[Right]) -> bool:
    """Say whether the list names the client's own login."""
    return any(right.scheme == "auth" for right in rights)


def acl_request(path: bytes, rights: Sequence[Right] | None = None, version: int = -1) -> bytes:
    """Return the body of a getACL, or, with a list, of a setACL that expects a version of it."""
    head = length(len(path)) + path
    return head if rights is None else head + acl(rights)[:-4] + version_field(version)


def read_acl(buffer: bytes, offset: int) -> tuple[tuple[Right, ...], int]:
    """Read the answer to a getACL: the list, and its version."""
    (count,) = _int.unpack_from(buffer, offset)
    offset += _int.size
    rights = []
    for _ in range(count):
        permissions, number = _two.unpack_from(buffer, offset)
        scheme, offset = _text(buffer, offset + _two.size, number)
        (number,) = _int.unpack_from(buffer, offset)
        name, offset = _text(buffer, offset + _int.size, number)
        rights.append(Right(permissions, scheme, name))
    return tuple(rights), read_acl_version(buffer, offset)[0]


def read_acl_version(buffer: bytes, offset: int) -> list[int]:
    """Read a stat, which is all of the answer to a setACL: the version of the list."""
    if len(buffer) != offset + _stat.size:
        raise ValueError(f"{len(buffer) - offset} bytes of a stat")
    return [_stat.unpack_from(buffer, offset)[0]]


def _text(buffer: bytes, offset: int, size: int) -> tuple[str, int]:
    end = offset + max(size, 0)
    return buffer[offset:end].decode(), end

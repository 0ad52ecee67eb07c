"""Versions of values, which are never reused for a key that was deleted."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from ..errors import IllegalOperationError

__all__ = ["Version", "check_version"]


class _Version(NamedTuple):
    life: int
    number: int


class Version(_Version):
    """The version of a key's value.

    Versions come from a table, and can only be compared for equality. A key that is removed and put
    again never gets one of its old versions.

    Attributes:
        NEW: as the version of a put: the key must not exist.
        ANY: as the version of a put or a removal: the key must exist, at any version.
    """

    __slots__ = ()
    NEW: ClassVar[Version]
    ANY: ClassVar[Version]

    def __repr__(self) -> str:
        return _NAMES.get(self, f"Version({self.life}, {self.number})")


Version.NEW = Version(-1, -1)
Version.ANY = Version(-1, -2)
_NAMES: Final = {Version.NEW: "Version.NEW", Version.ANY: "Version.ANY"}


def check_version(version: object) -> Version:
    """Return a version.

    Raises:
        IllegalOperationError: it is not a version.
    """
    if not (isinstance(version, Version) and type(version[0]) is type(version[1]) is int):
        raise IllegalOperationError(
            f"a version must be Version.NEW, Version.ANY or one that came from the table, not "
            f"{version!r:.80}"
        )
    return version

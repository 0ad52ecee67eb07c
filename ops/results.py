"""What a store answers."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .errors import MetadataStoreError
from .operations import Operation

__all__ = ["GetResult", "Outcome", "Result", "Stat"]


# Named tuples, because one is made for every operation: a frozen dataclass with seven fields
# takes four times as long to make.
class Stat(NamedTuple):
    """What a store knows of a path beside its value.

    ``version`` is 0 after the creation and grows by one with every put of the path. ``revision``
    grows with every change of the path and serves as a fencing token (etcd's mod_revision,
    ZooKeeper's mzxid, a counter elsewhere); paths changed in one batch share it. ``created`` and
    ``modified`` are milliseconds since the epoch, ``None`` where the store keeps none (etcd).
    ``ephemeral`` says that the path ends with a session, ``owned`` that the session is ours.
    """

    path: str
    version: int
    revision: int
    created: int | None = None
    modified: int | None = None
    ephemeral: bool = False
    owned: bool = False


class GetResult(NamedTuple):
    """The value of a path, with its stat."""

    value: bytes
    stat: Stat


#: A put gives a Stat; a get a GetResult or None; a delete None; get_children a list; exists a bool.
Result: TypeAlias = Stat | GetResult | list[str] | bool | None


class Outcome(NamedTuple):
    """How one operation of a bulk call ended: ``result`` or ``error``, at most one of the two.

    ``op`` is what was given, the same object; ``result`` is what the operation's future would
    have held (``None`` is the result of a delete and of a get of a missing path).
    """

    op: Operation
    result: Result = None
    error: MetadataStoreError | None = None

    @property
    def ok(self) -> bool:
        """Whether the operation ended without an error."""
        return self.error is None

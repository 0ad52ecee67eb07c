"""Draws the operations of one caller, and knows what each of them must answer.

Each caller (a thread, a task, in each process) has keys of its own, and a store keeps the order of
the operations on one path. So the state of a key after an operation is known when the operation is
submitted, however many are under way. Every answer is compared with it, but for the lists of
children, which have no order against the writes below them. Afterwards the caller knows what the
store must hold.

An operation that ends with an error that it should not have leaves its key unsure. The key is then
replaced by a new one, and nothing about it is checked any more.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Any, Final, NamedTuple, TypeAlias

from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    NotFoundError,
    TransactionRefusedError,
)
from ...ops.operations import ABSENT, Check, Put
from ..workload import WrongAnswerError, put_value
from .mixes import KINDS, Keys, Mix

GET, PUT, UPDATE, CREATE, DELETE, CHILDREN, TRANSACTION, EPHEMERAL = range(len(KINDS))

_SCRIPT: Final = 1 << 16
#: The ephemeral values of a caller that come and go: one for so many keys, and no fewer than that.
#: With few of them, most operations on one would wait for an earlier one.
_KEYS_OF_ONE: Final = 8
_EPHEMERALS: Final = 16
_next_number: Final = count(1).__next__
# Drawing by weights takes long, so this many draws are made before the measurement and used again
# from the start. Four for each key, or the tail would never be drawn.
_FEWEST_DRAWS = 1 << 16
_MOST_DRAWS = 1 << 20
#: The errors of an operation whose expectation does not hold.
_REFUSALS: Final = (BadVersionError, NotFoundError, TransactionRefusedError)
# A wrong version: no key of a measurement is put so often.
_NEVER: Final = 2_000_000_000


class Expected(NamedTuple):
    """The expected contents of a path: ``value`` at ``version``, or nothing for ``None``."""

    path: str
    value: bytes | None
    version: int


class Key:
    """A key as it is once all operations submitted so far have ended."""

    __slots__ = ("path", "under_way", "unsure", "value", "version")

    def __init__(self, path: str) -> None:
        self.path = path
        self.under_way = 0  # operations submitted and not ended
        self.value: bytes | None = None
        self.version = ABSENT
        self.unsure = False


class Pending:
    """An operation under way.

    Attributes:
        kind: its kind, as an index of ``KINDS``.
        key: its key; the first of a transaction's.
        keys: the keys of a transaction, the checked one first.
        before: the value and the version of each key before it.
        wanted: what it must answer: a version, ``Expected`` for a get, ``None`` for a delete.
        refused: whether it carries a wrong version, and must be refused.
        begun: the time from which its latency counts, in nanoseconds.
        number: grows with each operation of the process.
    """

    __slots__ = ("before", "begun", "key", "keys", "kind", "number", "refused", "wanted")

    def __init__(self, kind: int, key: Key) -> None:
        self.kind = kind
        self.key = key
        self.keys: Sequence[Key] = (key,)
        self.before: Sequence[tuple[bytes | None, int]] = ((key.value, key.version),)
        self.wanted: Any = None
        self.refused = False
        self.begun = 0
        self.number = _next_number()

    @property
    def reading(self) -> bool:
        """Whether it only reads."""
        return self.kind in (GET, CHILDREN)


#: An operation, and the call that submits it.
Drawn: TypeAlias = tuple[Pending, Callable[..., Any], tuple[Any, ...]]


class Work:
    """The operations of one caller.

    Args:
        mix: the mix.
        root: the folder of this caller's keys.
        keys: the number of keys that exist when the load begins.
        seed: the seed of all random choices of this caller.

    Attributes:
        conflicts: operations that were refused, as they had to be.
        errors: other errors, by class name.
        checked: the answers that were compared.
        unsure: keys of which nothing can be said, because an operation on them has failed.
        used_ephemerals: whether some operations are about ephemeral values.
    """

    def __init__(self, mix: Mix, root: str, keys: int, seed: int) -> None:
        dice = random.Random(seed)
        self._mix = mix
        self._root = root
        self._random = dice.random
        self._made = 0
        self._keys = [Key(self._new_path()) for _ in range(keys)]
        self._created: list[Key] = []
        ephemerals = max(_EPHEMERALS, keys // _KEYS_OF_ONE)
        self._ephemerals = [Key(f"{root}/hubs/{number}") for number in range(ephemerals)]
        self._pick = picker(mix.keys, keys, dice) if keys else None
        self._script = _script(tuple(mix.operations.get(kind, 0.0) for kind in KINDS))
        self._at = int(dice.random() * _SCRIPT) - 1
        self._conflicts = mix.conflicts
        self._values = 0
        self._make_value = self._fixed if not mix.values.records else self._recorded
        self._dice = dice
        self._draws = [getattr(self, f"_draw_{kind}") for kind in KINDS]
        self.used_ephemerals = mix.operations.get("ephemeral", 0.0) > 0
        self.conflicts = 0
        self.errors: Counter[str] = Counter()
        self.checked = 0
        self.unsure = 0

    def first_puts(self) -> Iterator[Put]:
        """Yield the puts that make the keys. They must all succeed before the load begins."""
        for key in self._keys:
            key.value, key.version = self._make_value(), 0
            yield Put(key.path, key.value)

    def draw(self, store: Any) -> Drawn:
        """Draw the next operation: what it must answer, and the call that submits it to a store.

        The call has to be made before the next draw, and the outcome has to be given to ``ended``;
        to ``undo`` instead if the operation was never sent.
        """
        at = self._at = self._at + 1 if self._at + 1 < _SCRIPT else 0
        drawn: Drawn = self._draws[self._script[at]](store)
        return drawn

    def _draw_get(self, store: Any) -> Drawn:
        key = self._any_key()
        pending = Pending(GET, key)
        pending.wanted = Expected(key.path, key.value, key.version)
        return pending, store.get, (key.path,)

    def _draw_put(self, store: Any) -> Drawn:
        key = self._any_key()
        # Some peers have another call where the key is missing.
        call = store.put if key.version != ABSENT else getattr(store, "put_new", store.put)
        pending = Pending(PUT, key)
        return pending, call, self._put(pending, None)

    def _draw_update(self, store: Any, key: Key | None = None) -> Drawn:
        key = key or self._any_key()
        pending = Pending(UPDATE, key)
        if self._conflicting(pending):
            return pending, store.put, (key.path, self._make_value(), _NEVER)
        return pending, store.put, self._put(pending, key.version)

    def _draw_create(self, store: Any) -> Drawn:
        key = Key(self._new_path())
        self._created.append(key)
        pending = Pending(CREATE, key)
        return pending, store.put, self._put(pending, ABSENT)

    def _draw_delete(self, store: Any) -> Drawn:
        key = self._any_key()
        if key.version == ABSENT:
            return self._draw_update(store, key)
        pending = Pending(DELETE, key)
        if self._conflicting(pending):
            return pending, store.delete, (key.path, _NEVER)
        return pending, store.delete, self._delete(key)

    def _draw_children(self, store: Any) -> Drawn:
        key = self._any_key()
        return Pending(CHILDREN, key), store.get_children, (key.path[: key.path.rindex("/")],)

    def _conflicting(self, pending: Pending) -> bool:
        """Return whether an operation carries a wrong version."""
        pending.refused = self._conflicts > 0 and self._random() < self._conflicts
        return pending.refused

    def _put(self, pending: Pending, expected: int | None) -> tuple[str, bytes, int | None]:
        key = pending.key
        value = key.value = self._make_value()
        pending.wanted = key.version = key.version + 1
        return key.path, value, expected

    def _delete(self, key: Key) -> tuple[str, int]:
        version = key.version
        key.value, key.version = None, ABSENT
        return key.path, version

    def _any_key(self) -> Key:
        assert self._pick is not None  # Only mixes with keys have operations that need one.
        return self._sure(self._keys, self._pick())

    def _sure(self, keys: list[Key], number: int) -> Key:
        key = keys[number]
        if key.unsure:
            key = keys[number] = Key(self._new_path())
        return key

    def _draw_ephemeral(self, store: Any) -> Drawn:
        key = self._sure(self._ephemerals, int(self._random() * len(self._ephemerals)))
        pending = Pending(EPHEMERAL, key)
        if key.version == ABSENT:
            return pending, partial(store.put, ephemeral=True), self._put(pending, ABSENT)
        return pending, store.delete, self._delete(key)

    def _draw_transaction(self, store: Any) -> Drawn:
        # The others lie beside the first: different keys, without drawing again and again.
        all_keys = self._keys
        assert self._pick is not None
        number = self._pick()
        size = min(self._mix.transaction_size, len(all_keys) - 1)
        keys = [self._sure(all_keys, (number + step) % len(all_keys)) for step in range(size + 1)]
        pending = Pending(TRANSACTION, keys[0])
        pending.keys = keys
        pending.before = [(key.value, key.version) for key in keys]
        checked, *written = keys
        if self._conflicting(pending):
            refused: list[Any] = [Put(key.path, b"refused") for key in written]
            return pending, store.transaction, ([Check(checked.path, _NEVER), *refused],)
        operations: list[Any] = [Check(checked.path, checked.version)]
        for key in written:
            expected = key.version
            key.value = self._make_value()
            key.version += 1
            operations.append(Put(key.path, key.value, expected))
        pending.wanted = [key.version for key in written]
        return pending, store.transaction, (operations,)

    def undo(self, pending: Pending) -> None:
        """Take back the last write of its keys, which was never sent."""
        if pending.reading or pending.refused:
            return
        for key, before in zip(pending.keys, pending.before, strict=True):
            key.value, key.version = before

    def ended(self, pending: Pending, error: BaseException | None, result: Any) -> None:
        """Compare an answer with what it must be.

        Raises:
            WrongAnswerError: it contradicts an acknowledged write.
            BaseException: ``error``, if it is not a store's error.
        """
        if error is not None:
            self._failed(pending, error)
            return
        if pending.refused:
            raise WrongAnswerError(f"accepted with a wrong version: {pending.key.path}")
        if pending.key.unsure or pending.kind == CHILDREN:
            return
        self.checked += 1
        wanted = pending.wanted
        if pending.kind == GET:
            check(wanted, result)
        elif pending.kind == TRANSACTION:
            if any(key.unsure for key in pending.keys):
                return
            for key, version, stat in zip(pending.keys[1:], wanted, result[1:], strict=True):
                _check_version(key.path, stat.version, version)
        elif wanted is not None and result.version != wanted:
            _check_version(pending.key.path, result.version, wanted)

    def _failed(self, pending: Pending, error: BaseException) -> None:
        if not isinstance(error, MetadataStoreError):
            raise error
        if isinstance(error, _REFUSALS):
            if pending.refused:
                self.conflicts += 1
                self.checked += 1
                return
            if not any(key.unsure for key in pending.keys):
                raise WrongAnswerError(
                    f"refused although its version is right ({error}): {pending.key.path}"
                )
        self.errors[type(error).__name__] += 1
        if pending.reading:
            return
        for key in pending.keys:
            self.unsure += not key.unsure
            key.unsure = True

    def expected(self) -> Iterator[Expected]:
        """Yield what the store must hold, once nothing is under way."""
        for keys in (self._keys, self._created):
            for key in keys:
                if not key.unsure:
                    yield Expected(key.path, key.value, key.version)

    def vanished(self) -> Iterator[Expected]:
        """Yield the ephemeral keys, which must be gone once the store was closed."""
        for key in self._ephemerals:
            yield Expected(key.path, None, ABSENT)

    def _new_path(self) -> str:
        number = self._made
        self._made += 1
        return f"{self._root}/{number // self._mix.keys.folder}/{number}"

    def _fixed(self) -> bytes:
        self._values += 1
        return put_value(self._values, self._mix.values.bytes)

    def _recorded(self) -> bytes:
        self._values += 1
        record = self._dice.choice(self._mix.values.records)
        start = b"%d " % self._values
        return start[: len(record)] + record[len(start) :]


def check(expected: Expected, found: Any) -> None:
    """Compare the expected contents of a path with the result of a get.

    Raises:
        WrongAnswerError: they differ. The message names the path.
    """
    path, value, version = expected
    if value is None:
        if found is not None:
            raise WrongAnswerError(f"deleted, but still at version {found.stat.version}: {path}")
        return
    if found is None:
        raise WrongAnswerError(f"acknowledged at version {version}, but missing: {path}")
    _check_version(path, found.stat.version, version)
    if found.value != value:
        raise WrongAnswerError(f"acknowledged {value!r:.60}, but holds {found.value!r:.60}: {path}")


def _check_version(path: str, found: int | None, expected: int) -> None:
    # A peer may not learn a version.
    if found is not None and found != expected:
        raise WrongAnswerError(f"version {found} instead of {expected}: {path}")


@lru_cache(maxsize=1)
def _script(shares: tuple[float, ...]) -> bytes:
    """Draw the kinds of operations. All callers share them, and begin at different places."""
    kinds, weights = range(len(KINDS)), list(accumulate(shares))
    return bytes(random.Random(1).choices(kinds, cum_weights=weights, k=_SCRIPT))


def picker(keys: Keys, count: int, dice: random.Random) -> Callable[[], int]:
    """Return a function that draws the number of a key, from 0 to ``count - 1``.

    Args:
        keys: the distribution.
        count: the number of keys of this caller; at least 1.
        dice: the source of randomness; the same seed gives the same draws.
    """
    draw = dice.random
    if keys.distribution == "zipf":
        weights = list(accumulate((rank + 1) ** -keys.skew for rank in range(count)))
        # The most used keys lie in different folders.
        ranks = list(range(count))
        dice.shuffle(ranks)
        draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, 4 * count))
        return _again(array("l", dice.choices(ranks, cum_weights=weights, k=draws)))
    if keys.distribution == "hot":
        hot, share = min(keys.hot_keys, count), keys.hot_share
        return lambda: int(draw() * (hot if draw() < share else count))
    return lambda: int(draw() * count)


def _again(numbers: array[int]) -> Callable[[], int]:
    at, last = -1, len(numbers) - 1

    def pick() -> int:
        nonlocal at
        at = at + 1 if at < last else 0
        return numbers[at]

    return pick

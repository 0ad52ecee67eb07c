"""The workload of the benchmark: a hub's work on its topics, and plain puts.

A *chain* has one operation under way at a time: it submits an operation, learns its outcome, and
submits the next. A hub has a number of chains. Each chain has its own topics, and works on one of
them at a time:

- It claims the topic: a put of the owner, which requires that there is none.
- It then takes steps as weighted by the mix. It advances the topic's consume mark, by a put that
  requires the version from the previous put. Or it reads the owner or the mark. Or a rival tries
  the same claim and must fail.
- It drops the ownership, by a delete of the version that it holds, and turns to its next topic.
  The mark stays, and continues when the chain returns to the topic.

The seed, the number of the chain and the answers alone determine the chain's operations. So two
runs do the same work, as far as each gets. Chains check every answer as it arrives, and afterwards
know the contents that the store must have.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ..batching import MetadataStore
from ..ops.errors import BadVersionError, InvalidSettingError
from ..ops.operations import ABSENT

__all__ = [
    "DEFAULT_MIX",
    "STEPS",
    "Expected",
    "HubChain",
    "PutChain",
    "Chain",
    "Workload",
    "WrongAnswerError",
    "check",
    "hub_chains",
    "make_script",
    "put_path",
    "put_chains",
    "put_value",
]

Step: TypeAlias = str

ADVANCE: Final = 0
OWNER: Final = 1
MARK: Final = 2
RIVAL: Final = 3
DROP: Final = 4
CLAIM: Final = 5

#: The steps of a mix, by their numbers in a script. Each drop is followed by a claim.
STEPS: Final[tuple[Step, ...]] = ("advance", "owner", "mark", "rival", "drop")

#: A hub mostly acknowledges messages. An ownership lasts for about ten operations.
DEFAULT_MIX: Final[Mapping[Step, float]] = {
    "advance": 50,
    "owner": 20,
    "mark": 20,
    "rival": 0,
    "drop": 10,
}

_SCRIPT_STEPS: Final = 1 << 16
# A prime, so that the chains start at unrelated places of the script.
_STRIDE: Final = 7919
# The paths of one folder: a large folder is slow to list, and no hub would keep all topics in one.
_FOLDER: Final = 64


class WrongAnswerError(Exception):
    """An answer of a store contradicts an acknowledged write. The message names the path."""


class Expected(NamedTuple):
    """The expected contents of a path: ``value`` at ``version``, or nothing for ``None``."""

    path: str
    value: bytes | None
    version: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The parameters of the work.

    Attributes:
        hubs: the number of hubs at work at the same time.
        outstanding: the number of operations that each hub has under way.
        topics: the number of topics of all hubs together.
        value_bytes: the size of each value.
        mix: the weights of the steps after a claim; see :data:`STEPS`.
        seed: the seed of all random choices.

    Raises:
        InvalidSettingError: a value is out of its range. The message has the value and the range.
    """

    hubs: int = 16
    outstanding: int = 128
    topics: int = 4096
    value_bytes: int = 100
    mix: Mapping[Step, float] = field(default_factory=lambda: DEFAULT_MIX)
    seed: int = 1

    def __post_init__(self) -> None:
        for name, highest in (
            ("hubs", 10_000),
            ("outstanding", 100_000),
            ("topics", 10_000_000),
            ("value_bytes", 1 << 20),
        ):
            value = getattr(self, name)
            if not 1 <= value <= highest:
                raise InvalidSettingError(f"{name} must be an int from 1 to {highest}, not {value}")
        if self.topics < self.chains:
            raise InvalidSettingError(
                f"topics must be at least hubs times outstanding ({self.chains}), not "
                f"{self.topics}: each chain under way needs its own topic"
            )
        for step, weight in self.mix.items():
            if step not in STEPS:
                raise InvalidSettingError(
                    f"the mix has no step {step!r} (known: {', '.join(STEPS)})"
                )
            if not 0 <= weight < float("inf"):
                raise InvalidSettingError(f"a weight in the mix must be 0 or more: {step}={weight}")
        if not any(self.mix.values()):
            raise InvalidSettingError("the mix must have at least one step with a weight above 0")

    @property
    def chains(self) -> int:
        """The number of chains, and so of operations under way, of all hubs together."""
        return self.hubs * self.outstanding


class Chain(Protocol):
    """A sequence of operations, with one under way at a time."""

    reading: bool  # whether the operation under way is a read

    def submit(self, store: MetadataStore) -> Future[Any]:
        """Submit the next operation."""

    def ended(self, future: Future[Any]) -> None:
        """Take the outcome of the operation from its future, which is done.

        Raises:
            WrongAnswerError: the outcome contradicts an acknowledged write.
            MetadataStoreError: the error of the operation.
        """

    def expected(self) -> Iterator[Expected]:
        """Yield the expected contents of the store. Call it only if no operation is under way."""


def make_script(workload: Workload) -> bytes:
    """Draw the steps of chains after a claim, as indexes of :data:`STEPS`."""
    return _draw(workload.seed, tuple(workload.mix.get(step, 0.0) for step in STEPS))


# Drawing takes as long as a short measurement, and all measurements of a run draw the same steps.
@lru_cache(maxsize=1)
def _draw(seed: int, weights: tuple[float, ...]) -> bytes:
    dice = random.Random(seed)
    return bytes(dice.choices(range(len(STEPS)), weights, k=_SCRIPT_STEPS))


def hub_chains(workload: Workload, root: str) -> list[HubChain]:
    """Return new chains for all hubs, with their topics below ``root``."""
    script = make_script(workload)
    return [HubChain(workload, root, number, script) for number in range(workload.chains)]


def put_chains(workload: Workload, root: str) -> list[PutChain]:
    """Return the same number of chains of plain puts below ``root``."""
    return [PutChain(workload, root, number) for number in range(workload.chains)]


class _Topic:
    """The acknowledged owner and mark of a topic."""

    __slots__ = ("mark", "mark_path", "mark_version", "owner", "owner_path")

    def __init__(self, root: str, number: int) -> None:
        name = f"ns-{number // _FOLDER}/topic-{number}"
        self.owner_path = f"{root}/owners/{name}"
        self.mark_path = f"{root}/marks/{name}"
        self.owner: bytes | None = None  # always at version 0: an owner is never changed
        self.mark: bytes | None = None
        self.mark_version = ABSENT


class HubChain:
    """One chain of a hub. It works on its topics in turn, again and again."""

    __slots__ = ("_at", "_count", "_name", "_script", "_size", "_step", "_topics", "_turn",
                 "_value", "reading")  # fmt: skip

    def __init__(self, workload: Workload, root: str, number: int, script: bytes) -> None:
        numbers = range(number, workload.topics, workload.chains)
        self._topics = [_Topic(root, topic) for topic in numbers]
        self._turn = 0
        self._script = script
        self._at = number * _STRIDE % len(script)
        self._name = b"hub-%d/%d" % (number % workload.hubs, number)
        self._size = workload.value_bytes
        self._count = 0  # the number of values so far, which makes each value different
        self._step = DROP
        self._value = b""
        self.reading = False

    def submit(self, store: MetadataStore) -> Future[Any]:
        topic = self._topics[self._turn]
        if topic.owner is None:
            step = CLAIM
        else:
            at = self._at
            step = self._script[at]
            self._at = at + 1 if at + 1 < len(self._script) else 0
        self._step = step
        self.reading = False
        if step == ADVANCE:
            return store.put(topic.mark_path, self._new_value(), topic.mark_version)
        if step in (OWNER, MARK):
            self.reading = True
            return store.get(topic.owner_path if step == OWNER else topic.mark_path)
        if step == DROP:
            return store.delete(topic.owner_path, 0)
        return store.put(topic.owner_path, self._new_value(), ABSENT)

    def ended(self, future: Future[Any]) -> None:
        step = self._step
        topic = self._topics[self._turn]
        if step == RIVAL:
            if not isinstance(future.exception(), BadVersionError):
                future.result()
                raise WrongAnswerError(f"claimed twice: {topic.owner_path}")
            return
        result = future.result()
        if step == ADVANCE:
            version = topic.mark_version + 1
            if result.version != version:
                raise _wrong_version(topic.mark_path, result.version, version)
            topic.mark, topic.mark_version = self._value, version
        elif step == OWNER:
            check(Expected(topic.owner_path, topic.owner, 0), result)
        elif step == MARK:
            check(Expected(topic.mark_path, topic.mark, topic.mark_version), result)
        elif step == CLAIM:
            if result.version != 0:
                raise _wrong_version(topic.owner_path, result.version, 0)
            topic.owner = self._value
        else:
            topic.owner = None
            self._turn = (self._turn + 1) % len(self._topics)

    def expected(self) -> Iterator[Expected]:
        for topic in self._topics:
            yield Expected(topic.owner_path, topic.owner, 0)
            yield Expected(topic.mark_path, topic.mark, topic.mark_version)

    def _new_value(self) -> bytes:
        count = self._count = self._count + 1
        size = self._size
        value = self._value = (b"%d %b" % (count, self._name)).ljust(size, b".")[:size]
        return value


class PutChain:
    """A chain of unconditional puts. Each puts a new path."""

    __slots__ = ("_first", "_next", "_root", "_size", "_step", "reading")

    def __init__(self, workload: Workload, root: str, number: int) -> None:
        self._root = root
        self._first = self._next = number
        self._step = workload.chains
        self._size = workload.value_bytes
        self.reading = False

    def submit(self, store: MetadataStore) -> Future[Any]:
        number = self._next
        return store.put(put_path(self._root, number), put_value(number, self._size))

    def ended(self, future: Future[Any]) -> None:
        stat = future.result()
        if stat.version != 0:
            raise _wrong_version(put_path(self._root, self._next), stat.version, 0)
        self._next += self._step

    def expected(self) -> Iterator[Expected]:
        for number in range(self._first, self._next, self._step):
            yield Expected(put_path(self._root, number), put_value(number, self._size), 0)


def put_path(root: str, number: int) -> str:
    """Return the path of a plain put."""
    return f"{root}/{number}"


def put_value(number: int, size: int) -> bytes:
    """Return the value of a plain put."""
    return (b"%d " % number).ljust(size, b".")[:size]


def check(expected: Expected, found: Any) -> None:
    """Compare the expected contents of a path with the result of a get.

    Raises:
        WrongAnswerError: they differ. The message names the path.
    """
    path, value, version = expected
    if value is None:
        if found is not None:
            raise WrongAnswerError(f"deleted, but still at version {found.stat.version}: {path}")
    elif found is None:
        raise WrongAnswerError(f"acknowledged at version {version}, but missing: {path}")
    elif found.value != value:
        raise WrongAnswerError(f"acknowledged {value!r:.60}, but holds {found.value!r:.60}: {path}")
    elif found.stat.version != version:
        raise _wrong_version(path, found.stat.version, version)


def _wrong_version(path: str, found: int, expected: int) -> WrongAnswerError:
    return WrongAnswerError(f"version {found} instead of {expected}: {path}")

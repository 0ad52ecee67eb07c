"""How operations are gathered into batches, and how much may be held and under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ..ops.errors import InvalidSettingError

__all__ = ["BatchingConfig", "OnFull", "check_seconds"]

OnFull = Literal["single", "block", "raise"]

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
# threading's own bound on a wait is about 292 years; a year is enough for anybody.
_LONGEST: Final = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """The settings of the batching engine. They can be compared, hashed and pickled.

    Attributes:
        enabled: ``False`` sends every operation singly, through the same interface and with the
            same guarantees, up to ``max_in_flight`` of them (where that is not given: as many as
            serve the store) at the same time for reads and for writes.
        max_ops: the most operations in a batch. What the store takes less of, its back end caps.
        max_bytes: the most bytes in a batch, counting paths, values and the encoding's overhead.
        max_delay: seconds that an operation waits for company at the most.
        read_queue_size: operations that the queue of reads holds.
        write_queue_size: operations that the queue of writes holds.
        max_queued_bytes: bytes that each queue holds: paths, values and the encoding's overhead.
        max_in_flight: batches of reads, and as many of writes, that may be under way at the same
            time; ``None`` takes what serves the store best.
        max_singles: operations that may be executed singly at the same time, beside the batches,
            because a queue is full. A single execution costs client and server many times what an
            operation in a batch does: with 64 of them a saturated etcd or ZooKeeper did half as
            many gets a second as with 2, and hardly more with none.
        on_full: what a full queue does to a caller. ``"single"`` executes the operation at once,
            and waits when ``max_singles`` are under way or an earlier operation holds the path;
            ``"block"`` waits for room until the operation's deadline; ``"raise"`` raises
            ``QueueFullError`` at once.
        linger: ``"adaptive"`` sends at once when nothing is in flight and gathers while something
            is; ``"fixed"`` always waits for ``max_ops``, ``max_bytes`` or ``max_delay``.

    Raises:
        InvalidSettingError: for a value out of its range, with the value and the range.
    """

    enabled: bool = True
    max_ops: int = 1000
    max_bytes: int = 256 * _KIB
    max_delay: float = 0.005
    read_queue_size: int = 10_000
    write_queue_size: int = 10_000
    max_queued_bytes: int = 64 * _MIB
    max_in_flight: int | None = None
    max_singles: int = 2
    on_full: OnFull = "single"
    linger: Literal["adaptive", "fixed"] = "adaptive"

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise InvalidSettingError(f"enabled must be True or False, not {self.enabled!r}")
        _check_int("max_ops", self.max_ops, 1, 1_000_000)
        _check_int("max_bytes", self.max_bytes, 1, 1024 * _MIB)
        _check_int("read_queue_size", self.read_queue_size, 1, 10_000_000)
        _check_int("write_queue_size", self.write_queue_size, 1, 10_000_000)
        _check_int("max_queued_bytes", self.max_queued_bytes, 1, 1024 * 1024 * _MIB)
        if self.max_in_flight is not None:
            _check_int("max_in_flight", self.max_in_flight, 1, 256)
        _check_int("max_singles", self.max_singles, 0, 1024)
        _check_choice("on_full", self.on_full, ("single", "block", "raise"))
        _check_choice("linger", self.linger, ("adaptive", "fixed"))
        delay = self.max_delay
        if not _is_number(delay) or not 0 <= delay <= 60:
            raise InvalidSettingError(f"max_delay must be from 0 to 60 seconds, not {delay!r}")


def check_seconds(name: str, value: float) -> float:
    """Return a duration in seconds if it is more than 0 and at most a year.

    Raises:
        InvalidSettingError: with the value and the rule.
    """
    if _is_number(value) and 0 < value <= _LONGEST:
        return value
    raise InvalidSettingError(
        f"{name} must be a number of seconds, more than 0 and at most a year, not {value!r}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_int(name: str, value: Any, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidSettingError(
            f"{name} must be an int from {lowest} to {highest}, not {value!r}"
        )


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidSettingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")

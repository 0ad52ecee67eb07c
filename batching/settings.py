"""The settings of batches and queues, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ..ops.errors import InvalidSettingError

__all__ = ["BatchingConfig", "OnFull", "check_flag", "check_seconds"]

OnFull = Literal["single", "block", "raise"]

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
# threading cannot wait longer than about 292 years; a year is enough.
_LONGEST: Final = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """The settings of the batching engine. They can be compared, hashed and pickled.

    Attributes:
        enabled: ``False`` sends every operation by itself, with the same methods and guarantees. At
            most ``max_in_flight`` reads and ``max_in_flight`` writes are then in flight; by
            default, a number that suits the store.
        max_ops: the most operations in a batch. The back end applies the store's own limit, if that
            is lower.
        max_bytes: the most bytes in a batch: paths, values and the overhead of the encoding.
        max_delay: the longest time, in seconds, that an operation waits for others to join its
            batch.
        read_queue_size: the most operations in the queue of reads.
        write_queue_size: the most operations in the queue of writes.
        max_queued_bytes: the most bytes in each queue: paths, values and the overhead of the
            encoding.
        max_in_flight: the most batches of reads in flight, and the most batches of writes; ``None``
            chooses a number that suits the store.
        max_singles: the limit of concurrent single executions, beside the batches, because a queue
            is full. A single execution costs client and server many times as much as an operation
            in a batch: a saturated etcd or ZooKeeper answered half as many gets per second with 64
            single executions as with 2, and hardly more with none.
        on_full: what happens to a call when its queue is full. ``"single"`` executes the operation
            at once, and waits while ``max_singles`` are under way or an earlier operation holds the
            path; ``"block"`` waits for room until the operation's deadline; ``"raise"`` raises
            ``QueueFullError`` at once.
        linger: ``"adaptive"`` sends at once while nothing is in flight, and gathers operations
            otherwise; ``"fixed"`` always waits for ``max_ops``, ``max_bytes`` or ``max_delay``.

    Raises:
        InvalidSettingError: a value is out of its range. The error names both.
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
        check_flag("enabled", self.enabled)
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
        InvalidSettingError: the value is invalid. The message names it and the rule.
    """
    if _is_number(value) and 0 < value <= _LONGEST:
        return value
    raise InvalidSettingError(
        f"{name} must be a number of seconds, more than 0 and at most a year, as an int or a "
        f"float, not {value!r}"
    )


def check_flag(name: str, value: object) -> None:
    """Refuse what is not a bool: the text ``"false"`` would be true.

    Raises:
        InvalidSettingError: the value is not a bool. The message names it and the rule.
    """
    if not isinstance(value, bool):
        raise InvalidSettingError(f"{name} must be True or False, not {value!r:.80}")


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

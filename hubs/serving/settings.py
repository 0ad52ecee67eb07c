"""The settings of a hub, validated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from ...batching.settings import check_seconds
from ...ops.errors import InvalidSettingError
from ..topics.choosing import Strategy
from ..topics.region import OwnershipMode

__all__ = ["HubSettings"]

# The settings in seconds, where ``None`` means never.
_SECONDS: Final = (
    "mark_interval",
    "report_interval",
    "shed_interval",
    "retention_after_access",
    "retention_after_claim",
)
# The other numeric settings, with the same bound as the numbers of a load.
_BOUND: Final = 2**64
_COUNTS: Final = ("window", "most_redelivered", "most_shed", "max_topics", "max_created")
_CHOICES: Final = {"ownership": get_args(OwnershipMode), "strategy": get_args(Strategy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """The settings of a hub. All hubs of a region must have the same ``ownership``.

    Attributes:
        ownership: ``"ephemeral"`` or ``"compared"``; see ``docs/hubs.md``.
        strategy: how to choose a hub for a topic without an owner.
        capacity: the capacity of this hub relative to others.
        max_topics: the limit of topics that it owns. Above the limit, it releases the least
            recently used topic. ``None`` for no limit.
        max_created: the limit of new topics that it creates per second; above it, clients have to
            try again. Each new topic leaves a record that stays. ``None`` for no limit.
        window: the limit of delivered, unconsumed messages of a subscriber, unless its preferences
            set another one.
        most_redelivered: the limit of consumed messages that a subscriber gets again after a crash
            of the hub.
        mark_interval: seconds until a consume mark is written.
        report_interval: seconds between load reports.
        shed_interval: seconds between two checks for overload; ``None`` to disable shedding.
        tolerance: how far the score of a hub may exceed the average, as a fraction of it.
        most_shed: the limit of topics that it releases at each of these checks.
        retention_after_access: seconds after which an unused topic is released, or ``None``. A
            topic is in use while it has subscribers.
        retention_after_claim: seconds after which a topic is released even if it is in use, so that
            topics move between hubs from time to time, or ``None``.

    Raises:
        InvalidSettingError: a value is out of range. The error names the value and the range.
    """

    ownership: OwnershipMode = "ephemeral"
    strategy: Strategy = "two_choices"
    capacity: float = 1.0
    max_topics: int | None = None
    max_created: int | None = None
    window: int = 1000
    most_redelivered: int = 1000
    mark_interval: float = 1.0
    report_interval: float = 1.0
    shed_interval: float | None = 10.0
    tolerance: float = 0.1
    most_shed: int = 10
    retention_after_access: float | None = None
    retention_after_claim: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and "None" in str(field.type):
                continue
            if field.name in _SECONDS:
                check_seconds(field.name, value)
            elif field.name in _COUNTS:
                _check_count(field.name, value)
            elif field.name in _CHOICES:
                if value not in _CHOICES[field.name]:
                    allowed = ", ".join(map(repr, _CHOICES[field.name]))
                    raise InvalidSettingError(
                        f"{field.name} must be one of {allowed}, not {value!r:.80}"
                    )
            elif (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or not 0 <= value < _BOUND
            ):
                raise InvalidSettingError(
                    f"{field.name} must be a number from 0 on, below 2**64, not {value!r:.80}"
                )


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise InvalidSettingError(f"{name} must be an int from 1 on, not {value!r:.80}")

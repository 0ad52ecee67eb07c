"""How a hub behaves, validated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from ...batching.settings import check_seconds
from ...ops.errors import InvalidSettingError
from ..topics.choosing import Strategy
from ..topics.region import OwnershipMode

__all__ = ["HubSettings"]

# The settings that are seconds, or ``None`` for never.
_SECONDS: Final = (
    "mark_interval",
    "report_interval",
    "shed_interval",
    "retention_after_access",
    "retention_after_claim",
)
# Others are numbers, with the bound of those of a load.
_BOUND: Final = 2**64
_COUNTS: Final = ("window", "most_redelivered", "most_shed", "max_topics")
_CHOICES: Final = {"ownership": get_args(OwnershipMode), "strategy": get_args(Strategy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """How a hub behaves. All hubs of a region must have the same ``ownership``.

    Attributes:
        ownership: ``"ephemeral"`` or ``"compared"``; see ``docs/hubs.md``.
        strategy: how a hub is chosen for a topic without an owner.
        capacity: what this hub can bear, in comparison with others.
        max_topics: the most topics that it owns. Beyond that, it gives up the one that was used
            least recently. ``None`` for no limit.
        window: the most messages that are delivered to a subscriber and not consumed, unless its
            preferences say otherwise.
        most_redelivered: the most messages that a subscriber gets again after a crash of the hub
            although it had consumed them.
        mark_interval: seconds until a consume mark is written.
        report_interval: seconds between reports of the load.
        shed_interval: seconds between two looks whether the hub bears more than it should; ``None``
            to shed nothing.
        tolerance: how much more than the average a hub may bear, as a part of it.
        most_shed: the most topics that it gives up at each of these looks.
        retention_after_access: seconds after which a topic that nobody uses is given up, or
            ``None``. A topic is in use while it has subscribers.
        retention_after_claim: seconds after which a topic is given up although it is in use, so
            that topics move between hubs now and then, or ``None``.

    Raises:
        InvalidSettingError: a value is out of its range. The error names both.
    """

    ownership: OwnershipMode = "ephemeral"
    strategy: Strategy = "two_choices"
    capacity: float = 1.0
    max_topics: int | None = None
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

"""The settings of a simulation, validated."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from ...batching.settings import check_seconds
from ...hubs import OwnershipMode
from ...ops.errors import InvalidSettingError

#: The faults of a hub:
#:
#: - ``kill``: its process is killed with ``SIGKILL``, and restarted later
#: - ``pause``: its process is suspended for longer than its session
#: - ``cut``: nothing passes between it and the store for longer than its session
#: - ``blink``: the same, for less than its session
#: - ``drain``: an operator drains it, and later lets it serve again
#: - ``leave``: it is asked to stop (SIGTERM), and restarted later
#: - ``join``: another hub, at a new address, joins for a while
Fault: TypeAlias = Literal["kill", "pause", "cut", "blink", "drain", "leave", "join"]

FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

_SECONDS: Final = ("seconds", "kill_every", "session_timeout")
# The shortest simulation with faults, in session timeouts.
_SESSIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A simulation.

    Attributes:
        hubs: the number of hubs.
        topics: the number of topics. Each has one publisher.
        subscribers: the subscribers of each topic.
        seconds: how long clients publish.
        kill_every: seconds from one fault to the next, on average.
        rate: the messages that all publishers publish each second.
        session_timeout: seconds after which the store ends the session of a hub.
        ownership: the mode of ownership; see ``HubSettings``.
        faults: the kinds of faults; empty for none.
        seed: determines the kind, time and hub of each fault.

    Raises:
        InvalidSettingError: a value is out of range. The error names the value and the range.
    """

    hubs: int = 3
    topics: int = 100
    subscribers: int = 1
    seconds: float = 120.0
    kill_every: float = 10.0
    rate: float = 200.0
    session_timeout: float = 4.0
    ownership: OwnershipMode = "ephemeral"
    faults: tuple[Fault, ...] = FAULTS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _SECONDS:
            check_seconds(name, getattr(self, name))
        if self.faults and self.hubs < 2:
            raise InvalidSettingError("hubs must be 2 at least: one fails, another takes over")
        if not 0 < self.rate <= 100_000:
            raise InvalidSettingError(f"rate must be above 0, at most 100,000, not {self.rate!r}")
        if self.faults and self.seconds < _SESSIONS * self.session_timeout:
            raise InvalidSettingError(
                f"the simulation must be {_SESSIONS} times as long as a session at least, to show "
                f"faults and their end: {self.seconds:g} s are too short for sessions of "
                f"{self.session_timeout:g} s"
            )
        if unknown := [fault for fault in self.faults if fault not in FAULTS]:
            known = ", ".join(FAULTS)
            raise InvalidSettingError(f"there is no fault {unknown[0]!r:.80} (known: {known})")

    @property
    def addresses(self) -> int:
        """The number of hubs, including the one that joins for a while."""
        return self.hubs + ("join" in self.faults)

    @property
    def topic_names(self) -> list[str]:
        """The topics."""
        width = len(str(self.topics))
        return [f"topic-{number:0{width}}" for number in range(1, self.topics + 1)]

    def command(self, module: str, **task: Any) -> list[str]:
        """Return the command that runs a module of this folder, which reads its :func:`task`."""
        return [
            sys.executable,
            "-m",
            f"{__package__}.{module}",
            json.dumps({**task, "plan": asdict(self)}),
        ]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan with these values, among which may be others."""
        known = {field.name for field in fields(cls)} & values.keys()
        return cls(**{name: values[name] for name in known} | {"faults": tuple(values["faults"])})


def task() -> dict[str, Any]:
    """Return what :meth:`Plan.command` has given to this process, and the plan."""
    given = json.loads(sys.argv[1])
    return {**given, "plan": Plan.of(given["plan"])}

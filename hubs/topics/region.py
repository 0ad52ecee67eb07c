"""What a region keeps about its hubs, its owners of topics and its access rules, and where.

Each value is a JSON object as those in ``hubs.managers.data``::

    REGION/hosts/ADDRESS          {"v": 1, "eligible": true, "draining": false}
    REGION/hosts/ADDRESS/alive    a member of a group (see ``coordination.members``) with its load
    REGION/topics/TOPIC/hub       the owner in the mode "ephemeral", as a HubInfo
    REGION/topics/TOPIC/epoch     the hub that began the epoch, which is the version of this path
    REGION/ownership              {"v": 1, "mode": "ephemeral"}
    REGION/access/PREFIX          {"v": 1, "create": ["alice"], "subscribe": ["*"], "publish": []}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from ...ops.operations import Check
from ...ops.results import GetResult
from ..managers.data import Data, HubInfo, HubLoad, Kind, is_text
from ..tables import Version

__all__ = ["EVERYBODY", "LEAF", "Claim", "Hub", "HubMembership", "OwnershipMode", "Rule", "Vacancy"]

#: How the owners of topics are kept: by ``EphemeralOwnership`` or by ``ComparedOwnership``.
OwnershipMode: TypeAlias = Literal["ephemeral", "compared"]

#: What a hub has below its address while it is alive.
LEAF: Final = "alive"

#: The principal that stands for all of them.
EVERYBODY: Final = "*"

_FLAG: Final = Kind("a bool", lambda value: isinstance(value, bool))
_PRINCIPALS: Final = Kind(
    "a tuple of texts that are not empty",
    lambda value: isinstance(value, tuple) and all(is_text(one) and one for one in value),
    list,
    # A text is no list, but a tuple of its characters could be made.
    lambda shown: tuple(shown) if isinstance(shown, list) else shown,
)


@dataclass(frozen=True, slots=True)
class HubMembership(Data):
    """Whether a hub may get topics. It outlives the hub.

    Attributes:
        eligible: whether it may.
        draining: whether it gives its topics to others, and so gets no more of them.
    """

    eligible: Annotated[bool, _FLAG] = True
    draining: Annotated[bool, _FLAG] = False


class Hub(NamedTuple):
    """A hub that is alive.

    Attributes:
        info: its address and its incarnation.
        load: its load, when it last reported it.
        eligible: whether it may get topics.
        draining: whether it gives its topics to others.
        report: grows with each report of its load.
    """

    info: HubInfo
    load: HubLoad
    eligible: bool = True
    draining: bool = False
    report: int = 0


@dataclass(frozen=True, slots=True)
class Rule(Data):
    """Who may do what with the topics of a prefix; ``"*"`` is everybody.

    Attributes:
        create: who may create them.
        subscribe: who may subscribe to them.
        publish: who may publish to them.
    """

    create: Annotated[tuple[str, ...], _PRINCIPALS] = ()
    subscribe: Annotated[tuple[str, ...], _PRINCIPALS] = ()
    publish: Annotated[tuple[str, ...], _PRINCIPALS] = ()


class Vacancy(NamedTuple):
    """A topic that nobody owned when it was read: what a claim needs to know of it.

    Attributes:
        epoch: its present epoch; ``None`` if it was never claimed.
        version: that of its owner info, in the mode "compared".
    """

    epoch: GetResult | None
    version: Version = Version.NEW


class Claim(NamedTuple):
    """A topic that a hub has claimed.

    Attributes:
        topic: the topic.
        owner: the hub.
        epoch: greater than that of every claim of the topic before, from 1 on.
        check: the condition that nobody has claimed the topic since, for transactions.
    """

    topic: str
    owner: HubInfo
    epoch: int
    check: Check

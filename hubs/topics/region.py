"""The records of a region about hubs, owners of topics and access rules, and their paths.

Each value is a JSON object like those in ``hubs.managers.data``::

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

#: How owners of topics are stored: by ``EphemeralOwnership`` or by ``ComparedOwnership``.
OwnershipMode: TypeAlias = Literal["ephemeral", "compared"]

#: The path component below the address of a hub, which exists while the hub is alive.
LEAF: Final = "alive"

#: The principal that matches everyone.
EVERYBODY: Final = "*"

_FLAG: Final = Kind("a bool", lambda value: isinstance(value, bool))
_PRINCIPALS: Final = Kind(
    "a tuple of texts that are not empty",
    lambda value: isinstance(value, tuple) and all(is_text(one) and one for one in value),
    list,
    # A text is not a list, but ``tuple`` would split it into characters.
    lambda shown: tuple(shown) if isinstance(shown, list) else shown,
)


@dataclass(frozen=True, slots=True)
class HubMembership(Data):
    """Whether a hub may get topics. It outlives the hub.

    Attributes:
        eligible: whether it may get topics.
        draining: whether it hands its topics to others, and gets no new ones.
    """

    eligible: Annotated[bool, _FLAG] = True
    draining: Annotated[bool, _FLAG] = False


class Hub(NamedTuple):
    """A live hub.

    Attributes:
        info: its address and its incarnation.
        load: its last reported load.
        eligible: whether it may get topics.
        draining: whether it hands its topics to others.
        report: grows with each load report.
    """

    info: HubInfo
    load: HubLoad
    eligible: bool = True
    draining: bool = False
    report: int = 0


@dataclass(frozen=True, slots=True)
class Rule(Data):
    """Who may do what with the topics of a prefix; ``"*"`` is everyone.

    Attributes:
        create: who may create them.
        subscribe: who may subscribe to them.
        publish: who may publish to them.
    """

    create: Annotated[tuple[str, ...], _PRINCIPALS] = ()
    subscribe: Annotated[tuple[str, ...], _PRINCIPALS] = ()
    publish: Annotated[tuple[str, ...], _PRINCIPALS] = ()


class Vacancy(NamedTuple):
    """A topic that had no owner when it was read: the state that a claim needs.

    Attributes:
        epoch: its current epoch; ``None`` if it was never claimed.
        version: the version of its owner info, in the mode "compared".
    """

    epoch: GetResult | None
    version: Version = Version.NEW


class Claim(NamedTuple):
    """A topic that a hub has claimed.

    Attributes:
        topic: the topic.
        owner: the hub.
        epoch: greater than the epochs of all earlier claims of the topic, from 1 on.
        check: the condition, for transactions, that no hub has claimed the topic since.
    """

    topic: str
    owner: HubInfo
    epoch: int
    check: Check

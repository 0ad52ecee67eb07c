"""Topic management: the hubs of a region, the choice of a hub for a topic, and access rules.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``region``: the records of a region about hubs, owners of topics and access rules
- ``async_views``: in-memory views of the values below a path, kept current by a watch
- ``async_hosts``: the live hubs, their loads and their memberships
- ``async_ownership``: the owner of a topic, in both modes, and the epochs of topics
- ``async_modes``: the mode of a region
- ``choosing``: the choice of a hub for a topic, without requests
- ``rules``: the access rule that decides: pure functions
- ``async_access``: who may create topics, subscribe and publish
"""

from ._sync.access import AccessRules
from ._sync.hosts import Hosts, Registration
from ._sync.ownership import (
    ComparedOwnership,
    EphemeralOwnership,
    Ownership,
    open_ownership,
)
from .async_access import AsyncAccessRules
from .async_hosts import AsyncHosts, AsyncRegistration
from .async_ownership import (
    AsyncComparedOwnership,
    AsyncEphemeralOwnership,
    AsyncOwnership,
    async_open_ownership,
)
from .choosing import Planned, Strategy, choose, score
from .region import Claim, Hub, HubMembership, OwnershipMode, Rule, Vacancy
from .rules import Action

__all__ = [
    "AccessRules",
    "Action",
    "AsyncAccessRules",
    "AsyncComparedOwnership",
    "AsyncEphemeralOwnership",
    "AsyncHosts",
    "AsyncOwnership",
    "AsyncRegistration",
    "Claim",
    "ComparedOwnership",
    "EphemeralOwnership",
    "Hosts",
    "Hub",
    "HubMembership",
    "Ownership",
    "OwnershipMode",
    "Planned",
    "Registration",
    "Rule",
    "Strategy",
    "Vacancy",
    "async_open_ownership",
    "choose",
    "open_ownership",
    "score",
]

"""Topic management: the hubs of a region, which of them gets a topic, and who may use it.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``region``: what a region keeps about its hubs, its owners of topics and its access rules
- ``async_views``: what the values below a path say, in memory, as a watch keeps it current
- ``async_hosts``: the hubs that are alive, their loads and their memberships
- ``async_ownership``: which hub owns a topic, in both modes, and the epochs of topics
- ``async_modes``: which of the modes a region has
- ``choosing``: which hub gets a topic: no requests
- ``rules``: which access rule decides: pure functions
- ``async_access``: who may create topics, subscribe and publish
"""

from ._sync.access import AccessRules
from ._sync.hosts import Hosts, Registration
from ._sync.modes import open_ownership
from ._sync.ownership import ComparedOwnership, EphemeralOwnership, Ownership
from .async_access import AsyncAccessRules
from .async_hosts import AsyncHosts, AsyncRegistration
from .async_modes import async_open_ownership
from .async_ownership import AsyncComparedOwnership, AsyncEphemeralOwnership, AsyncOwnership
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

"""Coordination of processes, on the public face of a store: locks, elections, caches and more.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``contenders``: the order of the contenders for a path, and who waits for whom: pure
- ``async_claims``: one contender, from its creation to its end, and the warden that detects the end
- ``async_lobbies``: the line of contenders, as one store sees it
- ``async_holds``: what locks and elections have in common
- ``async_locks``: locks and semaphores
- ``async_elections``: leader election
- ``async_leaders``: the values of the leaders, one after the other
- ``async_fencing``: a store whose writes take effect only while a lock is held
- ``async_fences``: fenced writes, and the order in which they are sent
- ``async_cache``: the cache of the values below a prefix
- ``entries``: the contents of a cache, and the rules for entering it: a pure object
- ``async_key_locks``: a lock for each key, for updates of a path
- ``async_cache_watch``: the watch that keeps a cache current, and the listeners of a cache
- ``async_counters``: unique numbers, in blocks
- ``members``: the members of a group, and the format of their values: pure functions
- ``async_groups``: the members of a group, and its listeners
- ``async_memberships``: one membership of this process, through all of its incarnations
- ``async_persistent``: an ephemeral value that is created again after each lost session
- ``async_barriers``: a barrier that processes wait for, and one that they enter together
- ``job_board``: the jobs of a queue, and which of them look free: a pure object
- ``async_work``: the queue of jobs, and claims to them
- ``async_following``: a view that a watch keeps current, in the background
- ``async_kinds``: refuses objects of other kinds than a constructor needs
- ``deadlines``: the remaining time of a call
- ``async_conflicts``: the attempts of a call at a change, while other clients are faster
- ``crossings``: waits of threads for each other, which would never end
- ``tooz_driver``: a driver for OpenStack's tooz; tooz imports it
"""

from ..ops.results import CacheResult
from ..ops.serdes import Serde, bytes_serde, dataclass_serde, json_serde, msgspec_serde
from ._sync.barriers import Barrier, DoubleBarrier
from ._sync.cache import MetadataCache
from ._sync.cache_watch import CacheListener
from ._sync.counters import Counter
from ._sync.elections import Election, ElectionListener
from ._sync.fencing import FencedStore, fenced
from ._sync.groups import Group, GroupListener
from ._sync.leaders import LeaderWatch
from ._sync.locks import Lock, Semaphore
from ._sync.memberships import Membership
from ._sync.persistent import PersistentEphemeral
from ._sync.work import Job, WorkQueue
from .async_barriers import AsyncBarrier, AsyncDoubleBarrier
from .async_cache import AsyncMetadataCache
from .async_cache_watch import AsyncCacheListener
from .async_counters import AsyncCounter
from .async_elections import AsyncElection, AsyncElectionListener
from .async_fencing import AsyncFencedStore, async_fenced
from .async_groups import AsyncGroup, AsyncGroupListener
from .async_leaders import AsyncLeaderWatch
from .async_locks import AsyncLock, AsyncSemaphore
from .async_memberships import AsyncMembership
from .async_persistent import AsyncPersistentEphemeral
from .async_work import AsyncJob, AsyncWorkQueue
from .contenders import Participant
from .entries import NOT_CACHED
from .members import Member

__all__ = [
    "NOT_CACHED",
    "AsyncBarrier",
    "AsyncCacheListener",
    "AsyncCounter",
    "AsyncDoubleBarrier",
    "AsyncElection",
    "AsyncElectionListener",
    "AsyncFencedStore",
    "AsyncGroup",
    "AsyncGroupListener",
    "AsyncJob",
    "AsyncLeaderWatch",
    "AsyncLock",
    "AsyncMembership",
    "AsyncMetadataCache",
    "AsyncPersistentEphemeral",
    "AsyncSemaphore",
    "AsyncWorkQueue",
    "Barrier",
    "CacheListener",
    "CacheResult",
    "Counter",
    "DoubleBarrier",
    "Election",
    "ElectionListener",
    "FencedStore",
    "Group",
    "GroupListener",
    "Job",
    "LeaderWatch",
    "Lock",
    "Member",
    "Membership",
    "MetadataCache",
    "Participant",
    "PersistentEphemeral",
    "Semaphore",
    "Serde",
    "WorkQueue",
    "async_fenced",
    "bytes_serde",
    "dataclass_serde",
    "fenced",
    "json_serde",
    "msgspec_serde",
]

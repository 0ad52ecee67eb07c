"""Coordination of processes, on the public face of a store: locks, elections, caches and more.

Each module ``async_x`` is for tasks, and the source of ``x``, which is for threads.

- ``contenders``: the order of those who stand in line for a path, and who waits for whom: pure
- ``async_claims``: one of them, from its creation to its end, and the warden that notices the end
- ``claims``: the same for threads, generated
- ``async_lobbies``: the line as one store sees it: one value at a time, and whom each waits for
- ``lobbies``: the same for threads, generated
- ``async_holds``: what locks and elections have in common
- ``holds``: the same for threads, generated
- ``async_locks``: locks and semaphores
- ``locks``: the same for threads, generated
- ``async_elections``: leader election
- ``elections``: the same for threads, generated
- ``async_leaders``: the values of the leaders, one after the other
- ``leaders``: the same for threads, generated
- ``async_fencing``: a store whose writes take effect only while a lock is held
- ``fencing``: the same for threads, generated
- ``async_fences``: those writes, and the order in which they are sent
- ``fences``: the same for threads, generated
- ``async_cache``: the cache of the values below a prefix
- ``cache``: the same for threads, generated
- ``entries``: what the cache knows, and what may enter it: a pure object
- ``serdes``: how values become bytes, and bytes values
- ``async_turns``: one update of a path at a time
- ``turns``: the same for threads, generated
- ``async_cache_watch``: the watch that keeps a cache current, and the listeners of a cache
- ``cache_watch``: the same for threads, generated
- ``async_counters``: unique numbers, in blocks
- ``counters``: the same for threads, generated
- ``members``: the members of a group, and how their values say who they are: pure functions
- ``async_groups``: who is in a group, and its listeners
- ``groups``: the same for threads, generated
- ``async_memberships``: one membership of this process, through all of its incarnations
- ``memberships``: the same for threads, generated
- ``async_barriers``: a barrier that several processes enter together and leave together
- ``barriers``: the same for threads, generated
- ``job_board``: the jobs of a queue, and which of them look free: a pure object
- ``async_work``: the queue of jobs, and claims to them
- ``work``: the same for threads, generated
- ``async_listeners``: what tells an application of events
- ``listeners``: the same for threads, generated
- ``async_following``: a view that a watch keeps current, in the background
- ``following``: the same for threads, generated
- ``async_background``: what runs beside the caller, for tasks
- ``background``: the same for threads, written by hand
- ``deadlines``: the time that is left for a call
"""

from .async_barriers import AsyncDoubleBarrier
from .async_cache import AsyncMetadataCache
from .async_cache_watch import AsyncCacheListener
from .async_counters import AsyncCounter
from .async_elections import AsyncElection, AsyncElectionListener
from .async_fencing import AsyncFencedStore, async_fenced
from .async_groups import AsyncGroup, AsyncGroupListener
from .async_leaders import AsyncLeaderWatch
from .async_locks import AsyncLock, AsyncSemaphore
from .async_memberships import AsyncMembership
from .async_work import AsyncJob, AsyncWorkQueue
from .barriers import DoubleBarrier
from .cache import MetadataCache
from .cache_watch import CacheListener
from .counters import Counter
from .elections import Election, ElectionListener
from .entries import NOT_CACHED, CacheResult
from .fencing import FencedStore, fenced
from .groups import Group, GroupListener
from .leaders import LeaderWatch
from .locks import Lock, Semaphore
from .members import Member
from .memberships import Membership
from .serdes import Serde, bytes_serde, dataclass_serde, json_serde, msgspec_serde
from .work import Job, WorkQueue

__all__ = [
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
    "AsyncSemaphore",
    "AsyncWorkQueue",
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
    "NOT_CACHED",
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

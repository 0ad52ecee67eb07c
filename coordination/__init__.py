"""Coordination of processes: locks, and what stands on them.

- ``contenders``: the order of those who stand in line, and whose turn it is: a pure object
- ``async_claims``: one of them, from its creation to its end, and the source of ``claims``
- ``claims``: the same for threads, generated
- ``async_lobbies``: the line as one store sees it, and the source of ``lobbies``
- ``lobbies``: the same for threads, generated
- ``async_locks``: locks and semaphores, and the source of ``locks``
- ``locks``: the same for threads, generated
- ``async_following``: a view that a watch keeps current, and the source of ``following``
- ``following``: the same for threads, generated
- ``async_background``: what runs beside the caller, for tasks
- ``background``: what runs beside the caller, for threads
- ``deadlines``: the time that is left for a call
"""

from .async_locks import AsyncLock, AsyncSemaphore
from .locks import Lock, Semaphore

__all__ = ["AsyncLock", "AsyncSemaphore", "Lock", "Semaphore"]

"""What processes do with locks and what stands on them, and what can be wrong with their code."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import batchkeeper as bk
from batchkeeper.coordination import Election, Lock, Semaphore, WorkQueue, fenced
from batchkeeper.coordination._sync.claims import Claim
from batchkeeper.coordination.entries import Entries

from .coordination import Fenced, Finish, Hold, Job, Number, Read, Seen, Update
from .coordination_group_roles import GROUP_FAULTS, belong, meet, stay
from .coordination_recorder import Me, outcome_of, term_look, write_line
from .coordination_tasks import play_tasks
from .recorder import PATIENCE

__all__ = ["CACHED", "FAULTS", "ROLES", "main"]

#: The paths read through caches.
CACHED = [f"/cache/{number}" for number in range(3)]


def hold_lock(me: Me) -> None:
    """Hold a lock for a while, again and again, and put fenced values."""
    lock = Lock(me.store, "/lock", me.name.encode())
    for number in itertools.count():
        if me.stopping.is_set():
            return
        try:
            lock.acquire(timeout=1.0)
        except bk.MetadataStoreError:
            me.rest(0.1)
            continue
        hold = Hold("/lock", me.name, lock.fencing_token, time.monotonic())
        with me.holding(hold, lambda: (lock.held, lock.held_until())):
            read_fenced(me)
            put_fenced(me, lock, f"{me.name}-{number}", me.dice.choice([1, 1, 1, 10]))
        try:
            lock.release()
        except bk.MetadataStoreError:
            me.rest(0.1)


def keep_lock(me: Me) -> None:
    """Hold a lock, and put fenced values without end, also after its loss."""
    lock = Lock(me.store, "/lock", me.name.encode())
    lock.acquire()
    hold = Hold("/lock", me.name, lock.fencing_token, time.monotonic())
    with me.holding(hold, lambda: (lock.held, lock.held_until())):
        put_fenced(me, lock, me.name, None)


def put_fenced(me: Me, lock: Lock, name: str, times: int | None) -> None:
    """Put values with the lock's token."""
    token = lock.fencing_token
    try:
        store = fenced(me.store, lock)
    except bk.MetadataStoreError:
        return
    for turn in itertools.count() if times is None else range(times):
        if me.stopping.is_set():
            return
        write = Fenced("/fenced", f"{name}-{turn}", token)
        number = me.report(write)
        try:
            stat = store.put(write.path, write.value.encode()).result(PATIENCE)
            write.version, write.outcome = stat.version, "done"
        except bk.MetadataStoreError as error:
            write.outcome = outcome_of(error)
        me.report(write, number)
        me.rest(0.02)


def read_fenced(me: Me) -> None:
    """Read what somebody has put."""
    try:
        found = me.store.get("/fenced").result(PATIENCE)
    except bk.MetadataStoreError:
        return
    if found is not None:
        me.report(Seen("/fenced", found.value.decode(), found.stat.version))


def hold_shared(me: Me) -> None:
    """Hold a shared lock, alone or with others."""
    locks = [Lock(me.store, "/shared", me.name.encode(), shared=shared) for shared in (True, False)]
    _hold(me, lambda: me.dice.choice([locks[0], locks[0], locks[1]]))


def hold_semaphore(me: Me) -> None:
    """Hold one of two places of a semaphore."""
    semaphore = Semaphore(me.store, "/semaphore", 2, me.name.encode())
    _hold(me, lambda: semaphore)


def _hold(me: Me, choose: Callable[[], Any]) -> None:
    while not me.stopping.is_set():
        lock = choose()
        try:
            lock.acquire(timeout=1.0)
        except bk.MetadataStoreError:
            me.rest(0.1)
            continue
        acquired = time.monotonic()
        shared = isinstance(lock, Lock) and lock._need.letter == "s"
        hold = Hold(lock.path, me.name, lock.fencing_token, acquired, shared=shared)
        with me.holding(hold, lambda: (lock.held, lock.held_until())):  # noqa: B023 - ends here
            me.rest(0.3)
        try:
            lock.release()
        except bk.MetadataStoreError:
            me.rest(0.1)


def lead(me: Me) -> None:
    """Lead for a while, again and again."""
    election = Election(me.store, "/election", me.name.encode())
    last = 0
    while not me.stopping.is_set():
        try:
            election.campaign(timeout=1.0)
            token = election.fencing_token
            acquired = time.monotonic()
        except bk.MetadataStoreError:
            me.rest(0.1)
            continue
        if token == last:  # The clock had ended it, and the election had not noticed yet.
            me.rest(0.1)
            continue
        look = term_look(election, token)
        with me.holding(Hold("/election", me.name, token, acquired), look):
            for _ in range(me.dice.choice([1, 1, 12])):
                me.rest(0.05)
                if not look()[0]:
                    break
        last = token
        # After a loss, it stands again by itself.
        if look()[0] or me.dice.random() < 0.5:
            with suppress(bk.MetadataStoreError):
                election.resign()
    with suppress(bk.MetadataStoreError):
        election.close()


def keep_leading(me: Me) -> None:
    """Lead for as long as possible."""
    election = Election(me.store, "/election", me.name.encode())
    election.campaign()
    term = Hold("/election", me.name, election.fencing_token, time.monotonic())
    with me.holding(term, lambda: (election.is_leader(), election.held_until())):
        me.stopping.wait()


def count(me: Me) -> None:
    """Get numbers."""
    while not me.stopping.is_set():
        invoked = time.monotonic()
        try:
            if me.dice.random() < 0.1:
                some = me.counter.reserve(3)
                got = Number("/counter", me.name, invoked, time.monotonic(), some[0], len(some))
            else:
                got = Number("/counter", me.name, invoked, 0.0, me.counter.next())
                got.completed = time.monotonic()
        except bk.MetadataStoreError:
            me.rest(0.1)
        else:
            me.report(got)
            me.rest(0.02)


def work(me: Me) -> None:
    """Put jobs, and do those of others."""
    queue = WorkQueue(me.store, "/queue")
    for number in itertools.count():
        if me.stopping.is_set():
            return
        put_job(me, queue, f"{me.name}-{number}")
        try:
            job = queue.claim(timeout=1.0)
        except bk.MetadataStoreError:
            continue
        claim = Hold(job.path, me.name, job.fencing_token, time.monotonic())
        with me.holding(claim, lambda: (job.held, job.held_until())):  # noqa: B023 - ends here
            me.rest(0.1)
        finish_job(me, job)


def put_job(me: Me, queue: WorkQueue, name: str) -> None:
    """Put a job."""
    made = Job(name)
    number = me.report(made)
    try:
        queue.put(name.encode())
        made.outcome = "done"
    except bk.MetadataStoreError as error:
        made.outcome = outcome_of(error)
    me.report(made, number)


def finish_job(me: Me, job: Any) -> None:
    """Remove a job, or give it back."""
    made = Finish(job.value.decode())
    number = me.report(made)
    try:
        job.done()
        made.outcome = "done"
    except bk.MetadataStoreError as error:
        made.outcome = outcome_of(error)
        job.release()
    me.report(made, number)


def update(me: Me) -> None:
    """Add one to numbers, through the cache."""
    while not me.stopping.is_set():
        path = me.dice.choice(CACHED)
        made = Update(path)
        number = me.report(made)
        invoked = time.monotonic()
        try:
            new = me.cache.read_modify_update_or_create(path, lambda old: b"%d" % (_int(old) + 1))
            made.outcome = "done"
            me.report(Read(path, me.name, invoked, time.monotonic(), _int(new)))
        except bk.MetadataStoreError as error:
            made.outcome = outcome_of(error)
        me.report(made, number)
        me.rest(0.1)


def read(me: Me) -> None:
    """Read numbers through the cache."""
    while not me.stopping.is_set():
        try:
            read_cached(me, me.dice.choice(CACHED))
        except bk.MetadataStoreError:
            me.rest(0.1)
        me.rest(0.02)


def read_cached(me: Me, path: str) -> int:
    invoked = time.monotonic()
    number = _int(me.cache.get(path))
    me.report(Read(path, me.name, invoked, time.monotonic(), number))
    return number


def _int(value: bytes | None) -> int:
    return 0 if value is None else int(value)


def look_at_caches(me: Me, numbers: dict[str, int], patience: float) -> None:
    """Read numbers through the cache until they are these, but not for ever."""
    give_up = time.monotonic() + patience
    for path, number in numbers.items():
        while True:
            with suppress(bk.MetadataStoreError):
                if read_cached(me, path) == number or time.monotonic() > give_up:
                    break
            time.sleep(0.02)


#: What a member can do.
ROLES: dict[str, Callable[[Me], None]] = {
    "lock": hold_lock,
    "shared": hold_shared,
    "semaphore": hold_semaphore,
    "lead": lead,
    "keep a lock": keep_lock,
    "keep leading": keep_leading,
    "work": work,
    "count": count,
    "read": read,
    "update": update,
    "belong": belong,
    "stay": stay,
    "meet": meet,
}


# What can be wrong with the code of a member. These change the classes of its own process.


def _trust_the_clock() -> None:
    """Let a claim be held for an hour from its begin, whatever becomes of its session."""
    hour = time.monotonic() + 3600.0
    Claim.valid_until = lambda claim: -math.inf if claim.ended else hour  # type: ignore[method-assign]


def _write_unfenced() -> None:
    """Put values whether the lock is held or not."""
    global fenced  # noqa: PLW0603 - for this process only
    fenced = lambda store, _lock: store  # type: ignore[assignment,return-value] # noqa: E731


def _lead_without_deadline() -> None:
    """Let an election lead until it learns of its loss."""

    def held_until(election: Election) -> float:
        claim = election._claim
        return math.inf if claim is not None and claim.held else -math.inf

    Election.held_until = held_until  # type: ignore[method-assign]


def _forget_an_invalidation() -> None:
    """Let the cache miss the first change of a path of which it knows something."""
    learn, forgotten = Entries.learn, []

    def learn_most(entries: Entries[Any, Any], key: str, mark: Any) -> None:
        if key == CACHED[0] and entries.find(key) is not None and not forgotten:
            forgotten.append(mark)
        else:
            learn(entries, key, mark)

    Entries.learn = learn_most  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "own clock": _trust_the_clock,
    "unfenced": _write_unfenced,
    "no deadline": _lead_without_deadline,
    "forgotten invalidation": _forget_an_invalidation,
    **GROUP_FAULTS,
}


def main() -> None:
    """Play the roles until the signal to stop, and then look at caches until the end of the
    input."""
    url, name, roles, tasks, session_timeout, fault = json.loads(sys.argv[2])
    if fault is not None:
        FAULTS[fault]()
    options = {"session_timeout": session_timeout, "connect_timeout": PATIENCE}
    stopping = threading.Event()
    me = Me(bk.open_store(url, **options), name, stopping)
    me.play(Me.look)
    threads = [me.play(ROLES[role]) for role in roles]
    if tasks:
        runner = Me(None, f"{name} tasks", stopping)
        threads.append(runner.play(lambda me: asyncio.run(play_tasks(me, tasks, url, **options))))
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        if what == "stop":
            me.stopping.set()
            for thread in threads:
                thread.join()
        elif what == "look":
            look_at_caches(me, *arguments)
        elif what == "view" and me.view is not None:
            me.report(me.view())
        write_line([0, "stopped", None])

"""A user of coordination's public face, for the type checker; see ``api.py``."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, assert_type

import batchkeeper as bk


@dataclass
class Hub:
    address: str


def serdes() -> None:
    assert_type(bk.bytes_serde, bk.Serde[bytes])
    assert_type(bk.json_serde, bk.Serde[Any])
    assert_type(bk.dataclass_serde(Hub), bk.Serde[Hub])
    assert_type(bk.msgspec_serde(Hub), bk.Serde[Hub])


def errors(store: bk.MetadataStore) -> None:
    try:
        with bk.Lock(store, "/l"):
            pass
    except bk.LockBusyError as error:
        assert_type(error.value, bytes | None)
    except (bk.LockLostError, bk.LockCancelledError):
        pass
    except bk.ValueDecodeError as error:
        assert_type(error.version, int | None)


# Threads


def locks_of_threads(store: bk.MetadataStore, other: bk.AsyncMetadataStore) -> None:
    lock = bk.Lock(store, "/l", b"me", shared=True)
    with lock as held:
        assert_type(held, bk.Lock)
    lock.acquire(timeout=1)
    assert_type(lock.try_acquire(), bool)
    lock.update(b"other")
    assert_type(lock.holder(), bytes | None)
    assert_type(lock.lost.wait(1.0), bool)
    assert_type((lock.path, lock.value, lock.held), tuple[str, bytes, bool])
    assert_type((lock.held_until(), lock.fencing_token), tuple[float, int])
    assert_type(lock.check(), bk.Check)
    lock.release()
    semaphore = bk.Semaphore(store, "/s", 3, b"me")
    semaphore.acquire()
    semaphore.cancel()
    assert_type(semaphore.holders() + lock.contenders(), list[bk.Participant])
    assert_type(bk.Counter(store, "/c").add(-1), int)
    assert_type(bk.Barrier(store, "/b").create(), bool)
    assert_type(bk.Election(store, "/e").run(lambda lost: lost.is_set()), bool)
    fenced = bk.fenced(store, semaphore)
    assert_type(fenced, bk.FencedStore)
    assert_type(fenced.put("/a", b""), Future[bk.Stat])
    assert_type(fenced.delete("/a"), Future[None])
    assert_type(fenced.transaction([bk.Put("/a", b"")]), Future[list[bk.Stat | None]])
    assert_type(fenced.apply([bk.Put("/a", b"")]), list[bk.Outcome])
    assert_type(list(fenced.apply_stream([bk.Get("/a")])), list[bk.Outcome])
    assert_type(fenced.get("/a"), Future[bk.GetResult | None])
    bk.Lock(other, "/l")  # type: ignore[arg-type]
    bk.Lock(store, "/l", "me")  # type: ignore[arg-type]
    bk.Semaphore(store, "/s")  # type: ignore[call-arg]
    bk.fenced(other, semaphore)  # type: ignore[arg-type]


def elections_of_threads(store: bk.MetadataStore) -> None:
    with bk.Election(store, "/e", b"me") as election:
        election.stand()
        election.campaign(timeout=1)
        assert_type((election.is_leader(), election.held_until()), tuple[bool, float])
        assert_type((election.path, election.value), tuple[str, bytes])
        assert_type((election.fencing_token, election.check()), tuple[int, bk.Check])
        assert_type(election.lost.is_set(), bool)
        assert_type(election.leader(), bytes | None)
        election.update(b"other")
        with election.observe() as leaders:
            assert_type(leaders, bk.LeaderWatch)
            for leader in leaders:
                assert_type(leader, bytes | None)
        assert_type(election.add_listener(print), bk.ElectionListener).close()
        bk.fenced(store, election)
        election.resign()
        election.add_listener(1)  # type: ignore[arg-type]


def caches_of_threads(store: bk.MetadataStore) -> None:
    with bk.MetadataCache[Hub](store, "/hubs", bk.dataclass_serde(Hub)) as cache:
        assert_type(cache.get("/hubs/1"), Hub | None)
        assert_type(cache.get_with_stat("/hubs/1"), bk.CacheResult[Hub] | None)
        assert_type(cache.get_children("/hubs"), list[str])
        assert_type(cache.exists("/hubs/1"), bool)
        assert_type(cache.create("/hubs/1", Hub("a")), bk.Stat)
        assert_type(cache.put("/hubs/1", Hub("b"), expected_version=0), bk.Stat)
        assert_type(cache.read_modify_update("/hubs/1", lambda hub: hub), Hub)
        assert_type(cache.read_modify_update_or_create("/hubs/1", lambda hub: hub or Hub("c")), Hub)
        assert_type(cache.refresh("/hubs/1"), Hub | None)
        cache.delete("/hubs/1")
        cache.invalidate("/hubs/1")
        cache.invalidate_all()
        assert_type(cache.add_listener(print), bk.CacheListener).close()
        found = cache.get_if_cached("/hubs/1")
        if found is not bk.NOT_CACHED:
            assert_type(found, Hub | None)
        cache.put("/hubs/1", b"")  # type: ignore[arg-type]
    bk.MetadataCache[Hub](store, "/hubs", bk.bytes_serde)  # type: ignore[arg-type]


def recipes_of_threads(store: bk.MetadataStore) -> None:
    counter = bk.Counter(store, "/c", block=10)
    assert_type((counter.next(), counter.reserve(3)), tuple[int, range])
    with bk.DoubleBarrier(store, "/b", 2):
        pass
    queue = bk.WorkQueue(store, "/q")
    assert_type((queue.put(b"", priority=1), queue.size()), tuple[str, int])
    assert_type(queue.put_all([b""]), list[str])
    job = queue.claim(timeout=1)
    assert_type(job, bk.Job)
    assert_type((job.path, job.value, job.fencing_token), tuple[str, bytes, int])
    assert_type((job.held, job.held_until()), tuple[bool, float])
    job.done()
    job.release()
    group = bk.Group(store, "/g")
    member = group.join("me", b"data", timeout=1)
    assert_type(member, bk.Membership)
    assert_type((member.name, member.incarnation), tuple[str, int])
    assert_type(group.members(), dict[str, bk.Member])
    member.update(b"other")
    member.leave()
    listener = group.add_listener(lambda event, member: (event, member.name, member.data))
    assert_type(listener, bk.GroupListener)
    listener.close()


# Tasks


async def locks_of_tasks(store: bk.AsyncMetadataStore, other: bk.MetadataStore) -> None:
    lock = bk.AsyncLock(store, "/l", b"me", shared=True)
    async with lock as held:
        assert_type(held, bk.AsyncLock)
    await lock.acquire(timeout=1)
    assert_type(await lock.try_acquire(), bool)
    await lock.update(b"other")
    assert_type(await lock.holder(), bytes | None)
    assert_type(await lock.lost.wait(1.0), bool)
    assert_type((lock.path, lock.value, lock.held), tuple[str, bytes, bool])
    assert_type((lock.held_until(), lock.fencing_token), tuple[float, int])
    assert_type(lock.check(), bk.Check)
    await lock.release()
    semaphore = bk.AsyncSemaphore(store, "/s", 3, b"me")
    await semaphore.acquire()
    semaphore.cancel()
    assert_type(await semaphore.holders() + await lock.contenders(), list[bk.Participant])

    assert_type(await bk.AsyncBarrier(store, "/b").wait(1.0), None)

    async def lead(lost: Any) -> bool:
        return bool(lost.is_set())

    assert_type(await bk.AsyncElection(store, "/e").run(lead), bool)
    fenced = bk.async_fenced(store, semaphore)
    assert_type(fenced, bk.AsyncFencedStore)
    assert_type(await fenced.put("/a", b""), bk.Stat)
    await fenced.delete("/a")
    assert_type(await fenced.transaction([bk.Put("/a", b"")]), list[bk.Stat | None])
    assert_type(await fenced.apply([bk.Put("/a", b"")]), list[bk.Outcome])
    assert_type([o async for o in fenced.apply_stream([bk.Get("/a")])], list[bk.Outcome])
    assert_type(await fenced.get("/a"), bk.GetResult | None)
    bk.AsyncLock(other, "/l")  # type: ignore[arg-type]
    bk.AsyncLock(store, "/l", "me")  # type: ignore[arg-type]
    bk.AsyncSemaphore(store, "/s")  # type: ignore[call-arg]
    bk.async_fenced(other, semaphore)  # type: ignore[arg-type]


async def elections_of_tasks(store: bk.AsyncMetadataStore) -> None:
    async with bk.AsyncElection(store, "/e", b"me") as election:
        election.stand()
        await election.campaign(timeout=1)
        assert_type((election.is_leader(), election.held_until()), tuple[bool, float])
        assert_type((election.path, election.value), tuple[str, bytes])
        assert_type((election.fencing_token, election.check()), tuple[int, bk.Check])
        assert_type(election.lost.is_set(), bool)
        assert_type(await election.leader(), bytes | None)
        await election.update(b"other")
        async with election.observe() as leaders:
            assert_type(leaders, bk.AsyncLeaderWatch)
            async for leader in leaders:
                assert_type(leader, bytes | None)
        assert_type(election.add_listener(print), bk.AsyncElectionListener).close()
        bk.async_fenced(store, election)
        await election.resign()
        election.add_listener(1)  # type: ignore[arg-type]


async def caches_of_tasks(store: bk.AsyncMetadataStore) -> None:
    async with bk.AsyncMetadataCache[Hub](store, "/hubs", bk.dataclass_serde(Hub)) as cache:
        assert_type(await cache.get("/hubs/1"), Hub | None)
        assert_type(await cache.get_with_stat("/hubs/1"), bk.CacheResult[Hub] | None)
        assert_type(await cache.get_children("/hubs"), list[str])
        assert_type(await cache.exists("/hubs/1"), bool)
        assert_type(await cache.create("/hubs/1", Hub("a")), bk.Stat)
        assert_type(await cache.put("/hubs/1", Hub("b"), expected_version=0), bk.Stat)
        assert_type(await cache.read_modify_update("/hubs/1", lambda hub: hub), Hub)
        assert_type(
            await cache.read_modify_update_or_create("/hubs/1", lambda hub: hub or Hub("c")), Hub
        )
        assert_type(await cache.refresh("/hubs/1"), Hub | None)
        await cache.delete("/hubs/1")
        cache.invalidate("/hubs/1")
        cache.invalidate_all()
        assert_type(cache.add_listener(print), bk.AsyncCacheListener).close()
        found = cache.get_if_cached("/hubs/1")
        if found is not bk.NOT_CACHED:
            assert_type(found, Hub | None)
        await cache.put("/hubs/1", b"")  # type: ignore[arg-type]
    bk.AsyncMetadataCache[Hub](store, "/hubs", bk.bytes_serde)  # type: ignore[arg-type]


async def recipes_of_tasks(store: bk.AsyncMetadataStore) -> None:
    counter = bk.AsyncCounter(store, "/c", block=10)
    assert_type((await counter.next(), await counter.reserve(3)), tuple[int, range])
    async with bk.AsyncDoubleBarrier(store, "/b", 2):
        pass
    queue = bk.AsyncWorkQueue(store, "/q")
    assert_type((await queue.put(b"", priority=1), await queue.size()), tuple[str, int])
    assert_type(await queue.put_all([b""]), list[str])
    job = await queue.claim(timeout=1)
    assert_type(job, bk.AsyncJob)
    assert_type((job.path, job.value, job.fencing_token), tuple[str, bytes, int])
    assert_type((job.held, job.held_until()), tuple[bool, float])
    await job.done()
    await job.release()
    group = bk.AsyncGroup(store, "/g")
    member = await group.join("me", b"data", timeout=1)
    assert_type(member, bk.AsyncMembership)
    assert_type((member.name, member.incarnation), tuple[str, int])
    assert_type(await group.members(), dict[str, bk.Member])
    await member.update(b"other")
    await member.leave()
    listener = group.add_listener(lambda event, member: (event, member.name, member.data))
    assert_type(listener, bk.AsyncGroupListener)
    listener.close()


def persistent(store: bk.MetadataStore) -> None:
    kept = bk.PersistentEphemeral(store, "/a", b"")
    assert_type(kept.start(timeout=1.0), bk.PersistentEphemeral)
    assert_type((kept.path, kept.value, kept.exists), tuple[str, bytes, bool])
    assert_type(kept.held_until(), float)
    assert_type(kept.lost.wait(1.0), bool)
    assert_type(kept.update(b""), None)
    assert_type(kept.close(), None)
    with kept as entered:
        assert_type(entered, bk.PersistentEphemeral)


async def persistent_for_tasks(store: bk.AsyncMetadataStore) -> None:
    kept = bk.AsyncPersistentEphemeral(store, "/a")
    assert_type(await kept.start(), bk.AsyncPersistentEphemeral)
    assert_type((kept.path, kept.value, kept.exists), tuple[str, bytes, bool])
    assert_type(await kept.update(b""), None)
    await kept.lost.wait()
    await kept.close()
    async with kept as entered:
        assert_type(entered, bk.AsyncPersistentEphemeral)

"""Who stands in line, calls that end a wait, and the limit that a semaphore has in use."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import AsyncLock, Election, Lock, Participant, Semaphore
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, error, until
from .in_line import line, until_line
from .recipes import begun

PATH = "/locks/a"

two_kinds = pytest.mark.parametrize("store_url", ["memory", "zookeeper"], indirect=True)


def shown(participants: list[Participant]) -> list[tuple[bytes, bool, bool]]:
    return [(one.value, one.holds, one.owned) for one in participants]


@two_kinds
def test_who_stands_in_line(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Those that hold come first, then those that wait, with the values that they show now."""
    other = another()
    first, late = Semaphore(store, PATH, 2, b"1"), Semaphore(store, PATH, 2, b"3")
    assert first.contenders() == []
    first.acquire()
    Semaphore(other, PATH, 2, b"2").acquire()
    begun(late.acquire)
    until_line(store, PATH, 3)
    first.update(b"busy")
    expected = [(b"busy", True, True), (b"2", True, False), (b"3", False, True)]
    assert shown(Lock(store, PATH).contenders()) == shown(late.contenders()) == expected
    assert shown(late.holders()) == expected[:2]
    assert [one.path.rpartition("/")[2] for one in late.contenders()] == line(store, PATH)

    with Election(store, "/e", b"me") as leader, Election(other, "/e", b"you") as candidate:
        leader.campaign()
        candidate.stand()
        until_line(store, "/e", 2)
        assert shown(candidate.candidates()) == [(b"me", True, False), (b"you", False, True)]


@two_kinds
def test_another_limit(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """It is refused as long as one with the first limit stands in line, and leaves nothing."""
    other = another()
    for limit, *limits in ((2, 3, 1), (1, 2)):
        with Semaphore(other, PATH, limit):
            for late in (Semaphore(at, PATH, n) for at in (store, other) for n in limits):
                for call in (late.acquire, late.try_acquire):
                    with pytest.raises(bk.InvalidSettingError, match=f"n={limit}, not"):
                        call()
            assert len(line(store, PATH)) == 1
        with Semaphore(store, PATH, limits[0]):  # whatever this store knew of the line
            pass
    # From before names showed a limit. On ZooKeeper, the store counts from 0, too.
    store.put("/old/0123456789abcdef-x-0000000000", b"", ephemeral=True).result(PATIENCE)
    with Semaphore(store, "/old", 2) as semaphore:
        assert [one.holds for one in semaphore.contenders()] == [True, True]


@two_kinds
def test_a_cancelled_lock(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """Calls that wait for an object end, in line or behind it; its hold and later calls do not."""
    lock = Lock(store, PATH)
    for holder in (Lock(another(), PATH), Lock(store, PATH), lock):
        holder.acquire()
        waiting = [begun(lock.acquire) for _ in range(3)]
        until(lambda: len(lock._waiting) == 3)
        until_line(store, PATH, 1 if holder is lock else 2)
        lock.cancel()
        assert all(isinstance(error(call), bk.LockCancelledError) for call in waiting)
        assert len(line(store, PATH)) == 1
        assert holder.held
        later = begun(lock.acquire)
        until(lambda: lock._waiting)
        holder.release()
        later.result(PATIENCE)
        lock.release()


def test_a_cancelled_lock_of_tasks(fresh_url: Callable[[str], str]) -> None:
    """Another task ends the wait of a task, as another thread does."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store(fresh_url("memory")) as store:
            lock, holder = AsyncLock(store, PATH), AsyncLock(store, PATH)
            async with holder:
                waiting = asyncio.gather(lock.acquire(), lock.acquire(), return_exceptions=True)
                while len(await lock.contenders()) < 2:  # noqa: ASYNC110 - a poll
                    await asyncio.sleep(0.001)
                lock.cancel()
                assert {type(ended) for ended in await waiting} == {bk.LockCancelledError}
                assert len(await lock.contenders()) == 1
            await lock.acquire()

    asyncio.run(main())


def test_a_cancellation_while_the_contender_is_created(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """The call ends after the answer, and its value goes; so does one whose answer was lost."""
    store = stores(wrap=faults)
    lock = Lock(store, PATH)
    for lost in (False, True):
        if lost:
            faults.lose_answer("put", applied=True)
        held = faults.delay("put", applied=True)  # with a lost answer, of the next attempt
        waiting = begun(lock.acquire)
        held.wait()
        lock.cancel()
        held.release()
        assert isinstance(error(waiting), bk.LockCancelledError)
        until_line(store, PATH, 0)
    lock.acquire()


def test_a_handler_cancels_what_it_interrupts(stores: Callable[..., bk.MetadataStore]) -> None:
    """A lock and a campaign on the main thread, which leave the line."""
    store = stores()
    lock, election = Lock(store, PATH), Election(store, "/e")

    def interrupt(path: str) -> None:
        until_line(store, path, 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: (lock.cancel(), election.cancel()))
    try:
        with Lock(store, PATH), Lock(store, "/e"):
            for call, path in ((lock.acquire, PATH), (election.campaign, "/e")):
                interrupting = begun(interrupt, path)
                with pytest.raises(bk.LockCancelledError):
                    call()
                interrupting.result(PATIENCE)
                until_line(store, path, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_terms_and_candidacies(stores: Callable[..., bk.MetadataStore]) -> None:
    """One that waits leaves the line, also after ``stand``; a term of one call learns its loss."""
    store = stores()
    with Election(store, PATH, b"1") as leader, Election(stores(), PATH, b"2") as election:
        leader.campaign()
        for call in (lambda: None, election.stand):
            call()
            waiting = begun(election.run, lambda lost: lost.is_set())
            until_line(store, PATH, 2)
            until(lambda: election._candidacy and election._candidacy.campaigns)
            election.cancel()
            assert isinstance(error(waiting), bk.LockCancelledError)
            until_line(store, PATH, 1)
        later = begun(election.run, lambda lost: lost.is_set())
        until_line(store, PATH, 2)
        leader.cancel()
        assert leader.is_leader()
        leader.resign()
        assert later.result(PATIENCE) is False
        assert election.candidates() == []

        def remove(lost: Any) -> bool:
            store.delete(election.candidates()[0].path).result(PATIENCE)
            return bool(lost.wait(PATIENCE))

        for ends, failure in ((remove, bk.LockLostError), (lambda _: 1 // 0, ZeroDivisionError)):
            with pytest.raises(failure):
                election.run(ends)
            until_line(store, PATH, 0)

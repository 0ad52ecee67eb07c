"""What a watch has received, by streams that a script answers in place of an etcd."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper.ops import OperationTimeoutError
from batchkeeper.stores.etcd.watches.watches import EtcdWatches
from batchkeeper.stores.etcd.wire.lineage import Lineage
from batchkeeper.stores.etcd.wire.protos import messages

from ...waiting import soon, until
from .live import Told

#: The flag of an answer that the next one continues, which etcd3's messages lack.
FRAGMENT = b"\x38\x01"
#: The id that a client proposes for its first watch.
FIRST = 2**32 + 1


class Stream(Iterator[Any]):
    """The answers of one stream, as gRPC returns them."""

    def __init__(self, answers: Iterator[Any]) -> None:
        self._answers = answers

    def __next__(self) -> Any:
        return next(self._answers)

    def cancel(self) -> None:
        pass


class Member:
    """A connection to an etcd whose first stream gives some answers and ends.

    Attributes:
        starts: the first revision of each watch that was requested, in order.
    """

    def __init__(self, *answers: bytes, silent: bool = False, chosen: int = FIRST) -> None:
        self.starts: list[int] = []
        self._revision = 100
        self._answers = answers
        self._over = False
        self._silent = silent
        self._chosen = chosen

    def call(self, _: str, request: Any, *__: Any, **___: Any) -> Any:
        header = SimpleNamespace(revision=self._revision, cluster_id=1, raft_term=1)
        there = SimpleNamespace(mod_revision=request.revision, value=b"")
        return SimpleNamespace(header=header, kvs=[there])

    def open(self, _: float) -> Any:
        calls = SimpleNamespace(watch=self._watch)
        return SimpleNamespace(address="", version="3.6.0", metadata=(), calls=calls)

    def broken(self, *_: Any, **__: Any) -> None:
        pass

    def late(self, what: str) -> OperationTimeoutError:
        return OperationTimeoutError(what)

    def end(self) -> None:
        self._over = True

    def _watch(self, requests: Iterator[bytes], metadata: object) -> Stream:
        return Stream(self._answered(requests))

    def _answered(self, requests: Iterator[bytes]) -> Iterator[Any]:
        create = messages.WatchRequest.FromString(next(requests)).create_request
        self.starts.append(create.start_revision)
        while self._silent:
            if self._over:
                return
            time.sleep(0.01)
        yield response(created=True, watch_id=self._chosen)
        answers, self._answers = self._answers, ()
        self._revision = 200
        yield from map(messages.WatchResponse.FromString, answers)
        while not (answers or self._over):
            time.sleep(0.01)


def response(revision: int = 100, *events: int, **fields: Any) -> Any:
    made = messages.WatchResponse(**fields)
    made.header.revision = revision
    for mod_revision in events:
        kv = made.events.add().kv
        kv.key, kv.mod_revision, kv.version = b"/a", mod_revision, 1
    return made


def progress(revision: int, watch_id: int) -> bytes:
    report: bytes = response(revision, watch_id=watch_id).SerializeToString()
    return report


@pytest.fixture
def start_again() -> Callable[..., tuple[int, Told]]:
    """Return the revision at which a watch continues after the answers, and its events."""

    def run(*answers: bytes, chosen: int = FIRST) -> tuple[int, Told]:
        member, told = Member(*answers, chosen=chosen), Told()
        watches = EtcdWatches(member, "", Lineage(member))  # type: ignore[arg-type]
        with closing(watches):
            try:
                watches.watch("/a", None, told.events, told.fail, soon())
                until(lambda: len(member.starts) > 1)
            finally:
                member.end()
        return member.starts[1], told

    return run


def test_a_report_of_progress_counts_only_for_watches_that_it_covers(
    start_again: Callable[..., tuple[int, Told]],
) -> None:
    """The answer to the request for a watch may overtake a report that was made before it.

    A peer may have chosen the name of the watch itself, from 0 on, as ``etcd grpc-proxy`` does.
    """
    assert start_again(progress(150, -1))[0] == 100
    assert start_again(progress(150, FIRST))[0] == 150
    assert start_again(progress(150, -1), chosen=0)[0] == 100
    assert start_again(progress(150, 0), chosen=0)[0] == 150
    assert start_again(progress(150, 0), chosen=1)[0] == 100


def test_progress_does_not_complete_a_divided_answer(
    start_again: Callable[..., tuple[int, Told]],
) -> None:
    """Of a revision whose changes have not all come, the watch gets all again."""
    part = response(101, 101, watch_id=FIRST).SerializeToString() + FRAGMENT
    again, told = start_again(part, progress(150, FIRST))
    assert again <= 101
    assert told.all == []


def test_a_watch_that_is_not_in_place_in_time_is_forgotten() -> None:
    """Its caller has no handle to close it."""
    member, told = Member(silent=True), Told()
    with closing(EtcdWatches(member, "", Lineage(member))) as watches:  # type: ignore[arg-type]
        try:
            with pytest.raises(OperationTimeoutError, match="not in place"):
                watches.watch("/a", None, told.events, told.fail, soon(0.2))
            assert watches.back()
        finally:
            member.end()

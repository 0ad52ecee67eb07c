"""What the tests of elections share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import batchkeeper as bk
from batchkeeper.coordination import Election

from ..waiting import PATIENCE, until
from .in_line import line

#: Seconds: a session that lives through any pause of the machine.
LONG: Final = 30.0

PATH: Final = "/elections/e"


class Heard:
    """A listener that notes the events of an election."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, event: str) -> None:
        self.events.append(event)

    def wait(self, *expected: str) -> None:
        """Wait for as much as is expected; it must be just that."""
        until(
            lambda: len(self.events) >= len(expected),
            f"waited for {expected}, but heard {self.events}",
        )
        assert self.events == list(expected)


def entries(store: bk.MetadataStore) -> list[str]:
    """Return the names of the candidates' values, in the order of the line."""
    return line(store, PATH)


def remove_leader(store: bk.MetadataStore) -> None:
    """Delete the leader's value, as an operator does."""
    store.delete(f"{PATH}/{entries(store)[0]}").result(PATIENCE)


@contextmanager
def background(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run a function on a thread; yield a list that gets its result, or its error."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(call())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield ended
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the call did not end"


@contextmanager
def never_two(*elections: Election) -> Iterator[None]:
    """Look all the time whether two candidates lead at once, by one clock."""
    both: list[Any] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for one in elections:
                term = one.lost
                others = one.is_leader() and [
                    other for other in elections if other is not one and other.is_leader()
                ]
                # The same term before and after: it led in between, too.
                if others and one.is_leader() and one.lost is term:
                    both.append((one.value, [other.value for other in others]))
            done.wait(0.0002)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE)
    assert both == []

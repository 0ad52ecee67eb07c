"""Processes that use locks and what stands on them, and report what they did and saw.

A process reports each fact before it relies on it, so that its record is complete when it is killed
or stopped at any moment. A record is sent again, as a whole, when it has changed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import batchkeeper as bk
from batchkeeper.coordination import Counter, MetadataCache
from batchkeeper.ops.errors import LockLostError

from .coordination import Fenced, Finish, Hold, Job, Number, Read, Seen, Update
from .coordination_groups import View, Visit
from .recorder import PATIENCE

__all__ = ["LOOK", "Me", "Member", "outcome_of", "term_look", "write_line"]

_TESTS = Path(__file__).parents[1]
_MAIN = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "from histories.coordination_roles import main; main()"
)
_KINDS = (Fenced, Finish, Hold, Job, Number, Read, Seen, Update, View, Visit)
_RECORDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _KINDS}
_T = TypeVar("_T")

#: Seconds between two looks at what is held.
LOOK = 0.03


class Member:
    """A process with one store, which ends at the latest with the ``with`` block.

    Args:
        url: its store.
        name: its name in the records.
        roles: the names in ``coordination_roles.ROLES``: what its threads do.
        tasks: the names in ``coordination_tasks.TASKS``: what its tasks do.
        session_timeout: of its store.
        fault: a name in ``coordination_roles.FAULTS``: what is wrong with its code.
    """

    def __init__(
        self,
        url: str,
        name: str,
        roles: Sequence[str],
        tasks: Sequence[str] = (),
        session_timeout: float = 30.0,
        fault: str | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self.roles = roles
        self.tasks = tasks
        self.running = True
        self.paused = False
        self._records: dict[int, Any] = {}
        self._failure: str | None = None
        self._stopped = threading.Event()
        arguments = json.dumps([url, name, roles, tasks, session_timeout, fault])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(_TESTS), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def of(self, kind: type[_T]) -> list[_T]:
        """Return the records of a kind, in the order of their begin."""
        return [record for record in list(self._records.values()) if type(record) is kind]

    def at(self, kind: type[_T], path: str) -> list[_T]:
        """Return the records of a kind and a path."""
        return [record for record in self.of(kind) if getattr(record, "path", None) == path]

    def count(self, counts: Callable[[Any], bool]) -> int:
        """Return the number of the records for which ``counts`` is true."""
        return sum(map(counts, list(self._records.values())))

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until ``holds`` is true."""
        give_up = time.monotonic() + PATIENCE
        while not holds():
            self.check()
            assert time.monotonic() < give_up, f"{self.name}: {otherwise}"
            time.sleep(0.02)

    def check(self) -> None:
        """Raise what has failed in the process."""
        assert self._failure is None, self._failure
        assert not self.running or self._process.poll() is None, f"{self.name} died by itself"

    def pause(self) -> None:
        """Stop the process in the middle of what it does."""
        self.paused = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` does."""
        self.running = False
        self._process.kill()
        self._process.wait()
        self._reader.join()  # All that the process has written is in the pipe.
        for record in self._records.values():
            if getattr(record, "outcome", None) == "pending":
                record.outcome = "unknown"

    def tell(self, *command: Any) -> None:
        """Send a command to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Let all roles end. The store stays open, so that caches can still be looked at."""
        self.tell("stop")
        self.until(self._stopped.is_set, "a role does not end")

    def look(self, revisions: dict[str, int], patience: float) -> list[Read]:
        """Read through its cache until it shows these revisions of paths, and return the reads."""
        found = self._ask(Read, "look", revisions, patience)
        return [read for read in found if read.path in revisions]  # Others are of the group.

    def view(self) -> list[View]:
        """Return how it sees the group, if it uses that."""
        return self._ask(View, "view")

    def _ask(self, kind: type[_T], *command: Any) -> list[_T]:
        """Send a command, and return the records that come of it."""
        before = len(self.of(kind))
        self._stopped.clear()
        self.tell(*command)
        self.until(self._stopped.is_set, f"it does not answer {command}")
        return self.of(kind)[before:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *caught: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, kind, fields = json.loads(line)
            if kind == "stopped":
                self._stopped.set()
            elif kind == "failed":
                self._failure = fields
            else:
                self._records[number] = _RECORDS[kind](**fields)


# In the process


class Me:
    """The shared state of the roles of this process.

    Attributes:
        view: how the process sees the group, if a role uses that.
    """

    _numbers: ClassVar = itertools.count()  # of all records of this process

    def __init__(self, store: Any, name: str, stopping: threading.Event) -> None:
        self.store = store
        self.name = name
        self.dice = random.Random(name)
        self.stopping = stopping
        self.view: Callable[[], View] | None = None
        self._lock = threading.Lock()  # guards the following field, and the records in it
        self._holds: dict[int, tuple[Hold, Callable[[], tuple[bool, float]]]] = {}

    @cached_property
    def counter(self) -> Counter:
        return Counter(self.store, "/counter", block=5)

    @cached_property
    def cache(self) -> MetadataCache[bytes]:
        return MetadataCache(self.store, "/cache")

    def report(self, record: Any, number: int | None = None) -> int:
        """Report a record, or again one that has changed; return its number."""
        number = next(self._numbers) if number is None else number
        write_line([number, type(record).__name__, asdict(record)])
        return number

    @contextmanager
    def holding(
        self, hold: Hold, look: Callable[[], tuple[bool, float]], number: int | None = None
    ) -> Iterator[None]:
        """Report a hold that has begun, what looks at it show, and its end."""
        number = self.report(hold, number)
        with self._lock:
            self._holds[number] = hold, look
        try:
            yield
        finally:
            with self._lock:
                del self._holds[number]
                hold.released = time.monotonic()
                self.report(hold, number)

    def play(self, role: Callable[[Me], None]) -> threading.Thread:
        """Play a role in a thread, and report an exception in it."""

        def run() -> None:
            try:
                role(self)
            except BaseException:
                write_line([0, "failed", traceback.format_exc()])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Look at all that is held, without end."""
        while True:
            self.look_once()
            time.sleep(LOOK)

    def look_once(self) -> None:
        """Look at all that is held."""
        with self._lock:
            for number, (hold, look) in self._holds.items():
                at = time.monotonic()
                held, until = look()
                hold.look(at, until, held=held)
                self.report(hold, number)

    def rest(self, longest: float) -> None:
        """Do nothing, up to ``longest`` seconds."""
        self.stopping.wait(self.dice.uniform(0.0, longest))


def write_line(line: Any) -> None:
    # A single short write: it arrives in the pipe completely or not at all.
    os.write(1, json.dumps(line).encode() + b"\n")


def term_look(election: Any, token: int) -> Callable[[], tuple[bool, float]]:
    """Return a look at one term of a candidate."""

    def look() -> tuple[bool, float]:
        leads, until = election.is_leader(), election.held_until()
        # It may have been elected again meanwhile.
        with suppress(LockLostError):
            if election.fencing_token == token:
                return leads, until
        return False, -math.inf

    return look


def outcome_of(error: bk.MetadataStoreError) -> Any:
    return "unknown" if error.outcome == "unknown" else "not_applied"

"""The jobs of a queue, and the jobs that look free. A pure object: no I/O, no threads.

A job is a sequential value ``jobs/PPP-NNNNNNNNNN`` below the path of the queue: its priority, then
the number that the store has appended. So the order of the names is the order of the jobs. The
claim of a job is the ephemeral value ``claims/PPP-NNNNNNNNNN``.

Reads and events show both, some time after a change. A job that looks free may be taken; then the
store refuses the attempt. Each refusal has a cause, which an event will show, unless an event has
already shown it since the job was picked. So a refused job is hidden until its next event: it is
neither tried again in vain nor forgotten.
"""

from __future__ import annotations

import bisect
import random
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["ClaimedJob", "JobBoard", "is_job"]

_JOB: Final = re.compile(r"[0-9]{3}-[0-9]{10,}")
# The number of jobs among which an attempt chooses.
_MOST_SPREAD: Final = 64


def is_job(name: str) -> bool:
    """Return whether a name is the name of a job."""
    return _JOB.fullmatch(name) is not None


class ClaimedJob:
    """A job that a worker has claimed, on either face."""


class JobBoard:
    """The jobs of a queue as one object sees them. All methods take names of jobs.

    Each method that changes the board returns whether another job looks free now.
    """

    def __init__(self) -> None:
        self._jobs: set[str] = set()
        self._claims: set[str] = set()
        self._hidden: set[str] = set()
        self._tried: dict[str, bool] = {}  # with whether an event has come since it was picked
        self._free: list[str] = []  # jobs in no other collection, sorted
        self._spread = 1

    def replace(self, jobs: Iterable[str], claims: Iterable[str]) -> bool:
        """Replace all jobs and claims with those that a read has found."""
        self._jobs = set(filter(is_job, jobs))
        self._claims = set(claims)
        self._hidden.clear()
        self._tried = dict.fromkeys(self._tried, True)
        self._free = sorted(self._jobs - self._claims - self._tried.keys())
        return bool(self._free)

    def job_event(self, name: str, *, there: bool) -> bool:
        """Note that a job was created, changed or deleted."""
        return is_job(name) and self._event(self._jobs, name, there)

    def claim_event(self, name: str, *, there: bool) -> bool:
        """Note that a claim was created or deleted."""
        return self._event(self._claims, name, there)

    def pick(self) -> str | None:
        """Return a free job to try, or ``None``. No other caller gets it until :meth:`tried`.

        It is the first job, unless others claim jobs at the same time: after refusals, it is one of
            the first few, so that workers do not all try the same one.
        """
        try:
            name = self._free.pop(random.randrange(min(self._spread, len(self._free))))  # noqa: S311
        except (IndexError, ValueError):  # None is free, or a signal handler has taken the last.
            return None
        self._tried[name] = False
        return name

    def tried(self, name: str, claimed: bool | None) -> bool:
        """Note the end of an attempt: it was refused if ``claimed`` is ``False``.

        ``None`` means that it had no result.
        """
        seen = self._tried.pop(name)
        if claimed is not None:
            if not seen:
                self._hidden.add(name)
            self._spread = max(1, self._spread // 2) if claimed else self._wider()
        return self._place(name)

    def _wider(self) -> int:
        return min(_MOST_SPREAD, self._spread * 2)

    def _event(self, names: set[str], name: str, there: bool) -> bool:
        if there:
            names.add(name)
        else:
            names.discard(name)
        self._hidden.discard(name)
        if name in self._tried:
            self._tried[name] = True
        return self._place(name)

    def _place(self, name: str) -> bool:
        """Put a job into the list of free ones or take it out; return whether it is new there."""
        free = (
            name in self._jobs
            and name not in self._claims
            and name not in self._hidden
            and name not in self._tried
        )
        at = bisect.bisect_left(self._free, name)
        known = self._free[at : at + 1] == [name]
        if free and not known:
            self._free.insert(at, name)
        elif known and not free:
            del self._free[at]
        return free and not known

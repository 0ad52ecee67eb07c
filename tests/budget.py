"""What the suite weighs, by folder, beside what it may weigh: ``budget.toml``.

Counts above the budget fail the run: tests, tests that need a server, servers and Sparks that were
started; and so does a run that leaves gigabytes on the disk. Seconds are shown only, because a busy
machine would fail them. Whoever adds a test above the budget takes another away, or says in the
change why the suite has to grow.

A run of everything (``--full``) has no budget.
"""

from __future__ import annotations

import os
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).parent

#: What is counted, as the columns of the table.
COUNTS: Final = ("tests", "on servers", "servers", "sparks")

# A word of a command line, and what is started by it.
_PROGRAMS: Final = {
    "etcd": "servers",
    "org.apache.zookeeper.server.quorum.QuorumPeerMain": "servers",
    "org.apache.hadoop.hbase.master.HMaster": "servers",
    "spark-submit": "sparks",
}

_SLOWEST: Final = 10
# The most bytes that tests which have passed may leave on the disk.
_LEFT: Final = 2**30


class Budget:
    """Counts what the tests of this process start, and adds up what all processes report."""

    def __init__(self) -> None:
        self._started: Counter[str] = Counter()
        self._here = threading.local()
        self._counts: dict[str, Counter[str]] = {}
        self._seconds: Counter[str] = Counter()
        self._left = 0  # the bytes that the tests have left on the disk
        self._allowed: dict[str, dict[str, int]] = tomllib.loads(
            (TESTS / "budget.toml").read_text("utf-8")
        )
        self._listen()

    def _listen(self) -> None:
        """Count the programs that this process starts, from now on.

        An audit hook would be called in the middle of ``sys.settrace`` as well, which fails in
        another thread meanwhile.
        """
        start = subprocess.Popen.__init__

        @wraps(start)
        def counted(popen: Any, args: Any, *more: Any, **options: Any) -> None:
            self._count(args)
            start(popen, args, *more, **options)

        subprocess.Popen.__init__ = counted  # type: ignore[method-assign]

    def _count(self, words: Any) -> None:
        if getattr(self._here, "shared", False):
            return
        # A program that is asked for its version serves nobody.
        for word in words if isinstance(words, list) and "--version" not in words else ():
            if program := _PROGRAMS.get(os.path.basename(os.fspath(word))):
                self._started[program] += 1

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Count nothing in a block that starts what tests share: each process of a run has one.

        Other threads are counted.
        """
        before = getattr(self._here, "shared", False)
        self._here.shared = True
        try:
            yield
        finally:
            self._here.shared = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Say in a test's last report what it has started."""
        item.user_properties[:] = [
            *((name, count) for name, count in self._started.items()),
            ("on servers", int(item.get_closest_marker("server") is not None)),
        ]
        report = yield
        if report.when == "teardown":
            self._started.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a report, in the process that prints the results."""
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        if report.when == "teardown":
            counts = self._counts.setdefault(folder(file), Counter())
            counts["tests"] += 1
            counts.update(dict(report.user_properties))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a folder is above its budget, or the disk."""
        self._left = _size(session.config.option.basetemp)
        if session.exitstatus == pytest.ExitCode.OK and self._excess(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Print the table, the slowest files, and what is above the budget."""
        if config.option.collectonly or not self._counts:
            return
        terminalreporter.section("the budget (tests/budget.toml): counted / allowed")
        row = "{:<16}{:>14}{:>14}{:>11}{:>9}{:>14}".format
        terminalreporter.line(row("folder", *COUNTS, "seconds"))
        for name in sorted(self._counts):
            seconds = sum(s for file, s in self._seconds.items() if folder(file) == name)
            cells = [f"{self._counts[name][what]} / {self._may(name, what)}" for what in COUNTS]
            shown = f"{seconds:.0f} / {self._may(name, 'seconds')}"
            terminalreporter.line(row(name, *cells, shown))
        slowest = self._seconds.most_common(_SLOWEST)
        terminalreporter.line("slowest files: " + ", ".join(f"{f} {s:.0f} s" for f, s in slowest))
        for line in self._excess(config):
            terminalreporter.line(line, red=True)

    def _excess(self, config: pytest.Config) -> list[str]:
        if config.option.full:
            return []
        above = [
            f"above the budget: tests/{name} has {counts[what]} {what}, and may have "
            f"{self._may(name, what)}; take some away (tests/budget.toml)"
            for name, counts in sorted(self._counts.items())
            for what in COUNTS
            if counts[what] > self._may(name, what)
        ]
        if self._left > _LEFT:
            above.append(
                f"above the budget: the tests have left {self._left >> 20:,} MiB on the disk, and "
                f"may leave {_LEFT >> 20:,} (idle.py: no_data_left)"
            )
        return above

    def _may(self, name: str, what: str) -> int:
        return self._allowed.get(name, {}).get(what, 0)


def _size(directory: str | None) -> int:
    """Return the bytes on the disk below a directory of this run, and 0 if it has none."""
    size = 0
    for place, _, files in os.walk(directory or ""):
        for file in files:
            with suppress(FileNotFoundError):  # A process that is ending may still tidy up.
                size += os.lstat(os.path.join(place, file)).st_blocks * 512
    return size


def folder(file: str) -> str:
    """Return the folder that a test file counts for; those beside this one have one together."""
    below = Path(file).parts[1:] if file.startswith("tests") else Path(file).parts
    return below[0] if len(below) > 1 else "."

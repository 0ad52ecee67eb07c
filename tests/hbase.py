"""The HBase of the tests: fetched if it is missing, and left out if it cannot be fetched.

All other servers come with wheels. A machine that reaches only the Python package index passes
without HBase, and the last line of the run says what has not run.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final, NoReturn

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import HBaseServer, releases
from batchkeeper.testing.servers.installing import FetchError, install

__all__ = ["NotRun", "Tables", "fetch"]

# The reason of a test that is left out begins with it, and pytest counts it as such.
_LEFT_OUT: Final = "HBase: "
_CATEGORY: Final = "not run"
# What Ivy says of a file that it could not fetch: the server, and an exception of Java's.
_UNREACHABLE: Final = re.compile(r"error at url https?://([^/\s]+).*\(([^()]*)\)$", re.MULTILINE)

# To make a table takes HBase 0.3 s, for the most part waiting.
_AHEAD: Final = 6
_MAKERS: Final = 3


def fetch(folder: Path) -> None:
    """Have the jars of an HBase on this machine, or skip the test.

    They have to be had if ``BATCHKEEPER_HBASE`` names a version.

    Args:
        folder: one that the processes of this run share. One of them fetches.
    """
    named = os.environ.get("BATCHKEEPER_HBASE")
    if named == releases.NO_HBASE:
        _leave_out(f"BATCHKEEPER_HBASE is {named}")
    release = releases.hbase_release()
    if release.installed:
        return
    with (folder / "hbase.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "hbase.failed"
        if not failed.exists():
            try:
                install(release)
            except FetchError as error:
                if named:
                    raise
                failed.write_text(_in_one_line(error))
            else:
                return
        why = failed.read_text()
    _leave_out(
        f"its jars could not be fetched {why}; `batchkeeper servers install hbase` fetches them, "
        f"and BATCHKEEPER_HBASE={releases.NO_HBASE} does not try"
    )


def _in_one_line(error: FetchError) -> str:
    found = _UNREACHABLE.search(str(error))
    return f"from {found[1]} ({found[2]})" if found else f"({str(error).splitlines()[0]})"


def _leave_out(why: str) -> NoReturn:
    pytest.skip(f"{_LEFT_OUT}{why}")


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    skipped = report.longrepr  # the file, the line and the reason
    return str(skipped[2]).removeprefix("Skipped: ") if isinstance(skipped, tuple) else ""


class NotRun:
    """Says in the last line of a run what it has left out, in the process that prints the results.

    Skips for any other reason stay skips, which fail the run (``conftest.py``). The line is also
    written to a file of the run, from which ``./run test`` has it.
    """

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Count what is left out by itself, and not in a line for each test."""
        if report.skipped and _reason(report).startswith(_LEFT_OUT):
            return _CATEGORY, "-", _CATEGORY.upper()
        return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Print the line after the summary of pytest."""
        yield
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or hasattr(session.config, "workerinput"):
            return
        reports = reporter.stats.get(_CATEGORY)
        if not reports:
            return
        line = f"{_CATEGORY}: {len(reports)} tests of {_reason(reports[0])}"
        reporter.write_line(line, yellow=True)
        if session.config.option.basetemp:
            folder = Path(session.config.option.basetemp)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "not-run").write_text(f"{line}\n")


class Tables:
    """Gives each test a table for itself, empty: what is left of deleted paths slows its scans.

    Some are made ahead, while tests run. They stay until the server ends.
    """

    def __init__(self, server: HBaseServer) -> None:
        self._server = server
        self._numbers = count()
        self._makers = ThreadPoolExecutor(_MAKERS)
        self._made: deque[Future[str]] = deque()

    def next(self) -> str:
        """Return the URL of a table."""
        while len(self._made) <= _AHEAD:
            self._made.append(self._makers.submit(self._make, next(self._numbers)))
        return self._made.popleft().result()

    def _make(self, number: int) -> str:
        url = f"{self._server.url}/test-{number}"
        bk.open_store(url, connect_timeout=60.0).close()
        return url

    def close(self) -> None:
        self._makers.shutdown(cancel_futures=True)

"""What a run does where tests fail: it names each at once, and a disk that is full ends it.

pytest names them at the end, which a run that is cut off does not reach.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

# The bytes that a whole run needs on the disk at a time, with a reserve.
_DISK: Final = 2 * 2**30
# etcd reserves 64 MiB at a time, and so a disk is full to it that has less.
_FULL: Final = 256 * 2**20


class Failing:
    """Ends a run that has no disk to run on, and names the tests that fail.

    Servers on a full disk fail one after the other, and each takes its minute.
    """

    def pytest_configure(self, config: pytest.Config) -> None:
        """Refuse to begin without the space for a whole run."""
        self._plugins = config.pluginmanager
        self._disk = Path(config.option.basetemp or tempfile.gettempdir()).absolute().parent
        if (free := self._free()) < _DISK:
            pytest.exit(
                f"the tests' servers need {_DISK >> 20:,} MiB on the disk of {self._disk}, "
                f"but only {free >> 20:,} MiB are free",
                returncode=pytest.ExitCode.USAGE_ERROR,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """End the run after a test that a full disk may have failed."""
        report = yield
        if report.failed and (free := self._free()) < _FULL:
            item.session.shouldstop = (
                f"the disk of {self._disk} is full: only {free >> 20:,} MiB are free"
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a test that failed, in the process that prints the results."""
        reporter = self._plugins.get_plugin("terminalreporter")
        if report.failed and reporter is not None and reporter.verbosity <= 0:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.partition("\n")[0] if crash else ""
            reporter.write(f"\n{report.nodeid} ({report.when}): {why}\n", red=True)

    def _free(self) -> int:
        return shutil.disk_usage(self._disk).free

"""What every store must do holds without the accelerator, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.full
@pytest.mark.server
def test_answers_and_transactions_are_the_same_without_it(tmp_path: Path) -> None:
    """The tests of conformance on them pass on all stores. `tox -e pure` runs the others, too.

    The tests beside this one compare each function with its twin, on single inputs.
    """
    files = [TESTS / "conformance" / f"test_{name}.py" for name in ("answers", "transactions")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not single"),
            *("-p", "no:xdist", f"--basetemp={tmp_path / 'pytest'}", *map(str, files)),
        ],
        cwd=TESTS.parent,
        env={**os.environ, "BATCHKEEPER_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr

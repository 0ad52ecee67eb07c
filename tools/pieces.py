"""Measures the pieces of the hot path, and compares them with the last time on this machine.

``tox -e bench`` calls it with options of pytest. It fails if the median of a piece has grown by
more than ``LIMIT`` since. Figures of different machines say nothing about each other, so they are
kept in a folder that is not part of the repository.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

LIMIT: Final = "15%"
KEPT: Final = Path(__file__).resolve().parent.parent / ".scratch" / "pieces"


def main(options: list[str]) -> int:
    """Measure, and return the exit code of pytest."""
    command = [
        *(sys.executable, "-m", "pytest", "-m", "benchmark"),
        *(f"--benchmark-storage={KEPT}", "--benchmark-autosave"),
        "--benchmark-columns=median,min,iqr,rounds",
        *options,
    ]
    if any(KEPT.glob("*/*.json")):
        command += ["--benchmark-compare", f"--benchmark-compare-fail=median:{LIMIT}"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Programs that tests run as separate processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

__all__ = ["run_python"]


def run_python(
    *arguments: str, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process, with arguments such as ``"-c"`` and a program."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)

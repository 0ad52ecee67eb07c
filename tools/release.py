"""Checks that a release can be made: the tag, the version and the changelog agree.

::

    python tools/release.py v0.1.0

The version stands in ``pyproject.toml`` only. ``CHANGELOG.md`` must have it in its first heading,
with a date. The exit code is 1 if something differs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

__all__ = ["main", "problems"]

ROOT: Final = Path(__file__).parent.parent
_HEADING: Final = re.compile(r"^## (\S+) \((.+)\)$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what stands against a release of this tag."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version: str = project["version"]
    found: list[str] = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and the version in pyproject.toml is {version}")
    heading = _HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None:
        found.append("CHANGELOG.md has no heading of the form '## VERSION (DATE)'")
    elif heading[1] != version:
        found.append(f"the first version in CHANGELOG.md is {heading[1]}, not {version}")
    elif not _DATE.fullmatch(heading[2]):
        found.append(f"CHANGELOG.md gives no date for {version}, but says {heading[2]!r}")
    return found


def main(tag: str) -> int:
    """Print what stands against a release, and return the exit code."""
    found = problems(tag)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

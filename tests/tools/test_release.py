"""The version: it stands in one place, and a release has a tag and a changelog that agree."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import batchkeeper

ROOT = Path(__file__).parents[2]


def check(tag: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of the check in another root."""
    tool = root / "tools" / "release.py"
    tool.parent.mkdir()
    tool.write_bytes((ROOT / "tools" / "release.py").read_bytes())
    command = [sys.executable, str(tool), tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_installed_version_is_that_of_the_project() -> None:
    """The metadata have the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (
        importlib.metadata.version("batchkeeper") == batchkeeper.__version__ == project["version"]
    )


def test_the_version_stands_in_one_place() -> None:
    """No module and no other file of the build repeats the version, where it could grow stale."""
    version = importlib.metadata.version("batchkeeper")
    modules = [*ROOT.glob("*.py"), *ROOT.glob("[!.]*/**/*.py"), ROOT / "tox.ini", ROOT / "run"]
    modules = [
        path for path in modules if path.relative_to(ROOT).parts[0] not in {"tests", "build"}
    ]
    assert len(modules) > 100
    assert [path for path in modules if f'"{version}"' in path.read_text()] == []
    assert [path for path in modules if "__version__ =" in path.read_text()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "heading", "problem"),
    [
        ("v1.2.0", "## 1.2.0 (2027-01-31)", None),
        ("1.2.0", "## 1.2.0 (2027-01-31)", "the tag is 1.2.0"),
        ("v1.2.1", "## 1.2.0 (2027-01-31)", "the tag is v1.2.1"),
        ("v1.2.0", "## 1.1.0 (2026-12-01)", "the first version in CHANGELOG.md is 1.1.0"),
        ("v1.2.0", "## 1.2.0 (not released)", "CHANGELOG.md gives no date"),
        ("v1.2.0", "", "CHANGELOG.md has no heading"),
    ],
)
def test_a_release_needs_a_tag_and_a_changelog(
    tag: str, heading: str, problem: str | None, tmp_path: Path
) -> None:
    """If tag, version and changelog differ, the check fails and says which."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n{heading}\n\n- More.\n")
    done = check(tag, tmp_path)
    assert done.returncode == (problem is not None)
    assert done.stdout.startswith(problem or "")

"""The scripts that complete the command, in real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import Run

# The words of a line, the last of which is to be completed, and what it may become.
LINES = [
    (("ge",), {"get"}),
    (("get", "--pref"), {"--prefix"}),
    (("get", "/a", "-o", "js"), {"json", "jsonl"}),
    (("hubs", "dr"), {"drain"}),
    (("spark", "copy", "--over"), {"--overwrite"}),
    (("bench", "--max-in"), {"--max-in-flight"}),
    (("completion", "ba"), {"bash"}),
]

# Calls the function that bash would call when the user hits the tabulator.
BASH = """
source "$1"; shift
name=$(complete -p batchkeeper); name=${name##*-F }; name=${name%% *}
COMP_WORDS=(batchkeeper "$@"); COMP_CWORD=$#; $name
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Path:
    """The script for bash, in a file."""
    file = tmp_path / "completion"
    code, output, errors = run("completion", "bash")
    assert (code, errors) == (0, [])
    file.write_bytes(output)
    return file


def test_bash_completes(script: Path, tmp_path: Path) -> None:
    """Commands, including those loaded on demand, their options, and the values of options."""
    for words, expected in LINES:
        done = subprocess.run(
            ["bash", "-c", BASH, "bash", str(script), *words],
            capture_output=True,
            text=True,
            check=True,
        )
        assert set(done.stdout.split()) == expected, words
    (tmp_path / "records.jsonl").touch()
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", str(script), "load", "rec"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.split() == ["records.jsonl"]


@pytest.mark.parametrize("shell", [s for s in ("bash", "zsh", "fish") if shutil.which(s)])
def test_a_shell_can_read_its_script(shell: str, run: Run) -> None:
    """Each shell that is on this machine finds no mistake in its script."""
    code, output, errors = run("completion", shell)
    assert (code, errors) == (0, [])
    done = subprocess.run(
        [shell, "-n", "/dev/stdin"], input=output, capture_output=True, check=True
    )
    assert done.stderr == b""


def test_another_shell_is_bad_input(run: Run) -> None:
    """The message has the shells that there are."""
    code, _, (error,) = run("completion", "ksh")
    assert code == 3
    assert all(shell in error for shell in ("bash", "zsh", "fish"))

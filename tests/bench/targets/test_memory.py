"""The memory that a long stream of puts takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from targets.command import main
from targets.memory import resident_bytes

# They measure the project, and not what its users get.
pytestmark = pytest.mark.full

PROGRAMS = Path(__file__).parents[3] / "bench" / "targets"


def test_a_stream_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The puts are counted, and the growth of the process is compared with the limit."""
    assert (
        main(["memory", "rocksdb", "--dir", str(tmp_path), "--puts", "5000", "--limit", "1000"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("5000 puts in ")
    assert out.endswith("limit 1000 MiB: kept\n")


def test_too_much_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Growth beyond the limit, here less than nothing, ends with 1."""
    assert main(["memory", "memory", "--dir", str(tmp_path), "--puts", "10", "--limit", "-1"]) == 1
    assert "exceeded" in capsys.readouterr().out


def test_a_bad_target_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that cannot be opened ends with 2 and the reason."""
    assert main(["memory", "nonsense", "--dir", str(tmp_path)]) == 2
    assert "neither a store's URL" in capsys.readouterr().err


def test_what_is_held_is_seen() -> None:
    """The measured memory grows with the memory of the process."""
    before = resident_bytes()
    held = bytearray(b"x" * (32 << 20))
    assert resident_bytes() - before > 16 << 20
    assert held


@pytest.mark.soak
def test_two_million_puts_take_bounded_memory(tmp_path: Path) -> None:
    """In a separate process, two million puts through one store add at most 64 MiB."""
    command = [sys.executable, str(PROGRAMS), "memory", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

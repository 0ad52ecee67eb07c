"""Runs commands in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import batchkeeper as bk
from batchkeeper import cli

Run: TypeAlias = Callable[..., tuple[int, bytes, list[str]]]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's own configuration file from naming stores."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BATCHKEEPER_CONFIG", raising=False)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A store on disk, which the commands of a test share, and find in the environment."""
    url = f"rocksdb://{tmp_path}/store"
    monkeypatch.setenv("BATCHKEEPER_STORE", url)
    bk.open_store(url).close()
    return url


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command in this process; return its exit code, its output and its lines of errors."""

    def run(*arguments: str) -> tuple[int, bytes, list[str]]:
        try:
            code = cli.main(arguments)
        except SystemExit as ended:  # as argparse ends
            code = int(str(ended.code))
        output, errors = capfdbinary.readouterr()
        return code, output, errors.decode().splitlines()

    return run

"""Runs jobs in the tests' process, on the session that all tests of the pipeline share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batchkeeper import cli

Job = Callable[..., tuple[int, Any, list[str]]]


@pytest.fixture
def job(spark: SparkSession, capfdbinary: pytest.CaptureFixture[bytes]) -> Job:
    """Run a job on the shared session, and return its exit code, its summary and its errors."""

    assert SparkSession.getActiveSession() is spark

    def run(*arguments: str | Path) -> tuple[int, Any, list[str]]:
        capfdbinary.readouterr()
        try:
            code = cli.main(["spark", *map(str, arguments), "-o", "json"])
        except SystemExit as ended:  # as argparse ends
            code = int(str(ended.code))
        output, errors = capfdbinary.readouterr()
        return code, json.loads(output) if output else None, errors.decode().splitlines()

    return run

"""Programs that tests run as separate processes."""

from __future__ import annotations

import sys
from typing import Final

from batchkeeper.pipeline.java import spark_java_home
from batchkeeper.testing.programs import run_python

__all__ = ["COMMAND", "TINY_BENCH", "run_python", "spark_environment"]

#: The command line, without its arguments.
COMMAND: Final = (
    *(sys.executable, "-c"),
    "import sys; from batchkeeper.cli import main; sys.exit(main())",
)

#: Arguments of ``batchkeeper bench`` that make it short: few operations and settings.
TINY_BENCH: Final = (
    *("--in-flight", "16", "--keys", "64", "--rounds", "2", "--warm-up", "0"),
    *("--seconds", "60ms", "--max-ops", "5,50", "--max-delay", "5ms"),
    "--no-report",
)


def spark_environment() -> dict[str, str]:
    """Return the variables that Spark needs to run on loopback, with the tests' Python."""
    return {
        "JAVA_HOME": str(spark_java_home()),
        # Workers run the tests' Python, and not the first one on PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

"""Shows errors to Spark's users in one line, without the stacks of two languages."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from ..ops.errors import MetadataStoreError

__all__ = ["plain_errors"]

# Only Spark's Python workers load it, on the driver and on executors.
_IN_WORKER = "pyspark.worker_util"
# Spark sets it for its workers if spark.sql.execution.pyspark.udf.hideTraceback.enabled is on.
_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors() -> Generator[None]:
    """Make Spark show an error of this package in one line, without its stack.

    The stack does not help a user who passed a wrong URL. Spark shows other errors as usual.
    """
    try:
        yield
    except MetadataStoreError as error:
        # Spark reads the variable when it writes the error to Java, and then ends the worker. So
        # the variable cannot affect another error.
        if _IN_WORKER in sys.modules:
            os.environ[_HIDE] = "1"
        error.__suppress_context__ = True
        raise

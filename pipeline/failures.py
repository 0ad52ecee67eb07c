"""Shows errors to Spark's users in one line, without the stacks of two languages."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from ..ops.errors import MetadataStoreError

__all__ = ["plain_errors"]

# Loaded by Spark's Python workers, on the driver and on executors, and by nobody else.
_IN_WORKER = "pyspark.worker_util"
# Spark sets it for its workers where spark.sql.execution.pyspark.udf.hideTraceback.enabled is on.
_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors() -> Generator[None]:
    """Make Spark show an error of this package in one line, without its stack.

    The stack does not help a user who passed a wrong URL. Spark shows other errors as usual.
    """
    try:
        yield
    except MetadataStoreError as error:
        # Spark reads it where it writes the error to Java, and ends the worker after that: no
        # other error of this process can follow.
        if _IN_WORKER in sys.modules:
            os.environ[_HIDE] = "1"
        error.__suppress_context__ = True
        raise

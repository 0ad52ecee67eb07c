"""Starts Spark for a job quietly, or uses the active session, and shows errors in one line."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from ...ops.errors import MetadataStoreError
from .. import register
from ..java import JavaMissingError, provide_java

__all__ = [
    "DEFAULT_MASTER",
    "JobError",
    "explain",
    "spark_session",
    "started",
    "submitted",
]

#: All cores of this machine. A task has up to four attempts, as on a cluster.
DEFAULT_MASTER: Final = "local[*,4]"

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    # The command has its own progress bar.
    "spark.ui.showConsoleProgress": "false",
    # By default, Spark limits a batch to 10,000 rows only. With large values, a worker cannot hold
    # these.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Workers connect to this machine even if its host name resolves to another address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# The last line of a Python traceback, with the error.
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception)): (.*)")
_OURS: Final = re.compile(r"\bbatchkeeper\.[\w.]*?(\w+Error): (.+)")
_OF_ROW: Final = re.compile(r".+?: (\w+Error): ")
# The line that Java prints when it crashes or fails to start.
_JAVA_RAISED: Final = re.compile(r"(?:Exception in thread \"main\" [\w.]+: |^Error: )(.+)")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


class JobError(Exception):
    """A job cannot run or has failed. The message is one line for the user.

    ``cause`` is the class name of the original error, if it is known.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


@contextmanager
def spark_session(
    master: str | None, settings: Mapping[str, str], *, verbose: bool = False
) -> Generator[SparkSession, None, None]:
    """Yield a Spark session with the data source registered, and stop it if it was started here.

    An active session, for example of a notebook, is used unchanged.

    Args:
        master: where Spark runs. With ``None``, ``spark-submit`` or the environment decides, and
            otherwise Spark runs on this machine.
        settings: Spark's settings, by name.
        verbose: show the output of Java.

    Raises:
        JobError: Spark cannot be started. The message says why.
    """
    found = SparkSession.getActiveSession()
    if found is not None:
        register(found)
        yield found
        return
    spark = _start(master, settings, verbose=verbose)
    try:
        register(spark)
        yield spark
    finally:
        # A second interrupt or a dead JVM does not change the result of the job.
        with suppress(Exception):
            spark.stop()


def _start(master: str | None, settings: Mapping[str, str], *, verbose: bool) -> SparkSession:
    if master is not None and master.startswith("sc://"):
        return _connect(master, settings)
    try:
        provide_java()
    except JavaMissingError as error:
        raise JobError(str(error), "JavaMissingError") from error
    # By default, the workers run the same Python as the driver. PySpark itself reads only this
    # variable.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName("batchkeeper")
    if not submitted():
        builder = builder.master(master or DEFAULT_MASTER)
        local = (master or DEFAULT_MASTER).startswith("local[")
        for name, value in {**_DEFAULTS, **(_LOCAL_DEFAULTS if local else {})}.items():
            builder = builder.config(name, value)
    elif master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = started(builder, verbose=verbose or submitted())
    if not verbose:
        with suppress(Exception):  # Spark Connect has no context.
            spark.sparkContext.setLogLevel("OFF")
    return spark


def started(builder: SparkSession.Builder, *, verbose: bool = False) -> SparkSession:
    """Return the session, without what Java and Spark write meanwhile.

    Raises:
        JobError: Spark cannot be started. The error has what was written.
    """
    with tempfile.TemporaryFile() as said:
        try:
            with _java_speaks_into(None if verbose else said.fileno()), _interrupts_wait():
                return builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            raise JobError(
                f"Spark cannot be started: {_start_failure(error, said.read().decode())}"
            ) from error


def submitted() -> bool:
    """Say whether ``spark-submit`` has started this program, and so decides where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect, which needs no Java here."""
    builder = SparkSession.builder.remote(url)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with redirect_stderr(StringIO()):
            return builder.getOrCreate()
    except SystemExit as error:  # pyspark exits if the packages for Spark Connect are missing.
        raise JobError(
            "Spark Connect's packages are missing: pip install 'pyspark[connect]'", "InputError"
        ) from error
    except Exception as error:
        raise JobError(f"{url} cannot be used: {explain(error)[0]}") from error


@contextmanager
def _java_speaks_into(descriptor: int | None) -> Generator[None, None, None]:
    """Redirect the standard error of processes started in this block to a file.

    Java and Spark print warnings before any setting could silence them, for example about Java's
    modules and about host names.
    """
    if descriptor is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _interrupts_wait() -> Generator[None, None, None]:
    """Delay Ctrl-C until the end of the block. A second Ctrl-C takes effect immediately.

    If PySpark is interrupted while Java starts, it removes the folder in which Java announces its
    port. Java then stays forever: it ends when PySpark closes its end of a pipe, but it has not yet
    begun to watch that pipe.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or current_thread() is not main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            handler(number, frame)
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _start_failure(error: Exception, said: str) -> str:
    # If Java did not start, only its own output says why.
    for line in said.splitlines():
        if found := _JAVA_RAISED.search(line):
            return found[1]
    return explain(error)[0]


def explain(error: BaseException) -> tuple[str, str]:
    """Return the message of an error in one line, and the class name of the original error."""
    if isinstance(error, JobError):
        return str(error), error.cause
    if isinstance(error, MetadataStoreError):
        return str(error), type(error).__name__
    text = str(error)
    if raised := _raised_in_python(text):
        return raised
    if isinstance(error, PythonException):
        return _first_line(text), ""
    # An error of py4j, which has no types.
    if (cause := getattr(error, "java_exception", None)) is not None:
        with suppress(Exception):
            while cause.getCause() is not None:
                cause = cause.getCause()
            said = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
            return _raised_in_python(said) or (_first_line(said), "")
    if isinstance(error, PySparkException):
        return _first_line(text), type(error).__name__
    if type(error).__module__.startswith("py4j.") or isinstance(error, ConnectionError | EOFError):
        return "the connection to Spark's Java process was lost", type(error).__name__
    return _first_line(text) or type(error).__name__, type(error).__name__


def _raised_in_python(text: str) -> tuple[str, str] | None:
    """Find our own error, or the one at the end of a Python worker's last traceback."""
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        # A JobError raised in a task contains the error of a row.
        of_row = _OF_ROW.match(message) if name == "JobError" else None
        return message.strip(), of_row[1] if of_row else name
    start = text.rfind("Traceback (most recent call last)")
    for line in text[start:].splitlines() if start >= 0 else ():
        if found := _RAISED.match(line):
            name = found[1].rpartition(".")[2]
            return f"{name}: {found[2].strip()}", name
    return None


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    line = next((line for line in lines if line), "")
    return _CONDITION.sub("", _SQLSTATE.sub("", line))

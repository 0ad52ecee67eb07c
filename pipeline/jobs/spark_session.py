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

__all__ = ["DEFAULT_MASTER", "JobError", "explain", "spark_session"]

#: All cores of this machine; a task is tried up to four times, as on a cluster.
DEFAULT_MASTER: Final = "local[*,4]"

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    # Ours tells more: rich's, on a terminal only.
    "spark.ui.showConsoleProgress": "false",
    # Spark counts 10,000 rows, and of large values that is more than a worker can hold.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Workers are found on this machine whatever its name resolves to.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# The last line of a Python traceback, which is the error that matters.
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception)): (.*)")
_OURS: Final = re.compile(r"\bbatchkeeper\.[\w.]*?(\w+Error): (.+)")
_OF_ROW: Final = re.compile(r".+?: (\w+Error): ")
# What Java says at its end, or instead of a beginning.
_JAVA_RAISED: Final = re.compile(r"(?:Exception in thread \"main\" [\w.]+: |^Error: )(.+)")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


class JobError(Exception):
    """A job that cannot be done or has failed; the message is for the user, in one line.

    ``cause`` is the name of the error's class where it happened, if that is known.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


@contextmanager
def spark_session(
    master: str | None, settings: Mapping[str, str], *, verbose: bool = False
) -> Generator[SparkSession, None, None]:
    """Give a Spark with the data source registered; end it afterwards if it was started here.

    A session that is there already (a notebook's, or what ``spark-submit`` started) is used as it
    is.

    Args:
        master: where Spark runs. ``None``: where ``spark-submit`` or the environment says, else on
            this machine.
        settings: of Spark, by their names.
        verbose: show what Java says.

    Raises:
        JobError: Spark cannot be started, with the reason.
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
        # A second interrupt, or a JVM that died, changes nothing about what the job did.
        with suppress(Exception):
            spark.stop()


def _start(master: str | None, settings: Mapping[str, str], *, verbose: bool) -> SparkSession:
    if master is not None and master.startswith("sc://"):
        return _connect(master, settings)
    try:
        provide_java()
    except JavaMissingError as error:
        raise JobError(str(error), "JavaMissingError") from error
    # What runs the driver runs the workers too, unless somebody says otherwise. PySpark itself
    # looks at this variable only.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName("batchkeeper")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit
    if not submitted:
        builder = builder.master(master or DEFAULT_MASTER)
        local = (master or DEFAULT_MASTER).startswith("local[")
        for name, value in {**_DEFAULTS, **(_LOCAL_DEFAULTS if local else {})}.items():
            builder = builder.config(name, value)
    elif master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryFile() as said:
        try:
            quiet = None if verbose or submitted else said.fileno()
            with _java_speaks_into(quiet), _interrupts_wait():
                spark = builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            raise JobError(
                f"Spark cannot be started: {_start_failure(error, said.read().decode())}"
            ) from error
    if not verbose:
        with suppress(Exception):  # Spark Connect has none.
            spark.sparkContext.setLogLevel("OFF")
    return spark


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect, which needs no Java here."""
    builder = SparkSession.builder.remote(url)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with redirect_stderr(StringIO()):
            return builder.getOrCreate()
    except SystemExit as error:  # As pyspark ends where what it needs for this is not installed.
        raise JobError(
            "Spark Connect's packages are missing: pip install 'pyspark[connect]'", "InputError"
        ) from error
    except Exception as error:
        raise JobError(f"{url} cannot be used: {explain(error)[0]}") from error


@contextmanager
def _java_speaks_into(descriptor: int | None) -> Generator[None, None, None]:
    """Give what is started meanwhile this file as its standard error.

    Java warns of its own modules, Spark of host names, and both of much else, before any setting
    could tell them not to.
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
    """Let Ctrl-C take effect at the end of the block; a second one at once.

    PySpark that is interrupted while Java starts takes away the folder in which Java wants to tell
    its port, and Java, which ends when PySpark's end of a pipe does, does not get so far as to
    watch that: it would stay for ever.
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
    # Where Java did not come up, its own words say why, and PySpark only that it did not.
    for line in said.splitlines():
        if found := _JAVA_RAISED.search(line):
            return found[1]
    return explain(error)[0]


def explain(error: BaseException) -> tuple[str, str]:
    """Return what an error of Spark comes down to, in one line, and its class where it happened."""
    if isinstance(error, JobError):
        return str(error), error.cause
    if isinstance(error, MetadataStoreError):
        return str(error), type(error).__name__
    text = str(error)
    if raised := _raised_in_python(text):
        return raised
    if isinstance(error, PythonException):
        return _first_line(text), ""
    # Of py4j, which has no types.
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
        # A job's own error in a task tells of a row: the error that the row has ended with.
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

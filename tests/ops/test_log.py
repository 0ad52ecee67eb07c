"""Where log events go, and their cost when they are not shown."""

from __future__ import annotations

import ast
import importlib.resources
import logging
import sys
from pathlib import Path

import pytest
import structlog

from batchkeeper.ops.log import get_logger

from ..programs import run_python

NAME = "batchkeeper.tests"

# The level as an argument; says whether structlog was imported, and what reached the logger.
A_STORE_IS_USED = """
import logging, sys
import batchkeeper as bk
form = "%(levelname)s %(name)s %(message)s"
logging.basicConfig(level=sys.argv[1], stream=sys.stdout, format=form)
with bk.open_store("memory://used") as store:
    store.put("/a", b"1").result()
    assert store.get("/a").result().value == b"1"
print("structlog" in sys.modules)
"""


def use_a_store(level: str) -> list[str]:
    """Return the lines of a process that logs with this level."""
    return run_python("-c", A_STORE_IS_USED, level, check=True).stdout.splitlines()


def test_a_store_whose_events_nobody_sees_does_not_import_structlog() -> None:
    """With Python's default logging, opening, using and closing a store load no log library."""
    assert use_a_store("WARNING") == ["False"]


@pytest.mark.slow
def test_the_first_event_that_is_seen_imports_structlog() -> None:
    """With the level info the events of a store's life come, rendered as key and value."""
    opened, closed, imported = use_a_store("INFO")
    assert opened.startswith("INFO batchkeeper.engine event='store opened' store='memory://used' ")
    assert closed.startswith("INFO batchkeeper.engine event='store closed' store='memory://used' ")
    assert imported == "True"


@pytest.mark.parametrize("method", ["debug", "info", "warning", "error"])
def test_the_standard_logger_decides_what_is_seen(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An event appears from its level on, and not below it, also if the level changes later."""
    log = get_logger(NAME)
    level = getattr(logging, method.upper())
    caplog.set_level(level + 1, NAME)
    getattr(log, method)("unseen", path="/a")
    assert caplog.record_tuples == []
    caplog.set_level(level, NAME)
    getattr(log, method)("seen", path="/a b", count=3)
    assert caplog.record_tuples == [(NAME, level, "event='seen' path='/a b' count=3")]


def test_an_exception_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """An exception is logged as an error, and both the text and the record have it."""
    try:
        raise LookupError("of the test")
    except LookupError as error:
        get_logger(NAME).exception("failed", path="/a")
        raised = error
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("event='failed' path='/a' exception='Traceback")
    assert record.exc_info is not None
    assert record.exc_info[1] is raised


def test_what_the_application_configures_is_for_its_own_loggers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Processors, classes and levels that an application gives structlog leave our events alone."""

    def drop(*_: object) -> None:
        raise structlog.DropEvent

    try:
        structlog.configure(
            processors=[drop], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
        )
        get_logger(NAME).warning("seen", path="/a")
    finally:
        structlog.reset_defaults()
    assert caplog.messages == ["event='seen' path='/a'"]


def test_an_event_is_not_lost_where_structlog_cannot_be_imported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without files left to open, no import works: the event is logged, and nothing is raised."""
    monkeypatch.setitem(sys.modules, "structlog", None)
    log = get_logger(NAME)
    log.warning("no files", path="/a")
    try:
        raise LookupError("of the test")
    except LookupError:
        log.exception("failed")
    warning, error = caplog.records
    assert (warning.levelname, warning.getMessage()) == ("WARNING", "event='no files' path='/a'")
    assert (error.levelname, error.getMessage().strip()) == ("ERROR", "event='failed'")
    assert error.exc_info is not None


def test_a_record_has_the_fields_of_its_event(caplog: pytest.LogCaptureFixture) -> None:
    """Formatters find each field under its name; one that every record has gets an underscore."""
    caplog.set_level(logging.INFO, NAME)
    get_logger(NAME).info("seen", path="/a", count=3, name="mine", message="text")
    (record,) = caplog.records
    fields = vars(record)
    assert (fields["event"], fields["path"], fields["count"]) == ("seen", "/a", 3)
    assert (fields["name_"], fields["message_"], record.name) == ("mine", "text", NAME)


def test_a_record_has_its_fields_also_without_structlog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way without structlog sets the same attributes."""
    monkeypatch.setitem(sys.modules, "structlog", None)
    get_logger(NAME).warning("no files", path="/a")
    fields = vars(caplog.records[0])
    assert (fields["event"], fields["path"]) == ("no files", "/a")


def test_fields_leave_the_attributes_of_an_application_s_records_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A factory that gives records a path of its own neither loses it nor makes the event fail."""
    usual = logging.getLogRecordFactory()

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        record.path = "the application's"
        return record

    logging.setLogRecordFactory(factory)
    try:
        get_logger(NAME).warning("seen", path="/a")
    finally:
        logging.setLogRecordFactory(usual)
    fields = vars(caplog.records[0])
    assert (fields["path"], fields["path_"]) == ("the application's", "/a")


@pytest.mark.slow
def test_no_event_of_ours_has_a_field_that_would_be_renamed() -> None:
    """So the attributes of records have the names that the code, and the text, show."""
    package = Path(str(importlib.resources.files("batchkeeper")))
    taken = vars(logging.makeLogRecord({})).keys() | {"asctime", "message"}
    folders = ("batching", "coordination", "hubs", "observability", "ops", "pipeline", "stores")
    modules = [path for folder in folders for path in package.joinpath(folder).rglob("*.py")]
    calls = [
        node
        for module in modules
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"log", "_log"}
    ]
    assert len(calls) > 50
    fields = {keyword.arg for call in calls for keyword in call.keywords} - {"exc_info"}
    assert fields & taken == set()

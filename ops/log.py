"""Sends log events to the standard logger ``batchkeeper`` and its children.

Without configuration, structlog prints every event, also debug events, to standard output. A
library must not do that, and must not configure logging for its application either. So this module
renders events with structlog and passes them to the standard library's logging, where the
application's own configuration decides. Each record also has the fields as attributes, ``event``
among them, as logging's ``extra`` sets them; formatters for JSON write these.

structlog takes half as long to import as the rest of the package, so the first event that passes
its level imports it. An event below its level costs one check of the standard logger, which caches
its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from structlog.processors import KeyValueRenderer
    from structlog.stdlib import BoundLogger

__all__ = ["Logger", "get_logger"]

# Attributes that every record has; ``extra`` must not set them.
_RESERVED: Final = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message"}


class Logger:
    """Passes events with their fields to a standard logger, as ``event='...' key=value ...``."""

    __slots__ = ("_bound", "_standard", "isEnabledFor")

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)
        self._bound: BoundLogger | None = None
        # Named like logging's method, because it is that method: every batch calls it.
        self.isEnabledFor = self._standard.isEnabledFor

    def debug(self, event: str, **fields: Any) -> None:
        if self.isEnabledFor(logging.DEBUG):
            self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self.isEnabledFor(logging.INFO):
            self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self.isEnabledFor(logging.WARNING):
            self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        if self.isEnabledFor(logging.ERROR):
            self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error, with the exception that is being handled."""
        if self.isEnabledFor(logging.ERROR):
            self._log("exception", event, fields)

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        try:
            bound = self._bound or self._bind()
        except Exception:
            # A log event must not make its caller fail. The import fails without file descriptors
            # or memory, which may be what the event reports, and at the end of the interpreter.
            rendered = " ".join(f"{key}={value!r}" for key, value in fields.items())
            extra = _extra({"event": event, **fields})
            write = partial(
                getattr(self._standard, method), "event=%r %s", event, rendered, extra=extra
            )
        else:
            write = partial(getattr(bound, method), event, **fields)
        # Nor may an application's filter or handler end the threads of this package.
        with suppress(Exception):
            write()

    def _bind(self) -> BoundLogger:
        import structlog

        # Bound at once, because the lazy proxy would create a logger for every event. It has its
        # own context, because an application's configuration is for its own loggers.
        self._bound = structlog.wrap_logger(
            self._standard,
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                _Rendering(structlog.processors.KeyValueRenderer(key_order=["event"])),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
        ).bind()
        return self._bound


class _Rendering:
    """The last processor: passes on an event as text and as fields."""

    def __init__(self, text: KeyValueRenderer) -> None:
        self._text = text

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> tuple[tuple[str], dict[str, Any]]:
        extra = _extra(event)
        return (self._text(logger, method, event),), {"extra": extra}


def _extra(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for a record. A name that every record has gets an underscore at its end."""
    taken = set(_RESERVED)
    factory = logging.getLogRecordFactory()
    if factory is not logging.LogRecord:
        # The application's own records have further attributes.
        taken |= vars(factory("", logging.NOTSET, "", 0, "", (), None)).keys()
    return {f"{key}_" if key in taken else key: value for key, value in fields.items()}


def get_logger(name: str) -> Logger:
    """Return a logger whose events reach ``logging.getLogger(name)``."""
    return Logger(name)

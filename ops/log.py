"""Where the package's log events go: to the standard logger ``batchkeeper`` and its children.

structlog without configuration prints every event, debug ones too, to standard output. A library
must not do that, and must not configure logging for its application either; so the events are
made with structlog and handed to the standard library's logging, where the application's own
configuration, or the lack of one, decides.
"""

from __future__ import annotations

import logging

import structlog

__all__ = ["get_logger"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger whose events reach ``logging.getLogger(name)`` as ``event key=value ...``."""
    # Bound at once: the lazy proxy would make a new logger for every event.
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    ).bind()
    return logger

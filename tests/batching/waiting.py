"""Waiting in the tests of the engine, where operations linger or time out after a minute."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from .. import waiting

#: Seconds; long enough for a slow machine, and well below that minute: a test that waited as long
#: could not tell an operation that hung from one that ended in time.
PATIENCE: Final = 20.0

AnyFuture = Future[Any]
until = partial(waiting.until, within=PATIENCE)

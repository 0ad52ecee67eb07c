"""Waiting for the engine, which gives up and lingers after a minute in many of these tests."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from .. import waiting

#: Seconds; long enough for a slow machine, and well below that minute: what ends with it hung.
PATIENCE: Final = 20.0

AnyFuture = Future[Any]
until = partial(waiting.until, within=PATIENCE)

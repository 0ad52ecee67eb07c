"""Waits in the tests of the engine, where operations linger or time out after a minute."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import pytest

from .. import waiting

#: Seconds. This is long enough for a slow machine, and well below that minute: a test that waited
#: for a minute could not distinguish an operation that hangs from one that ends in time.
PATIENCE: Final = 20.0

AnyFuture = Future[Any]
until = partial(waiting.until, within=PATIENCE)

#: For tests that leave a store open when its loop ends: after a second, the engine finds that.
LEFT_OPEN = pytest.mark.filterwarnings(
    "ignore:a store was not closed before its event loop:ResourceWarning"
)

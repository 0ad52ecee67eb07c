"""The remaining time of a call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from ..batching.settings import check_seconds

__all__ = ["Deadline"]

# The minimum time for a request, in seconds: a request without any time could only fail.
_REQUEST: Final = 1.0


class Deadline:
    """The end of a call that makes several requests.

    Args:
        timeout: seconds from now, 0 for a call that must not wait, or ``None`` for no limit.

    Attributes:
        waits: whether the call may wait.
        cancelled: whether another thread or task has ended the call by ``cancel``.
        wake: wakes the call, wherever it waits now.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    __slots__ = ("_at", "cancelled", "waits", "wake")

    def __init__(self, timeout: float | None) -> None:
        self.waits = timeout is False or timeout != 0
        self.cancelled = False
        self.wake: Callable[[], object] = bool  # which does nothing
        if timeout is None:
            self._at = math.inf
        else:
            seconds = check_seconds("timeout", timeout) if self.waits else 0.0
            self._at = time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the remaining seconds, at least 0, or ``None`` without a limit."""
        return None if self._at == math.inf else max(0.0, self._at - time.monotonic())

    def for_request(self) -> float | None:
        """Return the timeout of a request: the remaining seconds, but at least 1.

        Without a limit, or if the call must not wait, return ``None``, for the store's own timeout.
        """
        left = self.left()
        return None if left is None or not self.waits else max(left, _REQUEST)

    def within(self, seconds: float) -> float:
        """Return ``seconds``, or the remaining seconds if they are fewer."""
        left = self.left()
        return seconds if left is None else min(seconds, left)

    def cancel(self) -> None:
        """Let the time pass at once, from any thread. Call ``wake`` afterwards.

        The call sets ``wake`` before it looks at the time that is left. So it either sees that none
        is left, or is woken.
        """
        self.cancelled = True
        self._at = -math.inf

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self._at <= time.monotonic()

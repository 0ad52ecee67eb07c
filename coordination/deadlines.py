"""The time that is left for a call."""

from __future__ import annotations

import math
import time

from ..batching.settings import check_seconds

__all__ = ["Deadline"]


class Deadline:
    """The end of a call that makes several requests.

    Args:
        timeout: seconds from now, 0 for a call that must not wait, or ``None`` for no limit.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        if timeout is None:
            self._at = math.inf
        else:
            self._at = time.monotonic() + (
                0.0 if timeout == 0 else check_seconds("timeout", timeout)
            )

    def left(self) -> float | None:
        """Return the seconds that are left, at least 0, or ``None`` without a limit."""
        return None if self._at == math.inf else max(0.0, self._at - time.monotonic())

    def within(self, seconds: float) -> float:
        """Return ``seconds``, or the seconds that are left if these are fewer."""
        left = self.left()
        return seconds if left is None else min(seconds, left)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self._at <= time.monotonic()

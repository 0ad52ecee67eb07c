"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from .waiting import PATIENCE

__all__ = ["interrupted"]


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block, once, after a call of ``when`` has returned.

    The signal is sent until the main thread has noticed it: Python misses one that comes at the
    very moment at which the thread begins to wait, and handles it only after the wait.
    """
    main, noticed = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def send() -> None:
        when()
        while not noticed.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            noticed.wait(0.05)

    before = signal.signal(signal.SIGINT, handle)
    sending = threading.Thread(target=send, daemon=True)
    try:
        sending.start()
        with pytest.raises(KeyboardInterrupt):
            yield
        sending.join(PATIENCE)
        assert not sending.is_alive()
    finally:
        signal.signal(signal.SIGINT, before)

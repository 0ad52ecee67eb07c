"""Guesses the range of keys that a scan requests next. No I/O.

etcd counts all keys of a range, whatever the page's limit. If every range ended at the end of the
scan, each page would cost more the more keys are left. So a range should end some ten thousand keys
ahead, and that end can only be guessed. The guess reads the keys of a page as numbers, whose digits
at each place are the bytes seen there. The distance between the first and the last key shows how
far the next keys reach. If a guess was too far, it is corrected after the first page of its range.
If it was too near, it costs a short answer, and the next guess goes further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from os.path import commonprefix
from typing import Final

__all__ = ["AHEAD", "PageRanges"]

#: The intended number of keys in a range. Counting them costs etcd two milliseconds.
AHEAD: Final = 10_000
# A range with at most this many times the intended number left is read to its end.
_MANY: Final = 2
# The places, after the bytes that all keys of a page share, that make up the numbers.
_PLACES: Final = 8
# The factor by which a guess goes further after an empty range; after a short one, it is 2.
_FURTHER: Final = 8
_FEW: Final = 1_000

_CLASSES: Final = (b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")


class PageRanges:
    """The ranges of a scan over the keys from ``start`` to ``stop``.

    Attributes:
        start: the first key to request.
        end: the key before which to stop.
        done: whether everything is read.
    """

    __slots__ = (
        "_ahead",
        "_digits",
        "_few",
        "_per_key",
        "_stop",
        "_times",
        "done",
        "end",
        "start",
    )

    def __init__(self, start: bytes, stop: bytes, *, ahead: int = AHEAD, few: int = _FEW) -> None:
        self._ahead = ahead
        self._few = few
        self._stop = stop
        self._digits: list[bytes] = []
        self._per_key = 0.0  # the mean distance between the numbers of successive keys
        self._times = 1  # the factor for the reach of the next range
        self.start = start
        self.end = stop
        self.done = False

    def took(self, keys: Sequence[bytes], read: int, left: int) -> None:
        """Process a page.

        Args:
            keys: a sample of its keys with the first and the last one in place; empty if it is.
            read: the number of its keys.
            left: the number of keys that remain in its range.
        """
        if len(keys) > 1:
            self._measure(keys, read)
        if left > 0 and keys:
            self._times = 1
            self.start = keys[-1] + b"\0"
            if left > _MANY * self._ahead:
                self.end = self._guess(keys[-1])
            return
        if self.end == self._stop:
            self.done = True
            return
        self.start = self.end
        if read >= self._few:
            self._times = 1
        else:
            self._times *= 2 if read else _FURTHER
        self.end = self._guess(self.start)

    def _measure(self, keys: Sequence[bytes], read: int) -> None:
        first, last = keys[0], keys[-1]
        shared = len(commonprefix([first, last]))  # noqa: RUF071 - by bytes, not by names
        seen = [
            {key[place] for key in keys if len(key) > place}
            for place in range(shared, shared + _PLACES)
        ]
        # A place at which the page shows only one byte or a few will show more: at the first place
        # that differs, the bytes seen at later places; at a shared place, the same bytes if its
        # own is among them.
        pool = set().union(*seen[1:])
        seen[0] |= pool
        digits = [pool if byte in pool else _class_of(byte) for byte in first[:shared]]
        self._digits = [bytes(sorted(some)) for some in (*digits, *seen)]
        self._per_key = (self._number(last) - self._number(first)) / max(read - 1, 1)

    def _guess(self, key: bytes) -> bytes:
        """Return the end of a range that begins at ``key``."""
        number = self._number(key)
        step = max(int(self._per_key * self._ahead), 1) * self._times
        end = self._key(number + step)
        while b"" < end <= key:  # The numbers are not exact.
            step *= _FURTHER
            end = self._key(number + step)
        return end if b"" < end < self._stop and self._per_key else self._stop

    def _number(self, key: bytes) -> int:
        number = 0
        for place, digits in enumerate(self._digits):
            # Digit 0 means that the key has ended before this place.
            digit = bisect_left(digits, key[place]) + 1 if place < len(key) else 0
            number = number * (len(digits) + 1) + min(digit, len(digits))
        return number

    def _key(self, number: int) -> bytes:
        """Return the key with a number; ``b""`` if no key is that large."""
        key = b""
        for digits in reversed(self._digits):
            number, digit = divmod(number, len(digits) + 1)
            if key:  # The key cannot end before a later digit.
                digit = max(digit, 1)
            if digit:
                key = digits[digit - 1 : digit] + key
        return b"" if number else key


def _class_of(byte: int) -> set[int]:
    """Return the bytes to expect at a place where one of them was seen."""
    return next((set(found) for found in _CLASSES if byte in found), {byte, min(byte + 1, 255)})

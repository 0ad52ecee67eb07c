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

#: The keys that a range is meant to hold: counting them costs etcd two milliseconds.
AHEAD: Final = 10_000
# A range with no more keys left than that is read to its end.
_MANY: Final = 2 * AHEAD
# The places behind what all keys of a page share that make up the numbers.
_PLACES: Final = 8
# How much further a guess goes if the one before has met nothing; twice as far if it has met few.
_FURTHER: Final = 8
_FEW: Final = 1_000

_CLASSES: Final = (b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")


class PageRanges:
    """A scan under way over the keys from ``start`` to ``stop``.

    Attributes:
        start: the first key to ask for.
        end: the key to stop before.
        done: whether all is read.
    """

    __slots__ = ("_digits", "_per_key", "_stop", "_times", "done", "end", "start")

    def __init__(self, start: bytes, stop: bytes) -> None:
        self._stop = stop
        self._digits: list[bytes] = []
        self._per_key = 0.0  # how far the numbers of two keys that follow each other lie apart
        self._times = 1  # how many times as far as that the next range is to reach
        self.start = start
        self.end = stop
        self.done = False

    def took(self, keys: Sequence[bytes], read: int, left: int) -> None:
        """Take in a page.

        Args:
            keys: some of its keys, the first and the last one in their places; none if it is empty.
            read: how many keys it has.
            left: how many more its range has.
        """
        if len(keys) > 1:
            self._measure(keys, read)
        if left > 0 and keys:
            self._times = 1
            self.start = keys[-1] + b"\0"
            if left > _MANY:
                self.end = self._guess(keys[-1])
            return
        if self.end == self._stop:
            self.done = True
            return
        self.start = self.end
        if read >= _FEW:
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
        # Where only a few bytes are seen, as where all keys of the page have the same one or the
        # next, more are to come: those that are seen further on, if it is one of these.
        pool = set().union(*seen[1:])
        seen[0] |= pool
        digits = [pool if byte in pool else _class_of(byte) for byte in first[:shared]]
        self._digits = [bytes(sorted(some)) for some in (*digits, *seen)]
        self._per_key = (self._number(last) - self._number(first)) / max(read - 1, 1)

    def _guess(self, key: bytes) -> bytes:
        """Return where a range is to end that begins at ``key``."""
        number = self._number(key)
        step = max(int(self._per_key * AHEAD), 1) * self._times
        end = self._key(number + step)
        while b"" < end <= key:  # Numbers are not exact.
            step *= _FURTHER
            end = self._key(number + step)
        return end if b"" < end < self._stop and self._per_key else self._stop

    def _number(self, key: bytes) -> int:
        number = 0
        for place, digits in enumerate(self._digits):
            # The digit 0 says that the key has ended before this place.
            digit = bisect_left(digits, key[place]) + 1 if place < len(key) else 0
            number = number * (len(digits) + 1) + min(digit, len(digits))
        return number

    def _key(self, number: int) -> bytes:
        """Return the key with a number; nothing if no key is that large."""
        key = b""
        for digits in reversed(self._digits):
            number, digit = divmod(number, len(digits) + 1)
            if key:  # It cannot have ended before that.
                digit = max(digit, 1)
            if digit:
                key = digits[digit - 1 : digit] + key
        return b"" if number else key


def _class_of(byte: int) -> set[int]:
    """Return the bytes that may be expected where one of them was seen."""
    return next((set(found) for found in _CLASSES if byte in found), {byte, min(byte + 1, 255)})

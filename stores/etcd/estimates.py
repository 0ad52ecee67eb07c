"""Learns from a server's answers which sizes of requests it accepts, and which suit it best.

Three objects learn one number each. They do no I/O; their owner reports the events:

- :class:`RequestBytes` learns how many bytes a request may have: etcd's ``--max-request-bytes``.
  After the first refusal, the client sends a larger request that only reads. The server's gRPC
  refuses it and names its own limit, which is 512 KiB higher. If no such number is available, each
  refusal halves the distance to the largest request that was accepted.
- :class:`AnswerBytes` learns how many values to request at a time, so that the answer stays near
  4 MiB. etcd shows the size of a value only with the value. So the first requests ask for few
  values, and later ones for as many as fit by recent sizes, at most twice as many each time. Plain
  puts return the old values, and count likewise.
- :class:`Pace` learns how many writes to put into one transaction. etcd applies one transaction
  after the other, and other clients wait meanwhile.

Several threads use them without a lock. Each operation reads or writes one number, so two threads
that write at the same moment lose one observation at most.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ANSWER_BYTES", "AnswerBytes", "Pace", "RequestBytes", "oversize"]

_KIB: Final = 1024
_MIB: Final = 1024 * 1024

# etcd's default for --max-request-bytes. It bounds the entry proposed to raft, which is the
# request with an id and the user's name around it.
_DEFAULT: Final = 1536 * _KIB
_AROUND: Final = 256
# By how much etcd's gRPC takes more (``grpcOverheadBytes`` in etcd's ``embed``).
_OVERHEAD: Final = 512 * _KIB
_GRPC_LIMIT: Final = re.compile(r"received message larger than max \(\d+ vs\. (\d+)\)")

#: The largest answer that is taken in at all, from the largest value to the largest page of names.
ANSWER_BYTES: Final = 32 * _MIB
# What the answer to one request is meant to have.
_GOOD_ANSWER: Final = 4 * _MIB
_FIRST_VALUES: Final = 16


class RequestBytes:
    """How many bytes a request may have.

    Attributes:
        most: the most bytes to send. It never grows.
    """

    def __init__(self) -> None:
        self.most = _DEFAULT - _AROUND
        self._accepted = 0  # the largest size that was taken

    def accepted(self, size: int) -> None:
        """Note the size of a write that was taken."""
        self._accepted = max(self._accepted, size)

    def refused(self, size: int, *messages: str) -> None:
        """Note that a request was refused as too large.

        Args:
            size: its bytes.
            messages: the refusal, and that of another with ``oversize(size)`` bytes.
        """
        for message in messages:
            if named := _GRPC_LIMIT.search(message):
                limit = int(named[1]) - _OVERHEAD - _AROUND
                if 0 < limit < size:
                    self.most = min(self.most, limit)
                    return
        self.most = min(self.most, (min(self._accepted, size) + size) // 2)


def oversize(size: int) -> int:
    """Return how large a request is to be that gRPC refuses where etcd refuses one of ``size``."""
    return size + _OVERHEAD + _AROUND


class AnswerBytes:
    """How many values to ask for in one request; or keys, where these are all that is wanted.

    Args:
        first: as long as nothing is known of them.

    Attributes:
        values: so many.
    """

    def __init__(self, first: int = _FIRST_VALUES) -> None:
        self.values = first

    def saw(self, values: int, size: int) -> None:
        """Note how many bytes a number of values had, in an answer or in a request."""
        fitting = values * _GOOD_ANSWER // (size + 1)
        self.values = max(1, min(fitting, self.values * 2, 1 << 20))

    def refused(self, values: int) -> None:
        """Note that the answer with so many values was too large to be taken in."""
        self.values = max(1, min(self.values, values // 4))


# Seconds that all but a tenth of the transactions are meant to stay below.
_SLOW: Final = 0.020
_FEWEST: Final = 125  # as many as go without groups
# Nine steps up are as large as one down, so where they balance one in ten is slow.
_DOWN: Final = 0.90
_UP: Final = _DOWN ** (-1 / 9)


class Pace:
    """How many writes to put into one transaction.

    What stands in etcd before another client's write are this one's transactions, so the other
    waits about as long as they take. Their slowest tenth is held to 20 ms.

    Attributes:
        writes: so many.
    """

    def __init__(self, most: int) -> None:
        self.writes = most
        self._most = most
        self._exact = float(most)

    def took(self, writes: int, seconds: float) -> None:
        """Note how long a transaction took, from its sending to its answer."""
        if seconds > _SLOW:
            if writes <= _FEWEST:
                return  # It was not for its size.
            self._exact = max(min(self._exact, writes) * _DOWN, _FEWEST)
        elif writes * 2 > self._exact:
            self._exact = min(self._exact * _UP, self._most)
        self.writes = int(self._exact)

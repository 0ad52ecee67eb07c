"""Learns from a server's answers which sizes of requests it accepts, and which suit it best.

Four objects learn one number each. They do no I/O; their owner reports the events:

- :class:`RequestBytes` learns how many bytes a request may have: etcd's ``--max-request-bytes``.
  After the first refusal, the client sends a larger request that only reads. The server's gRPC
  refuses it and names its own limit, which is 512 KiB higher. If no such number is available, each
  refusal halves the distance to the largest request that was accepted.
- :class:`AnswerBytes` learns how many values to request at a time, so that the answer stays near
  4 MiB. etcd shows the size of a value only with the value. So the first requests ask for few
  values, and later ones for as many as fit by recent sizes, at most four times as many each
  time. Plain puts return the old values, and count likewise.
- :class:`Pace` learns how many writes to put into one transaction. etcd applies one transaction
  after the other, and other clients wait meanwhile.
- :class:`Refusals` learns whether conditional puts may share their conditions.

Several threads use them without a lock. Each operation reads or writes one number, so two threads
that write at the same moment lose one observation at most.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AnswerBytes",
    "Pace",
    "Refusals",
    "RequestBytes",
    "oversize",
]

_KIB: Final = 1024
_MIB: Final = 1024 * 1024

# etcd's default for --max-request-bytes. It limits the entry proposed to raft: the request, with an
# id and the user's name around it.
_DEFAULT: Final = 1536 * _KIB
_AROUND: Final = 256
# The limit of etcd's gRPC is higher by this much (``grpcOverheadBytes`` in etcd's ``embed``).
_OVERHEAD: Final = 512 * _KIB

# The intended size of the answer to one request.
_GOOD_ANSWER: Final = 4 * _MIB
_FIRST_VALUES: Final = 16


class RequestBytes:
    """Learns how many bytes a request may have.

    Attributes:
        most: the most bytes to send. It never grows.
    """

    def __init__(self) -> None:
        self.most = _DEFAULT - _AROUND
        self._accepted = 0  # the largest size that etcd accepted

    def accepted(self, size: int) -> None:
        """Note the size of a write that etcd accepted."""
        self._accepted = max(self._accepted, size)

    def refused(self, size: int, *grpc_limits: int | None) -> None:
        """Note that a request was refused as too large.

        Args:
            size: the bytes of the request.
            grpc_limits: the limit that its refusal names, and that which the refusal of a request
                of ``oversize(size)`` bytes names; ``None`` if it names none.
        """
        for named in grpc_limits:
            if named is not None:
                limit = named - _OVERHEAD - _AROUND
                if 0 < limit < size:
                    self.most = min(self.most, limit)
                    return
        self.most = min(self.most, (min(self._accepted, size) + size) // 2)


def oversize(size: int) -> int:
    """Return a size that gRPC refuses if etcd refuses requests of ``size``."""
    return size + _OVERHEAD + _AROUND


class AnswerBytes:
    """Learns how many values to request at a time, or how many keys if only keys are wanted.

    Args:
        first: the number to begin with.

    Attributes:
        values: the number to request.
    """

    def __init__(self, first: int = _FIRST_VALUES) -> None:
        self.values = first

    def saw(self, values: int, size: int) -> None:
        """Note the bytes of a number of values, in an answer or in a request."""
        fitting = values * _GOOD_ANSWER // (size + 1)
        self.values = max(1, min(fitting, self.values * 4, 1 << 20))

    def refused(self, values: int) -> None:
        """Note that an answer with this many values was too large for the client."""
        self.values = max(1, min(self.values, values // 4))


# The intended limit in seconds for all but a tenth of the transactions.
_SLOW: Final = 0.025
_FEWEST: Final = 125  # the number that fits without groups
# Nine steps up equal one down, so at the balance one transaction in ten is slow.
_DOWN: Final = 0.90
_UP: Final = _DOWN ** (-1 / 9)


class Pace:
    """Learns how many writes to put into one transaction.

    Another client's write waits in etcd behind this client's transactions, about as long as they
    take. So their slowest tenth is held to 25 ms.

    Attributes:
        writes: the most writes for one transaction.
    """

    def __init__(self, most: int) -> None:
        self.writes = most
        self._most = most
        self._exact = float(most)

    def took(self, writes: int, seconds: float) -> None:
        """Note how long a transaction took, from its sending to its answer."""
        if seconds > _SLOW:
            if writes <= _FEWEST:
                return  # Its size was not the reason.
            self._exact = max(min(self._exact, writes) * _DOWN, _FEWEST)
        elif writes * 2 > self._exact:
            self._exact = min(self._exact * _UP, self._most)
        self.writes = int(self._exact)


class Refusals:
    """Learns whether conditional puts may share their conditions.

    That costs etcd a third less. But if one of them is refused, its whole group is sent again, and
    the batch takes twice as long. So refusals must be rare.

    Attributes:
        quiet: the writes that must have been applied since the last refusal.
    """

    quiet: Final = 4096

    def __init__(self) -> None:
        self._applied = self.quiet

    @property
    def rare(self) -> bool:
        """Whether there has been none for long."""
        return self._applied >= self.quiet

    def saw(self, writes: int, *, refused: bool) -> None:
        """Note the writes of a batch, and whether one of them was refused."""
        self._applied = 0 if refused else self._applied + writes

"""Topic logs in files, for examples and tests. All hubs of one machine can share them.

The log of a topic is one file. Hubs only append to it, each time with a single write. So the order
of the file decides everything, and no lock is needed that a paused hub might hold::

    magic (4 bytes), crc32 of the rest (4), kind (1), epoch (8), number (8), length (4), body

A record of the kind ``begin`` starts an epoch; later records of smaller epochs are void. A message
counts if its epoch is the current one and its number is the next. A record that a crash has torn is
skipped: the magic bytes mark the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from array import array
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Final

from ..errors import StaleEpochError
from ..names import escaped, name_text
from ..topics.region import Claim
from .messages import Message

__all__ = ["AsyncFileLogs", "FileLogs"]

_MAGIC: Final = b"\xabkp\x01"
_PREFIX: Final = Struct(">4sI")  # magic, crc
_HEAD: Final = Struct(">BQQI")  # kind, epoch, number, length
_BEGIN: Final = 0
_MESSAGE: Final = 1

# The limit of body bytes per read, unless a single body has more.
_MOST_BYTES: Final = 16 * 1024 * 1024

# File systems allow names of 255 bytes.
_LONGEST_NAME: Final = 200

# Bytes per read of the file, unless a record is longer.
_PIECE: Final = 1024 * 1024


class _Log:
    """The log of one topic, as far as this process has read it."""

    def __init__(self, path: Path, sync: bool) -> None:
        self._path = path
        self._sync = sync
        self.lock = threading.Lock()  # guards the following fields
        self._read_to = 0  # a file offset
        self.epoch = 0
        self._bodies = array("Q")  # the offsets of the bodies
        self._lengths = array("L")
        self._ends: dict[int, int] = {}  # the last messages of earlier epochs

    @property
    def last(self) -> int:
        return len(self._bodies)

    def last_of(self, epoch: int) -> int:
        """Return the last message at the end of an epoch, or the last one so far."""
        return self._ends.get(epoch, self.last)

    def write(self, records: bytes) -> None:
        """Append records, and read them back with all records of others in between."""
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(file, records)
            if self._sync:
                os.fsync(file)
                if not self._read_to:  # A new file's name must survive a crash, too.
                    _sync_directory(self._path.parent)
            self._catch_up(file)
        finally:
            os.close(file)
        if written < len(records):
            raise OSError(f"{self._path} takes only {written} of {len(records)} bytes")

    def catch_up(self) -> None:
        """Read the records that have been appended."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self._catch_up(file)
        finally:
            os.close(file)

    def read(self, after: int, most: int) -> list[Message]:
        """Return messages after a number."""
        chosen: list[int] = []
        size = 0
        for index in range(after, min(after + most, self.last)):
            size += self._lengths[index]
            if chosen and size > _MOST_BYTES:
                break
            chosen.append(index)
        if not chosen:
            return []
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [
                Message(index + 1, os.pread(file, self._lengths[index], self._bodies[index]))
                for index in chosen
            ]
        finally:
            os.close(file)

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        length = _PIECE
        while (left := size - self._read_to) > 0:
            # A single read returns at most 2 GiB, and takes as much memory.
            data = os.pread(file, min(length, left), self._read_to)
            done, length = self._apply_all(data, whole=len(data) == left)
            # Only to the end of a whole record: one that is being written is read again.
            self._read_to += done
            if not done and len(data) == left:
                return

    def _apply_all(self, data: bytes, whole: bool) -> tuple[int, int]:
        """Apply the records in a piece of the file.

        Args:
            data: the piece.
            whole: whether the file ends with it. If so, a longer record is torn, or another process
                is writing it; otherwise, the record continues in the next piece.

        Returns:
            the number of processed bytes, and the smallest size of the next piece.
        """
        at = done = 0
        while (at := data.find(_MAGIC, at)) >= 0:
            end = self._end_of(data, at)
            if end > len(data) and not whole:
                return at, max(_PIECE, end - at)
            if end <= len(data) and self._apply(data, at, end):
                at = done = end
            else:
                at += 1
        # Half of the magic bytes may be in the next piece.
        return (done, _PIECE) if whole else (max(done, len(data) - len(_MAGIC) + 1), _PIECE)

    def _end_of(self, data: bytes, at: int) -> int:
        """Return the end of the record at an offset, or at least the end of its head."""
        body = at + _PREFIX.size + _HEAD.size
        if body > len(data):
            return body
        *_, length = _HEAD.unpack_from(data, at + _PREFIX.size)
        return body + int(length)

    def _apply(self, data: bytes, at: int, end: int) -> bool:
        """Apply the record at an offset, and return whether there is one."""
        start = at + _PREFIX.size
        _, crc = _PREFIX.unpack_from(data, at)
        if zlib.crc32(memoryview(data)[start:end]) != crc:
            return False
        kind, epoch, number, length = _HEAD.unpack_from(data, start)
        if kind == _BEGIN:
            if epoch > self.epoch:
                self._ends[self.epoch] = self.last
                self.epoch = epoch
        elif epoch == self.epoch and number == self.last + 1:
            self._bodies.append(self._read_to + start + _HEAD.size)
            self._lengths.append(length)
        return True


class FileLogs:
    """The logs of topics in a directory. Any number of hubs, in any processes, can share it.

    The whole log is read once, when its topic is opened.

    Args:
        directory: the directory of the files; it is created if it is missing.
        sync: whether a message is accepted only when it is on disk, so that it survives a power
            failure. The end of a process never loses messages.
    """

    def __init__(self, directory: str | Path, sync: bool = True) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._sync = sync
        self._lock = threading.Lock()  # guards the field
        self._logs: dict[str, _Log] = {}

    def begin(self, claim: Claim) -> int:
        """Open the log of a topic for its new owner; see ``Logs.begin``."""
        log = self._log(claim.topic)
        with log.lock:
            log.write(_record(_BEGIN, claim.epoch, 0, b""))
            _check_epoch(log, claim)
            return log.last

    def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        """Add messages; see ``Logs.append``.

        Raises:
            StaleEpochError: a greater epoch has begun.
            OSError: the file cannot be written. Some of the messages may be in the log.
        """
        log = self._log(claim.topic)
        with log.lock:
            log.catch_up()
            _check_epoch(log, claim)
            last = log.last + len(bodies)
            numbered = enumerate(bodies, log.last + 1)
            log.write(b"".join(_record(_MESSAGE, claim.epoch, *one) for one in numbered))
            # Another epoch may have begun between the two reads, before or after these records. Its
            # messages may already have the same numbers.
            if log.last_of(claim.epoch) < last:
                raise _stale(log, claim)
            return last

    def read(self, topic: str, after: int, most: int) -> list[Message]:
        """Return messages; see ``Logs.read``."""
        log = self._log(topic)
        with log.lock:
            if after + most > log.last:
                log.catch_up()
            return log.read(after, most)

    def end(self, claim: Claim) -> None:
        """Drop the in-memory state of a log."""
        with self._lock:
            self._logs.pop(claim.topic, None)

    def _log(self, topic: str) -> _Log:
        text = name_text(topic)
        with self._lock:
            log = self._logs.get(text)
            if log is None:
                log = self._logs[text] = _Log(self._directory / _file_name(text), self._sync)
        return log


class AsyncFileLogs:
    """``FileLogs`` for tasks: the same files, which threads read and write."""

    def __init__(self, directory: str | Path, sync: bool = True) -> None:
        self._logs = FileLogs(directory, sync)

    async def begin(self, claim: Claim) -> int:
        """Open the log of a topic for its new owner."""
        return await asyncio.to_thread(self._logs.begin, claim)

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        """Add messages."""
        return await asyncio.to_thread(self._logs.append, claim, bodies)

    async def read(self, topic: str, after: int, most: int) -> list[Message]:
        """Return messages."""
        return await asyncio.to_thread(self._logs.read, topic, after, most)

    async def end(self, claim: Claim) -> None:
        """Drop the in-memory state of a log."""
        self._logs.end(claim)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _record(kind: int, epoch: int, number: int, body: bytes) -> bytes:
    rest = _HEAD.pack(kind, epoch, number, len(body)) + body
    return _PREFIX.pack(_MAGIC, zlib.crc32(rest)) + rest


def _check_epoch(log: _Log, claim: Claim) -> None:
    if log.epoch != claim.epoch:
        raise _stale(log, claim)


def _stale(log: _Log, claim: Claim) -> StaleEpochError:
    return StaleEpochError(
        f"topic {claim.topic!r:.200} is in epoch {log.epoch}: nothing of epoch {claim.epoch} is "
        "taken any more"
    )


def _file_name(topic: str) -> str:
    """Return the name of a topic's file. No two topics have the same."""
    name = escaped(topic)
    if len(name) > _LONGEST_NAME:  # No escaped name begins like this.
        name = f"~long-{sha256(name.encode()).hexdigest()}"
    return f"{name}.log"

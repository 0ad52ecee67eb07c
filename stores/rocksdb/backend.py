"""A store in a directory of this machine, on RocksDB through rocksdict.

RocksDB has no compare-and-set here, so a lock of this package makes reading the old records,
deciding and writing the batch one step. RocksDB's own lock lets only one process at a time open the
directory for writing. ``layout`` states the keys, ``value_format`` the form of values, and
``commits`` brings batches to the disk.

A call of plain puts and deletes takes a short way of its own, ``_decide_plain``. ``drafts`` decides
all other calls, in which an operation has options or meets an ephemeral value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, assert_never

from rocksdict import Rdict, WriteBatch

from ...ops.errors import InvalidSettingError, MetadataStoreError, StoreUnavailableError
from ...ops.operations import ABSENT, ReadKind
from ...ops.paths import children_of
from ...ops.results import Stat, WatchEvent
from ...ops.steps import PutNext, PutValue, lower, step_of, steps_in
from ..backend import (
    Answer,
    Backend,
    Limits,
    ReadRequest,
    Scans,
    Tally,
    Watches,
    WatchHandle,
    WriteRequest,
    column,
    is_plain_put,
    without_options,
)
from ..refusals import State, decide
from ..urls import ConnectOptions, StoreURL
from .commits import Commits
from .database import Database
from .drafts import Drafted, draft
from .ephemerals import Departed, remove_ephemerals, sessions_in
from .files import open_files, open_files_to_read, prepare, read_meta, read_synced
from .layout import SESSIONS_FORMAT
from .scans import ReadOnlyScans, RocksScans, read_only
from .sessions import RocksSession, remove_lock_files
from .value_format import HEADER, LONGEST_HEADER, answer_reads, is_plain, plain_puts

__all__ = ["connect"]

_MIB: Final = 1024 * 1024
DEFAULT_MAX_VALUE_BYTES: Final = 16 * _MIB
# RocksDB accepts values below 4 GiB; this limit is far above any sensible setting.
_MOST_MAX_VALUE_BYTES: Final = 1024 * _MIB

# The most operations, and bytes, of one call.
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * _MIB
# The intended maximum for the answers to one call of reads, enforced through the number of reads.
_ANSWER_BYTES: Final = 128 * _MIB
# The most operations in a transaction.
_TRANSACTION_OPS: Final = 1_000

_new = tuple.__new__  # does the work of State(...) in half the time

#: The kinds of reads that depend on nothing but the record of their path.
_OF_ONE_RECORD: Final[frozenset[ReadKind]] = frozenset({"get", "exists"})


class _Reader:
    """The reads of a store.

    Args:
        database: the database.
        commits: its writes, for which reads wait.
        departed: the values that are left out.
        scans: the facet for scans.
        max_value_bytes: the largest value.
        owns: whether ephemeral values belong to the session of this store.
    """

    history = None
    acls = None

    def __init__(
        self,
        database: Database,
        commits: Commits,
        departed: Departed,
        scans: Scans,
        max_value_bytes: int,
        *,
        owns: bool,
    ) -> None:
        self._database = database
        self._commits = commits
        self._departed = departed
        self.scans = scans
        self._owns = owns
        self.tally = Tally()
        self.connected = True
        self._max_value_bytes = max_value_bytes
        self.limits = self._limits(commits.largest)

    def _limits(self, largest: int) -> Limits:
        """Return the limits, which become smaller as the largest record ever put grows."""
        return Limits(
            write_ops=_CALL_OPS,
            read_ops=max(1, min(_CALL_OPS, _ANSWER_BYTES // max(1, largest))),
            request_bytes=_CALL_BYTES + self._max_value_bytes,
            # The header, and the lengths and checksums that a write batch adds.
            op_bytes=LONGEST_HEADER + 16,
            value_bytes=self._max_value_bytes,
            # One batch reads and decides, one waits for the sync that runs, and the two that were
            # written meanwhile share the next sync. With a sync of 2 ms, this puts 1.3 times as
            # much as two in flight, and no less without a sync. A single write costs a whole sync.
            in_flight=4,
            singles=1,
            transaction_ops=_TRANSACTION_OPS,
        )

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        keys = [*map(str.encode, column(requests, "path"))]
        with self._database:
            try:
                answers = self._answers(requests, keys)
            except Exception as error:
                raise self._database.unreadable(error, requests) from error
            if self._commits.unsynced:
                alone = _OF_ONE_RECORD.issuperset(column(requests, "kind"))
                self._commits.wait_to_read(keys if alone else None)
            return answers

    def _answers(self, requests: Sequence[ReadRequest], keys: list[bytes]) -> list[Answer]:
        records = iter(self._database.records(keys, self._commits.largest))
        if hidden := self._departed.keys():
            zipped = zip(keys, records, strict=True)
            records = iter([None if key in hidden else record for key, record in zipped])
        left = iter(requests)
        answers: list[Answer] = [*answer_reads(left, records, self._owns)]
        while len(answers) < len(requests):
            request = requests[len(answers)]
            match request.kind:
                case "get_children":
                    answers.append(self._children(request.path))
                case "get" | "exists":
                    raise AssertionError("a read of one record was not answered")
                case _:
                    assert_never(request.kind)
            answers += answer_reads(left, records, self._owns)
        return answers

    def _children(self, path: str) -> list[str]:
        prefix = b"/" if path == "/" else path.encode() + b"/"
        names: set[bytes] = set()
        hidden = self._departed.keys()
        below, _bound = self._database.below(prefix)
        while below.valid():
            key = below.key()
            if key in hidden:
                below.next()
                continue
            name, slash, _ = key[len(prefix) :].partition(b"/")
            names.add(name)
            if slash:
                # Skip everything else below that child. The values below a child do not directly
                # follow its own key: names that begin with its name, such as "x!" after "x", may
                # come between.
                below.seek(prefix + name + b"0")
            else:
                below.next()
        below.status()
        # A name that is not UTF-8 gets surrogates, and is in no valid path.
        return children_of(path, [name.decode(errors="surrogateescape") for name in sorted(names)])

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        self._database.close()


class _ReadOnlyBackend(_Reader):
    """The store as it was on the disk when it was opened, for any number of processes."""

    session = None
    watches = None

    def __init__(
        self, database: Database, commits: Commits, departed: Departed, max_value_bytes: int
    ) -> None:
        scans = ReadOnlyScans(database, commits, departed)
        super().__init__(database, commits, departed, scans, max_value_bytes, owns=False)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        raise read_only(self._database.directory)


class _RocksBackend(_Reader):
    """The store, open for writing: the only opener of this kind."""

    def __init__(
        self, database: Database, commits: Commits, session: RocksSession, max_value_bytes: int
    ) -> None:
        departed = Departed(database, sessions=())
        scans = RocksScans(database, commits, departed)
        super().__init__(database, commits, departed, scans, max_value_bytes, owns=True)
        self.session = session

    @property
    def watches(self) -> Watches:
        return self

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        keys = [*map(str.encode, column(requests, "path"))]
        with self._database:
            with self._commits.writing(deadline):
                answers, number, changed = self._write(requests, keys)
            self._commits.wait(number, changed=changed)
            return answers

    def _write(
        self, requests: Sequence[WriteRequest], keys: list[bytes]
    ) -> tuple[list[Answer], int, bool]:
        """Write a batch; return its answers, the batch to sync, and whether anything changed."""
        commits = self._commits
        drafted = None
        try:
            if without_options(requests):
                drafted = self._decide_plain(requests, keys)
            if drafted is None:
                drafted = draft(self._database, commits, self.session, requests)
        except Exception as error:
            raise self._database.unreadable(error, requests) from error
        batch, answers, keys, largest, sessions = drafted
        if batch.is_empty():
            return answers, commits.written, False
        if largest > commits.largest:
            self.limits = self._limits(largest)
        if sessions:
            commits.use_sessions_format()
        number = commits.write(batch, keys, largest)
        if commits.watches.needed:
            commits.report(_events(requests, answers, commits.revision))
        return answers, number, True

    def _decide_plain(self, requests: Sequence[WriteRequest], keys: list[bytes]) -> Drafted | None:
        """Decide puts and deletes without options.

        Return ``None`` if there is another write, or if one meets a value that is not plain.
        Deletes count as if they came before the puts: callers cannot rely on any order of different
        paths.
        """
        batch = WriteBatch(raw_mode=True)
        revision = self._commits.revision + 1
        now = time.time_ns() // 1_000_000
        headers = self._database.headers(keys, self._commits.largest)
        answers: list[Answer] = []
        left: list[int] = []
        largest = 0
        while (place := len(answers)) < len(requests):
            request, header = requests[place], headers[place]
            if is_plain_put(request):
                stats, records = plain_puts(requests, headers, place, revision, now)
                if stats:
                    for index, record in enumerate(records, place):
                        batch[keys[index]] = record
                    largest = max(largest, *map(len, records))
                    answers += stats
                    continue
            if header is not None and not is_plain(header):
                return None
            if request.kind not in {"put", "delete"}:
                return None
            left.append(place)
            answers.append(None)
        # What is left are deletes, and puts whose conditions do not hold. Deletes keep their order,
        # so a leaf and then its parent can be deleted in one call.
        gone: set[bytes] = set()
        for place in left:
            key, header, step = keys[place], headers[place], step_of(requests[place])
            version = ABSENT if header is None else HEADER.unpack_from(header)[1]
            occupied = step.effect == "delete" and self._database.has_below(key, gone)
            error = decide(step, _new(State, (version, None, occupied)))
            if error is None:
                assert step.effect == "delete", "a put that is plain and may go was not decided"
                batch.delete(key)
                gone.add(key)
            answers[place] = error
        return Drafted(batch, answers, keys, largest)

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Report each change under ``prefix``. See :class:`Watches`."""
        with self._database:
            return self._commits.watch(prefix, deliver, fail, deadline)

    def close(self) -> None:
        self._database.close(self._end_session)

    def _end_session(self) -> None:
        """Remove the session's values, while the database is still open but no calls run."""
        self._commits.watches.close()
        # First of all, so that nobody relies on the session while its values go.
        self.session.close()
        try:
            if self.session.locked:
                # If this fails, the next opener removes them, and readers hide them until then.
                with suppress(MetadataStoreError):
                    remove_ephemerals(self._database, self._commits, self.session.key)
        finally:
            self.session.unlock()


def _events(
    requests: Sequence[WriteRequest], answers: Sequence[Answer], revision: int
) -> list[WatchEvent]:
    """Return what the writes of a call have changed."""
    events: list[WatchEvent] = []
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(answer, MetadataStoreError):
            continue
        # Most writes are puts, and need no step.
        if is_plain_put(request) and isinstance(answer, Stat):
            events.append(_put_event(answer))
            continue
        results = answer if isinstance(answer, list) else [answer]
        for step, result in zip(steps_in(lower(request)), results, strict=True):
            match step.effect:
                case "nothing":
                    pass
                case "delete":
                    events.append(WatchEvent("deleted", step.path, None, revision))
                case PutValue() | PutNext():
                    assert isinstance(result, Stat)
                    events.append(_put_event(result))
                case _:
                    assert_never(step.effect)
    return events


def _put_event(stat: Stat) -> WatchEvent:
    kind: Literal["created", "modified"] = "modified" if stat.version else "created"
    return WatchEvent(kind, stat.path, stat.version, stat.revision)


def connect(
    url: StoreURL,
    options: ConnectOptions,
    open_database: Callable[[str, Rdict], Database] = Database,
) -> Backend:
    """Open the store in the directory of ``rocksdb:///absolute/path``.

    A missing store is created, unless ``create`` is false or ``read_only`` is true.

    Options: ``sync`` (default true: a write is on the disk before it is acknowledged; false: it
    survives the end of the process, but not of the machine), ``max_value_bytes`` (16 MiB),
    ``read_only`` (default false; true: shows the store as it is on the disk now, even if another
    process has it open, and writes nothing).

    Tests pass a database that records calls, or fails, as ``open_database``.

    Raises:
        InvalidSettingError: the URL is invalid, or the directory contains something other than a
            store of batchkeeper. Nothing in it was changed.
        StoreUnavailableError: the directory cannot be used, the store is missing and may not be
            created, another opener has it open, or it is damaged.
    """
    url.check_options(("sync", "max_value_bytes", "read_only"))
    if url.hosts or not url.path.startswith("/") or "\0" in url.path:
        raise InvalidSettingError(
            f"a RocksDB URL needs an absolute directory after three slashes, as in "
            f"rocksdb:///var/lib/hub: {url.text}"
        )
    max_value_bytes = url.number("max_value_bytes", default=DEFAULT_MAX_VALUE_BYTES)
    if max_value_bytes > _MOST_MAX_VALUE_BYTES:
        raise InvalidSettingError(
            f"option 'max_value_bytes' must be at most {_MOST_MAX_VALUE_BYTES}: {url.text}"
        )
    sync = url.flag("sync", default=True)
    read_only = url.flag("read_only", default=False)
    directory = url.path
    deadline = time.monotonic() + options.connect_timeout
    try:
        new = prepare(directory, create=options.create and not read_only)
    except OSError as error:
        raise StoreUnavailableError(
            f"the directory {directory} cannot be used: {error.strerror}"
        ) from error
    if read_only:
        return _connect_read_only(directory, max_value_bytes, deadline, open_database)
    synced = read_synced(directory)
    db = open_files(directory, new)
    try:
        meta = read_meta(directory, db, sync, synced)
        database = open_database(directory, db)
        commits = Commits(database, meta, sync)
        if meta.format >= SESSIONS_FORMAT:
            remove_ephemerals(database, commits)
        remove_lock_files(directory)
    except BaseException:
        db.close()
        raise
    return _RocksBackend(database, commits, RocksSession(directory), max_value_bytes)


def _connect_read_only(
    directory: str,
    max_value_bytes: int,
    deadline: float,
    open_database: Callable[[str, Rdict], Database],
) -> Backend:
    synced = read_synced(directory)
    db = open_files_to_read(directory, deadline)
    try:
        meta = read_meta(directory, db, False, synced, read_only=True)
        database = open_database(directory, db)
        departed = Departed(database, sessions_in(database, meta))
    except BaseException:
        db.close()
        raise
    commits = Commits(database, meta, sync=False)
    return _ReadOnlyBackend(database, commits, departed, max_value_bytes)

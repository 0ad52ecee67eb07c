"""Sends actions on rows to the servers that have them, and gives each its own end."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

from ...ops.operations import ABSENT
from .cluster import Cluster, Region
from .forms import STATES, gets, multi
from .layout import NO_ROW, Row, rows_in, session_key
from .wire.cells import Cell
from .wire.connection import LostError, Pending, RemoteError, Reply
from .wire.errors import TOO_BIG, error_of, meaning_of, repeatable
from .wire.messages import MESSAGES

__all__ = ["Ended", "Requests", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """An action that HBase has decided.

    Attributes:
        processed: whether its condition held, and it was applied.
    """

    processed: bool


#: How an action ended.
Ended: TypeAlias = Written | LostError | RemoteError

# Waits for an answer, until a deadline.
_Reply: TypeAlias = Callable[[float], Reply]

# The most gets in one message, and the bytes that each adds to its key.
_PART: Final = 1_000
_GET: Final = 64
_MOST: Final = 2**31 - 1
# How servers refuse a message of too many bytes, with its header, or rows.
_MOST_BYTES: Final = re.compile(r"greater than max allowed (\d+)")
_MOST_ROWS: Final = re.compile(r"Rejecting large batch .*Size Threshold: (\d+)")
_AROUND: Final = 256
# From so many bytes on, a message that is lost may have been too large.
_LARGE: Final = 64 * 1024


class Requests:
    """The requests of one store.

    Args:
        cluster: its servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: Called with the sessions that stand, of the values that were read.
        self.saw_sessions: Callable[[AbstractSet[int]], None] = _nothing
        # What the servers accept in one message, as refusals have shown. A delete is two rows.
        self._most_bytes = _MOST
        self._most_rows = _MOST

    def act(
        self, keys: Sequence[bytes], build: Callable[[int, bytes], bytes], deadline: float
    ) -> list[Ended]:
        """Send one atomic action for each key, once, and return how each ended.

        Args:
            keys: the keys of their rows.
            build: returns the action of a place, for a region.
            deadline: by ``time.monotonic()``.

        Raises:
            MetadataStoreError: the locations of the rows cannot be read. Nothing was sent.
        """
        ended: list[Ended] = [_NO_ANSWER] * len(keys)
        places: defaultdict[str, list[tuple[int, Region]]] = defaultdict(list)
        for place, key in enumerate(keys):
            region = self.cluster.region_of(key, deadline)
            places[region.address].append((place, region))
        sent: list[tuple[_Reply, list[tuple[int, Region]]]] = []
        for address, some in places.items():
            actions = [build(place, region.field) for place, region in some]
            for part in _parts([*map(len, actions)], self._most_bytes, self._most_rows // 2):
                theirs = some[part]
                sent.append((self._begin(address, actions[part], len(theirs), deadline), theirs))
        for reply, theirs in sent:
            results: Sequence[Ended]
            try:
                results = _written(reply(deadline), len(theirs))
            except LostError as error:
                results = [error] * len(theirs)
            except RemoteError as error:
                # Of the call as a whole: unless it was not begun, a part of it may be applied.
                begun = meaning_of(error) != "busy" and error.kind != TOO_BIG
                results = [LostError(str(error), sent=True) if begun else error] * len(theirs)
            for (place, _), result in zip(theirs, results, strict=True):
                ended[place] = result
        return ended

    def read(
        self,
        keys: Sequence[bytes],
        columns: Sequence[Any],
        deadline: float,
        *,
        hides: bool = True,
    ) -> dict[bytes, Row]:
        """Read rows; those without any of the columns are missing.

        With ``hides``, values of ended sessions are left out of their rows.

        Raises:
            MetadataStoreError: they cannot be read until the deadline.
        """
        found: dict[bytes, Row] = {}
        left = list(dict.fromkeys(keys))
        attempts = 0
        said: LostError | RemoteError | None = None
        while True:
            failed = self._read_once(left, columns, found, deadline)
            if not failed:
                return self.living(found, deadline) if hides else found
            errors = list(failed.values())
            # The last one may only be that the time was over.
            said = errors[0] if said is None or time.monotonic() < deadline else said
            for error in errors:
                if meaning_of(error) == "refused":
                    raise error_of(error)
            if len(failed) < len(left):
                attempts = 0  # The others are there: it was busy, or the answer was too large.
            left = [key for key in left if key in failed]
            if not self.cluster.pause(attempts, deadline):
                raise repeatable(said)
            self.relocate(errors, deadline)
            self.cluster.tally.add("retry")
            attempts += 1

    def living(self, rows: dict[bytes, Row], deadline: float) -> dict[bytes, Row]:
        """Return rows without the values whose sessions have ended.

        Raises:
            MetadataStoreError: the sessions cannot be read until the deadline.
        """
        owners = {row.owner for row in rows.values()} - {0}
        if not owners:
            return rows
        # The session that was read after its value stood while the value was read.
        keys = [session_key(owner) for owner in owners]
        standing = self.read(keys, STATES, deadline, hides=False)
        ended = {
            owner
            for owner, key in zip(owners, keys, strict=True)
            if standing.get(key, NO_ROW).version == ABSENT
        }
        self.saw_sessions(owners - ended)
        return {key: row.hidden() if row.owner in ended else row for key, row in rows.items()}

    def relocate(self, errors: Sequence[LostError | RemoteError], deadline: float) -> None:
        """Read the locations again, if errors show that they may be wrong."""
        meanings = {meaning_of(error) for error in errors}
        if "busy" in meanings:
            self.cluster.tally.on_busy()
        if not meanings.isdisjoint({"moved", "lost"}):
            self.cluster.moved(deadline)

    def _begin(self, address: str, actions: Sequence[bytes], count: int, deadline: float) -> _Reply:
        """Send ``count`` actions, and return what waits for their answer."""
        request, response = multi(actions), MESSAGES.MultiResponse
        sent = address, count, len(request)
        if count == 1 and len(request) > self._most_bytes:
            limit = f"{self._most_bytes} that HBase accepts (hbase.ipc.max.request.size)"
            error = RemoteError(TOO_BIG, f"a message has {len(request)} bytes, above the {limit}")
            return partial(self._reply, sent, error)
        try:
            pending = self.cluster.begin(address, "Multi", request, response, deadline)
        except LostError as error:
            return partial(self._reply, sent, error)
        return partial(self._reply, sent, pending)

    def _reply(self, sent: tuple[str, int, int], got: Pending | Exception, by: float) -> Reply:
        """Return an answer, or learn from a refusal how large messages may be."""
        address, count, size = sent
        refusal: RemoteError | None
        try:
            if isinstance(got, Exception):
                raise got
            return got.wait(by)
        except RemoteError as error:
            refusal = error
        except LostError:
            if size < _LARGE or time.monotonic() >= by:
                raise
            refusal = self.cluster.refusal(address, size, by)
            if refusal is None or refusal.kind != TOO_BIG:
                raise
        if found := _MOST_ROWS.search(refusal.text):
            self._most_rows = min(self._most_rows, int(found[1]))
        elif refusal.kind == TOO_BIG:
            found = _MOST_BYTES.search(refusal.text)
            self._most_bytes = int(found[1]) - _AROUND if found else size // 2
        else:
            raise refusal
        if count == 1:
            raise RemoteError(TOO_BIG, refusal.text)
        self.cluster.tally.add("split")
        raise LostError(str(refusal), sent=False)

    def _read_once(
        self, keys: Sequence[bytes], columns: Sequence[Any], found: dict[bytes, Row], by: float
    ) -> dict[bytes, LostError | RemoteError]:
        """Read rows; return the errors of those that could not be read."""
        places: dict[Region, list[bytes]] = {}
        if len(regions := self.cluster.regions(by)) == 1:
            places[regions[0]] = [*keys]
        else:
            for key in keys:
                places.setdefault(self.cluster.region_of(key, by), []).append(key)
        sent: list[tuple[_Reply, Sequence[bytes]]] = []
        for region, some in places.items():
            sizes = [len(key) + _GET for key in some]
            for part in _parts(sizes, self._most_bytes, min(_PART, self._most_rows)):
                theirs = some[part]
                actions = [gets(region.field, theirs, columns)]
                sent.append((self._begin(region.address, actions, len(theirs), by), theirs))
        failed: dict[bytes, LostError | RemoteError] = {}
        for reply, asked in sent:
            try:
                failed.update(_take(reply(by), asked, found))
            except (LostError, RemoteError) as error:
                failed.update(dict.fromkeys(asked, error))
        return failed


_NO_ANSWER: Final = LostError("the answer has no result for this operation", sent=True)


def _nothing(owners: AbstractSet[int]) -> None: ...


def _parts(sizes: Sequence[int], most_bytes: int, most: int) -> Iterator[slice]:
    """Yield the parts of a list that fit into a message each, or are one item alone."""
    start = size = 0
    for place, added in enumerate(sizes if len(sizes) > most or sum(sizes) > most_bytes else ()):
        if place > start and (size + added > most_bytes or place - start >= most):
            yield slice(start, place)
            start, size = place, 0
        size += added
    if sizes:
        yield slice(start, len(sizes))


class _Cells:
    """Takes the cells of one result after the other, from the message or from beside it."""

    def __init__(self, reply: Reply) -> None:
        self._beside = iter(reply.cells)

    def of(self, result: Any) -> list[Cell]:
        if result.cell:
            return [
                Cell(cell.row, cell.family + b":" + cell.qualifier, cell.timestamp, cell.value)
                for cell in result.cell
            ]
        count = result.associated_cell_count
        found = list(islice(self._beside, count))
        if len(found) < count:
            raise LostError("the answer lacks cells", sent=True)
        return found


def _written(reply: Reply, count: int) -> list[Ended]:
    """Return how each of ``count`` atomic actions ended."""
    ended: list[Ended] = []
    for action in reply.message.region_action_result:
        failures = [
            part.exception for part in action.result_or_exception if part.HasField("exception")
        ]
        if action.HasField("exception"):
            failures.append(action.exception)
        ended.append(_remote(failures[0]) if failures else Written(action.processed))
    return (ended + [_NO_ANSWER] * count)[:count]


def _take(
    reply: Reply, keys: Sequence[bytes], found: dict[bytes, Row]
) -> dict[bytes, LostError | RemoteError]:
    """Add the rows of an answer; return the errors of the keys that have none."""
    if _is_whole(reply, len(keys)):  # nearly always
        found.update(rows_in(reply.cells))
        return {}
    cells = _Cells(reply)
    failed: dict[bytes, LostError | RemoteError] = dict.fromkeys(keys, _NO_ANSWER)
    for action in reply.message.region_action_result:
        if action.HasField("exception"):
            return dict.fromkeys(keys, _remote(action.exception))
        for part in action.result_or_exception:
            key = keys[part.index]
            if part.HasField("exception"):
                failed[key] = _remote(part.exception)
            else:
                found.update(rows_in(cells.of(part.result)))
                del failed[key]
    return failed


def _is_whole(reply: Reply, count: int) -> bool:
    """Say whether all results of one action are there, and all their cells beside the message."""
    actions = reply.message.region_action_result
    if len(actions) != 1 or actions[0].HasField("exception"):
        return False
    cells = number = 0
    for part in actions[0].result_or_exception:
        result = part.result
        if result.cell or part.HasField("exception"):
            return False
        cells += result.associated_cell_count
        number += 1
    return number == count and cells == len(reply.cells)


def _remote(exception: Any) -> RemoteError:
    return RemoteError.of(exception.name, exception.value.decode(errors="replace"))

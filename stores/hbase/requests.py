"""Sends actions on rows to the servers that have them, and gives each its own end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ...ops.errors import MetadataStoreError, StoreUnavailableError
from .cluster import Cluster, Region
from .layout import Row, rows_in
from .wire.cells import Cell
from .wire.connection import LostError, Pending, RemoteError, Reply
from .wire.errors import error_of, meaning_of
from .wire.messages import MESSAGES

__all__ = ["Ended", "Requests", "Written", "repeatable"]


@dataclass(frozen=True, slots=True)
class Written:
    """An action that HBase has decided.

    Attributes:
        processed: whether its condition held, and it was applied.
        cells: what it returns, such as the new value of a counter.
    """

    processed: bool
    cells: list[Cell]


#: How an action ended.
Ended: TypeAlias = Written | LostError | RemoteError

# The most gets, and rows to touch, in one message.
_PART: Final = 1_000


class Requests:
    """The requests of one store.

    Args:
        cluster: its servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def act(
        self, keys: Sequence[bytes], build: Callable[[int, Any], Any], deadline: float
    ) -> list[Ended]:
        """Send one atomic action for each key, once, and return how each ended.

        Args:
            keys: the keys of their rows.
            build: returns the action of a place, for a region.
            deadline: by ``time.monotonic()``.

        Raises:
            MetadataStoreError: the locations of the rows cannot be read. Nothing was sent.
        """
        ended: list[Ended | None] = [None] * len(keys)
        places: defaultdict[str, list[tuple[int, Region]]] = defaultdict(list)
        for place, key in enumerate(keys):
            region = self.cluster.region_of(key, deadline)
            places[region.address].append((place, region))
        sent: list[tuple[list[tuple[int, Region]], Pending]] = []
        for address, some in places.items():
            request = MESSAGES.MultiRequest(
                region_action=[build(place, region.specifier) for place, region in some]
            )
            try:
                sent.append(
                    (
                        some,
                        self.cluster.begin(
                            address, "Multi", request, MESSAGES.MultiResponse, deadline
                        ),
                    )
                )
            except LostError as error:
                for place, _ in some:
                    ended[place] = error
        for some, pending in sent:
            results: Sequence[Ended]
            try:
                results = _written(pending.wait(deadline), len(some))
            except (LostError, RemoteError) as error:
                results = [error] * len(some)
            for (place, _), result in zip(some, results, strict=True):
                ended[place] = result
        return [one if one is not None else _NO_ANSWER for one in ended]

    def read(
        self, keys: Sequence[bytes], columns: Sequence[Any], deadline: float
    ) -> dict[bytes, Row]:
        """Read rows; those without any of the columns are missing.

        Raises:
            MetadataStoreError: they cannot be read until the deadline.
        """
        found: dict[bytes, Row] = {}

        def take(_key: bytes, cells: list[Cell]) -> None:
            found.update(rows_in(cells))

        self._each(
            keys,
            lambda index, key: MESSAGES.Action(
                index=index, get=MESSAGES.Get(row=key, column=columns)
            ),
            take,
            deadline,
        )
        return found

    def _each(
        self,
        keys: Sequence[bytes],
        build: Callable[[int, bytes], Any],
        take: Callable[[bytes, list[Cell]], None],
        deadline: float,
    ) -> None:
        """Send an action for each key, which may be sent twice, until each has its answer."""
        left = list(dict.fromkeys(keys))
        attempts = 0
        while left:
            failed: dict[bytes, LostError | RemoteError] = {}
            self._send_each(left, build, take, failed, deadline)
            left = [key for key in left if key in failed]
            if not left:
                return
            errors = list(failed.values())
            for error in errors:
                if meaning_of(error) == "refused":
                    raise error_of(error)
            if not self.cluster.pause(attempts, deadline):
                raise repeatable(error_of(errors[0]))
            self.relocate(errors, deadline)
            self.cluster.tally.add("retry")
            attempts += 1

    def relocate(self, errors: Sequence[LostError | RemoteError], deadline: float) -> None:
        """Read the locations again, if errors show that they may be wrong."""
        if any(meaning_of(error) in {"moved", "lost"} for error in errors):
            self.cluster.moved(deadline)

    def _send_each(
        self,
        keys: Sequence[bytes],
        build: Callable[[int, bytes], Any],
        take: Callable[[bytes, list[Cell]], None],
        failed: dict[bytes, LostError | RemoteError],
        deadline: float,
    ) -> None:
        places: defaultdict[Region, list[bytes]] = defaultdict(list)
        for key in keys:
            places[self.cluster.region_of(key, deadline)].append(key)
        sent: list[tuple[Region, list[bytes], Pending]] = []
        for region, some in places.items():
            for start in range(0, len(some), _PART):
                part = some[start : start + _PART]
                request = MESSAGES.MultiRequest(
                    region_action=[
                        MESSAGES.RegionAction(
                            region=region.specifier,
                            action=[build(index, key) for index, key in enumerate(part)],
                        )
                    ]
                )
                try:
                    sent.append(
                        (
                            region,
                            part,
                            self.cluster.begin(
                                region.address, "Multi", request, MESSAGES.MultiResponse, deadline
                            ),
                        )
                    )
                except LostError as error:
                    failed.update(dict.fromkeys(part, error))
        for _, part, pending in sent:
            try:
                reply = pending.wait(deadline)
            except (LostError, RemoteError) as error:
                failed.update(dict.fromkeys(part, error))
                continue
            _hand_out(reply, part, take, failed)


_NO_ANSWER: Final = LostError("the answer has no result for this operation", sent=True)


def repeatable(error: MetadataStoreError) -> MetadataStoreError:
    """Return the error of a request that changes nothing that callers see."""
    if error.outcome == "unknown":
        return StoreUnavailableError(str(error), path=error.path)
    return error


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
        return [next(self._beside) for _ in range(result.associated_cell_count)]


def _written(reply: Reply, count: int) -> list[Ended]:
    """Return how each of ``count`` atomic actions ended."""
    cells = _Cells(reply)
    ended: list[Ended] = []
    for action in reply.message.region_action_result:
        if action.HasField("exception"):
            ended.append(_remote(action.exception))
            continue
        found: list[Cell] = []
        failure = None
        for part in action.result_or_exception:
            if part.HasField("exception"):
                failure = _remote(part.exception)
            elif part.HasField("result"):
                found += cells.of(part.result)
        ended.append(failure or Written(action.processed, found))
    return (ended + [_NO_ANSWER] * count)[:count]


def _hand_out(
    reply: Reply,
    keys: Sequence[bytes],
    take: Callable[[bytes, list[Cell]], None],
    failed: dict[bytes, LostError | RemoteError],
) -> None:
    """Give each key the cells of its action."""
    cells = _Cells(reply)
    left = dict.fromkeys(range(len(keys)))
    for action in reply.message.region_action_result:
        if action.HasField("exception"):
            failed.update(dict.fromkeys(keys, _remote(action.exception)))
            return
        for part in action.result_or_exception:
            left.pop(part.index, None)
            if part.HasField("exception"):
                failed[keys[part.index]] = _remote(part.exception)
            else:
                take(keys[part.index], cells.of(part.result))
    failed.update({keys[index]: _NO_ANSWER for index in left})


def _remote(exception: Any) -> RemoteError:
    return RemoteError.of(exception.name, exception.value.decode(errors="replace"))

"""Executes batches of reads: each in one transaction of ranges; further pages one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from ....ops.errors import MetadataStoreError
from ....ops.kinds import BRINGS_VALUES
from ....ops.paths import children_of
from ....ops.results import GetResult
from ...backend import Answer, ReadRequest
from ..sizes.estimates import AnswerBytes
from ..sizes.requests import Requests
from ..wire.batches import readable
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.fields import below_of
from ..wire.lineage import Lineage
from ..wire.protos import messages
from .listing import Listing
from .ranges import FIRST_PAGE, parse_read, read_request

__all__ = ["Reader"]

_kind = attrgetter("kind")


class Reader:
    """Executes batches of reads. Several threads use it at once.

    Args:
        requests: sends them.
        prefix: precedes every path in the keys.
        owns: says whether a lease is that of the client's session.
        lineage: hears of the newest value, so that a restored etcd is noticed.
    """

    def __init__(
        self, requests: Requests, prefix: str, owns: Callable[[int], bool], lineage: Lineage
    ) -> None:
        self._requests = requests
        self._prefix = prefix
        self._owns = owns
        self._lineage = lineage
        self._values: Final = AnswerBytes()

    def most(self, requests: Sequence[ReadRequest]) -> int:
        """Return the number of requests for the next transaction."""
        most = self._requests.limits.read_ops
        values = self._values.values
        return min(most, values) if len(requests) > values and _gets(requests) > values else most

    def size(self, requests: Sequence[ReadRequest]) -> int:
        """Return the bytes of a transaction."""
        return len(read_request(requests, self._prefix))

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> list[Answer]:
        """Execute reads in one transaction. Return an answer for each, and raise as for a whole.

        Further calls read the other names of a long get_children.
        """
        body = read_request(requests, self._prefix)
        try:
            answer = self._requests.txn(body, deadline, write=False, attempt=0)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.ANSWER_TOO_LARGE:
                self._values.refused(len(requests))
            if refusal.reason is not Reason.NO_SPACE:
                raise
            answer = self._requests.ranges(body, deadline)
        with readable(write=False):
            answers, listings = parse_read(requests, answer, self._owns)
        # If none was found, nothing is known but that more fit.
        if values := [*map(type, answers)].count(GetResult) or _gets(requests):
            self._values.saw(values, len(answer))
        for index, page in listings:
            request = requests[index]
            try:
                answers[index] = self._children(request.path, page, deadline)
            except EtcdRefusedError as refusal:
                answers[index] = refusal.at(request.path)
            except MetadataStoreError as error:
                answers[index] = error.for_path(request.path)
        if self._lineage.watched:
            found = (one for one in answers if isinstance(one, GetResult))
            if newest := max(found, key=lambda one: one.stat.revision, default=None):
                key = (self._prefix + newest.stat.path).encode()
                self._lineage.saw(key, newest.stat.revision, newest.value)
        return answers

    def _children(self, path: str, page: Any, deadline: float) -> list[str]:
        below, stop = below_of(path, self._prefix)
        while True:
            listing = Listing(below, stop, FIRST_PAGE)
            # All pages show the revision of the first.
            revision = page.header.revision
            try:
                listing.take([kv.key for kv in page.kvs], page.count)
                while not listing.done:
                    page = self._page(listing, revision, deadline)
                    listing.take([kv.key for kv in page.kvs], page.count)
                break
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.COMPACTED:
                    raise
                first = _page_request(Listing(below, stop, FIRST_PAGE), 0)
                page = self._requests.range(first, deadline)
        return children_of(path, listing.names())

    def _page(self, listing: Listing, revision: int, deadline: float) -> Any:
        while True:
            try:
                return self._requests.range(_page_request(listing, revision), deadline)
            except EtcdRefusedError as refusal:
                if refusal.reason is not Reason.ANSWER_TOO_LARGE or listing.limit == 1:
                    raise
                listing.limit = max(1, listing.limit // 4)


def _page_request(listing: Listing, revision: int) -> Any:
    return messages.RangeRequest(
        key=listing.start,
        range_end=listing.end,
        limit=listing.limit,
        revision=revision,
        keys_only=True,
    )


def _gets(requests: Sequence[ReadRequest]) -> int:
    """Return how many of the requests return values."""
    kinds = [*map(_kind, requests)]
    return sum(map(kinds.count, BRINGS_VALUES))

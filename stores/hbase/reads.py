"""Gets, existence and children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ...ops.operations import ABSENT
from ...ops.paths import children_of
from ..backend import Answer, ReadRequest
from ..refusals import not_ours
from .forms import STATES, STATES_AND_VALUES
from .layout import FOREIGN, NO_ROW
from .requests import Requests
from .scans import Walk

__all__ = ["read"]


def read(
    requests: Requests, own: int, reads: Sequence[ReadRequest], deadline: float
) -> list[Answer]:
    """Return the answers of reads, in order. Those of one row are of one moment."""
    gets = [request.path.encode() for request in reads if request.kind == "get"]
    looks = [request.path.encode() for request in reads if request.kind == "exists"]
    values = requests.read(gets, STATES_AND_VALUES, deadline) if gets else {}
    states = requests.read(looks, STATES, deadline) if looks else {}
    answers: list[Answer] = []
    for request in reads:
        path = request.path
        match request.kind:
            case "get":
                answers.append(values.get(path.encode(), NO_ROW).result(path, own))
            case "exists":
                version = states.get(path.encode(), NO_ROW).version
                answers.append(not_ours(path) if version == FOREIGN else version != ABSENT)
            case "get_children":
                answers.append(_children(requests, path, deadline))
            case _:
                assert_never(request.kind)
    return answers


def _children(requests: Requests, path: str, deadline: float) -> list[str]:
    """Return the names below a path. What lies below a child is passed over, page by page."""
    prefix = b"/" if path == "/" else path.encode() + b"/"
    end = prefix[:-1] + b"0"  # It follows the slash.
    names: set[bytes] = set()
    start: bytes | None = prefix
    while start is not None:
        begin, start = start, None
        for rows in Walk(requests, 0.0, STATES).pages(begin, end, deadline):
            for key, row in rows:
                if row.version != FOREIGN:
                    names.add(key[len(prefix) :].partition(b"/")[0])
            name, slash, _ = rows[-1][0][len(prefix) :].partition(b"/")
            if slash and name in names:  # The rest below that child.
                start = prefix + name + b"0"
                break
    return children_of(path, [name.decode(errors="surrogateescape") for name in sorted(names)])

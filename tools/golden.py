"""Record, byte for byte, what the stores send for thousands of batches, before and after a change.

``python tools/golden.py etcd nested > before`` writes one line for each batch: its number and its
operations, and digests of the requests that it took and of its answers. After a change that should
change nothing on the line, the same command on the same servers gives the same file, with and
without the accelerator (``BATCHKEEPER_PURE=1``)::

    etcd nested | etcd flat | zookeeper | rocksdb    [--batches N] [--seed N] [--show N]

Each batch is drawn from the seed: 1 to 64 puts, deletes, sequential and ephemeral puts, conditions
by version and by revision, and transactions. For some hundred batches few are refused; for the next
ones all are on few paths, and many are. At first nothing is ephemeral, so that there is no session.
One write in ten loses its request or its answer. Nothing else is imitated: the servers are real and
empty, one client writes, and what it draws by lot (names, ids of leases) is numbered. For RocksDB,
the records stand for what is sent.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import batchkeeper as bk
from batchkeeper.ops import ABSENT
from batchkeeper.ops.errors import MetadataStoreError
from batchkeeper.stores import ConnectOptions, parse_url
from batchkeeper.stores.backend import Backend
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import UnansweredError
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.rocksdb import connect as connect_rocksdb
from batchkeeper.stores.rocksdb.commits import Commits
from batchkeeper.stores.rocksdb.layout import META_KEY
from batchkeeper.stores.zookeeper import connect as connect_zookeeper
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS
from batchkeeper.testing.servers import EtcdServer, ZooKeeperServer

_SECONDS: Final = 60.0
_LOST: Final = 0.1
# Batches. So many have more writes than etcd's client must see applied to call refusals rare.
_PHASE: Final = 400
_LEAVES: Final = [f"/{top}/{leaf}" for top in "ab" for leaf in range(6)]
_PATHS: Final = ["/a", "/b", *_LEAVES, "/a/0/deep", "/a/0/deep/er", "/c"]
# What differs from one run to the next: times, and ZooKeeper's revisions, which also move when some
# other session begins or ends, such as that which awaited the server.
_TIMES: Final = re.compile(rb"(created|modified)=\d+")
_MOVED: Final = re.compile(rb"(created|modified|revision)=\d+")


class Draw:
    """Draws batches, as the engine could hand them to a back end."""

    def __init__(self, seed: int, *, revisions: bool) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - it shall repeat itself
        self._revisions = revisions
        self._ephemerals = False
        self._forms: list[str] = []
        self.revision = 1

    def batch(self, number: int) -> list[bk.Operation]:
        """Return writes of different paths; transactions may check the same path."""
        self._ephemerals = number >= 2 * _PHASE
        # Where refusals are rare, writes share their conditions. So they are rare for a while.
        return self._wild() if number // _PHASE % 2 else self._calm(number)

    def _calm(self, number: int) -> list[bk.Operation]:
        """Return creations, and with the next number changes of what they have made."""
        dice = self._dice
        new = number % 2 == 0
        expected = ABSENT if new else 0
        if new:
            forms = ["put", "put", "put", "transaction", "sequential", "ephemeral", "deleted"]
            self._forms = dice.choices(forms, k=dice.choice([1, 8, 16, 32, 64]))
        ops: list[bk.Operation] = []
        for place, form in enumerate(self._forms):
            path = f"/n/{number // 2}/{place}"
            put = bk.Put(
                path,
                self._value(),
                expected,
                ephemeral=new and self._ephemerals and form == "ephemeral",
            )
            if form == "transaction":
                ops.append(bk.Transaction([bk.Check("/calm", 0), put]))
            elif form == "sequential":
                ops.append(bk.Put(f"/s/{place % 3}-", b"s", sequential=True))
            elif form == "deleted" and not new:
                ops.append(bk.Delete(path))
            else:
                ops.append(put)
        return ops

    def _wild(self) -> list[bk.Operation]:
        """Return writes of any form on few paths."""
        dice = self._dice
        left = dice.sample(_PATHS, len(_PATHS))
        wanted = dice.choice([1, 2, 4, 8, 16, 32, 64])
        ops: list[bk.Operation] = []
        plain = dice.random() < 0.3
        while len(ops) < wanted:
            if not left:
                # More than there are paths: new ones, with conditions that nearly always hold.
                ops.append(bk.Put(f"/n/{dice.randrange(10**6)}/{len(ops)}", b"n", self._version()))
            elif dice.random() < 0.15 and not plain:
                ops.append(self._transaction(left))
            else:
                ops.append(self._write(left.pop(), plain=plain))
        return ops

    def _version(self) -> int | None:
        return self._dice.choice([None, None, ABSENT, 0, 1, 2])

    def _revision(self) -> int | None:
        if not self._revisions or self._dice.random() < 0.8:
            return None
        return max(1, self.revision - self._dice.randrange(40))

    def _value(self) -> bytes:
        return bytes(self._dice.choice([0, 3, 30, 300]))

    def _write(self, path: str, *, plain: bool) -> bk.Put | bk.Delete:
        dice = self._dice
        if plain:
            return bk.Put(path, self._value(), self._version())
        if dice.random() < 0.25:
            revision = self._revision()
            return bk.Delete(path, dice.choice([None, None, 0, 1]), expected_revision=revision)
        ephemeral = self._ephemerals and dice.random() < 0.15
        if dice.random() < 0.1:
            return bk.Put(f"{path}/s-", self._value(), ephemeral=ephemeral, sequential=True)
        version = self._version()
        revision = None if version == ABSENT else self._revision()
        return bk.Put(path, self._value(), version, ephemeral=ephemeral, expected_revision=revision)

    def _transaction(self, left: list[str]) -> bk.Transaction:
        dice = self._dice
        parts: list[bk.Check | bk.Put | bk.Delete] = []
        hot = dice.random() < 0.5
        for _ in range(min(len(left), dice.choice([1, 2, 3, 5]))):
            path = left.pop()
            if dice.random() < 0.4:
                parts.append(bk.Check(path, dice.choice([ABSENT, 0, 1])))
            elif hot:
                parts.append(bk.Put(path, self._value(), dice.choice([ABSENT, 0, 1])))
            else:
                part = self._write(path, plain=False)
                if isinstance(part, bk.Put) and part.sequential:
                    part = bk.Put(path, part.value)
                parts.append(part)
        return bk.Transaction(parts)


class Line:
    """What was sent for a batch, and which of it is lost. Only the thread that writes uses it."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - it shall repeat itself
        self.sent: list[bytes] = []
        self.loses = False  # not while a store is opened

    def lost(self) -> str | None:
        """Say what of the next write is lost: nothing, its request, or its answer."""
        if not self.loses or self._dice.random() >= _LOST:
            return None
        return self._dice.choice(["request", "answer"])


@contextmanager
def etcd(line: Line, folder: Path, *, flat_only: bool) -> Iterator[Backend]:
    """Open a back end on an empty etcd."""
    leases = itertools.count(1)
    call = EtcdConnection.call

    def recorded(self: Any, method: Any, request: Any, deadline: float, **options: Any) -> Any:
        if method == "grant":
            request.ID = next(leases)
        bytes_ = request if isinstance(request, bytes) else request.SerializeToString()
        line.sent.append(b"%b %b" % (method.encode(), bytes_))
        lost = line.lost() if options["write"] and method == "txn" else None
        if lost == "request":
            raise UnansweredError("lost")
        answer = call(self, method, request, deadline, **options)
        if lost == "answer":
            raise UnansweredError("lost")
        return answer

    with ExitStack() as stack:
        server = stack.enter_context(EtcdServer(folder / "etcd"))
        stack.enter_context(mock.patch.object(EtcdConnection, "call", recorded))
        url = parse_url(f"{server.url}/golden")
        connection = EtcdConnection(url.addresses(2379), Credentials())
        yield stack.enter_context(
            closing(
                EtcdBackend(
                    connection, url.prefix(), time.monotonic() + _SECONDS, flat_only=flat_only
                )
            )
        )


@contextmanager
def zookeeper(line: Line, folder: Path) -> Iterator[Backend]:
    """Open a back end on an empty ZooKeeper."""
    begin = ZooKeeperConnection.begin

    def recorded(
        self: Any, requests: Sequence[tuple[int, bytes]], deadline: float, **options: Any
    ) -> Callable[[float], list[Any]]:
        line.sent += [b"%d %b" % request for request in requests]
        lost = None if options["repeat"] else line.lost()
        if lost == "request":
            return lambda _deadline: [CONNECTION_LOSS for _ in requests]
        finish = begin(self, requests, deadline, **options)
        if lost is None:
            return finish

        def lose(deadline: float) -> list[Any]:
            finish(deadline)
            return [CONNECTION_LOSS for _ in requests]

        return lose

    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        stack.enter_context(mock.patch.object(ZooKeeperConnection, "begin", recorded))
        options = ConnectOptions(session_timeout=_SECONDS)
        yield stack.enter_context(
            closing(connect_zookeeper(parse_url(f"{server.url}/golden"), options))
        )


@contextmanager
def rocksdb(line: Line, folder: Path) -> Iterator[Backend]:
    """Open a back end on an empty directory."""
    write = Commits.write

    def recorded(self: Any, batch: Any, keys: list[bytes], largest: int = 0) -> Any:
        number = write(self, batch, keys, largest)
        database = self._database.db
        for key in (META_KEY, *keys):
            line.sent.append(b"%b=%b" % (key, database.get(key, b"-")))
        return number

    seconds = itertools.count(10**9)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Commits, "write", recorded))
        stack.enter_context(
            mock.patch("time.time_ns", side_effect=(second * 10**9 for second in seconds))
        )
        url = parse_url(f"rocksdb://{folder / 'rocksdb'}")
        yield stack.enter_context(closing(connect_rocksdb(url, ConnectOptions())))


STORES: Final[dict[str, Callable[[Line, Path], Any]]] = {
    "etcd nested": lambda line, folder: etcd(line, folder, flat_only=False),
    "etcd flat": lambda line, folder: etcd(line, folder, flat_only=True),
    "zookeeper": zookeeper,
    "rocksdb": rocksdb,
}


def record(name: str, batches: int, seed: int, show: int | None) -> Iterator[str]:
    """Yield a line for each batch, and after the one to show, all that it stands for."""
    line, lots = Line(seed), itertools.count(1)
    draw = Draw(seed, revisions=name != "zookeeper")
    with tempfile.TemporaryDirectory() as folder:
        drawn = mock.patch("os.urandom", lambda size: next(lots).to_bytes(size, "big"))
        with drawn, STORES[name](line, Path(folder)) as backend:
            # The places of write ids are made with the first write.
            backend.write([bk.Put("/calm", b"", ABSENT)], time.monotonic() + _SECONDS)
            line.loses = True
            for number in range(batches):
                ops = draw.batch(number)
                line.sent.clear()
                answers: Any
                try:
                    answers = backend.write(ops, time.monotonic() + _SECONDS)
                except MetadataStoreError as error:
                    answers = [error]
                found = [answer.revision for answer in answers if isinstance(answer, bk.Stat)]
                draw.revision = max([draw.revision, *found])
                yield f"{number} {len(ops)} {_digest(line.sent)} {_digest(_texts(answers, name))}"
                if number == show:
                    yield from map(repr, [*ops, *line.sent, *_texts(answers, name)])


def _digest(texts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(b"%d:%b" % (len(text), text))
    return f"{len(texts)}:{digest.hexdigest()[:16]}"


def _texts(answers: Sequence[Any], name: str) -> list[bytes]:
    differs = _MOVED if name == "zookeeper" else _TIMES
    return [differs.sub(rb"\1", repr(answer).encode()) for answer in answers]


def main() -> int:
    """Record one store on standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", nargs="+", help=", ".join(STORES))
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, metavar="N", help="print a batch and its answers")
    chosen = parser.parse_args()
    name = " ".join(chosen.store)
    if name not in STORES:
        parser.error(f"no such store: {name} ({', '.join(STORES)})")
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Where a store asks for several paths at once, their order is that of a set.
        os.execve(  # noqa: S606 - this program again
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    for text in record(name, chosen.batches, chosen.seed, chosen.show):
        sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# Made from async_claims.py by `python tools/faces.py`: change that file, and run this command.
"""One contender of this process for one path, and whether it may still act as the holder.

A claim holds for certain only while the session in which its value was created cannot have ended.
Three things end it, whichever comes first:

- the clock: ``session.valid_until()`` has passed. The server may have ended the session, and
  somebody else may hold the path;
- the session: the store says that it has ended;
- the value: somebody has deleted it.

A warden looks after the first two for all claims of a store, and the lobby reports the third. A
claim that is lost never holds again, even if its value is still there: the lobby removes that.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from ..batching import MetadataStore
from ..ops.errors import BadVersionError, LockLostError, MetadataStoreError
from ..ops.results import Stat
from ..ops.sessions import SessionEvent
from .background import Gate, Signal, spawn
from .contenders import Need, Place, parse

__all__ = ["Claim", "warden"]

# Seconds between two looks at the session while nothing else wakes the warden. `close` of a store
# is no event of its session, so this is how soon its claims are lost.
_LOOK: Final = 0.25
# The looks after which a warden without claims ends. Locks that are held for moments only would
# begin a new thread each time otherwise.
_EMPTY: Final = 20


class Claim:
    """One contender of this process.

    Args:
        store: the store.
        need: when its turn comes.
        value: the value that others see.
        withdraw: removes its value in the background.

    Attributes:
        place: its place in the line.
        value: the value that others see.
        stat: the stat of its value at its creation, or ``None`` until then.
        version: the present version of its value.
        woken: its turn has come, or it has ended.
        lost: set when it has ended.
        held: whether it holds the path. The warden may still have to notice a loss; ``held_until``
            knows it at once.
        ended: whether it was released, lost or withdrawn, so that it never holds again.
        error: why nobody tells it any more when its turn comes, or ``None``.
        sent: whether its value was created, or may have been.
    """

    def __init__(
        self,
        store: MetadataStore,
        need: Need,
        value: bytes,
        withdraw: Callable[[Claim], None],
    ) -> None:
        self._store = store
        self._withdraw = withdraw
        self._session: str | None = None
        self.place = Place(need)
        self.value = value
        self.stat: Stat | None = None
        self.version = 0
        self._updating = Gate()
        self.woken = Signal()
        self.lost = Signal()
        self.held = False
        self.ended = False
        self.error: MetadataStoreError | None = None
        self.sent = False

    def create(self, path: str, timeout: float | None) -> None:
        """Create its value below a path, within ``timeout`` seconds.

        Raises:
            MetadataStoreError: the put has failed. ``sent`` says whether it may have been applied.
        """
        # The value belongs to this session if the session is the same afterwards.
        session = self._store.session.id
        self.sent = True
        try:
            stat = self._store.put(
                f"{path}/{self.place.head}",
                self.value,
                ephemeral=True,
                sequential=True,
                timeout=timeout,
            ).result()
        except MetadataStoreError as error:
            self.sent = error.outcome == "unknown"
            raise
        # Without an id before, the put has begun the first session.
        self._session = session or self._store.session.id
        self.place.contender = parse(stat.path.rpartition("/")[2])
        self.stat = stat
        self.version = stat.version

    def update(self, value: bytes) -> None:
        """Change the value that others see. Its place in the line stays.

        Raises:
            LockLostError: it has ended.
            MetadataStoreError: the put has failed; see ``outcome``.
        """
        assert self.stat is not None
        self._updating.enter()
        try:
            while not self.ended:
                if self._replace(self.stat.path, value):
                    return
        finally:
            self._updating.leave()
        path = self.stat.path.rpartition("/")[0]
        raise LockLostError(f"the claim for {path} has ended", path=path)

    def _replace(self, path: str, value: bytes) -> bool:
        """Put a value over that of the version that is known; return whether it was put."""
        try:
            # Conditional: after a loss, an unconditional put would leave a value without a session.
            stat = self._store.put(path, value, expected_version=self.version).result()
            self.version = stat.version
        except BadVersionError:
            # An earlier put without an answer was applied, somebody else has put a value here, or
            # somebody has deleted it.
            found = self._store.get(path).result()
            if found is None:
                self.lose()
            else:
                self.version = found.stat.version
            return False
        except MetadataStoreError as error:
            if error.outcome == "unknown":
                self._find_version(path)
            raise
        self.value = value
        return True

    def _find_version(self, path: str) -> None:
        """Look once for the version after a put without an answer. The next put looks again."""
        try:
            found = self._store.get(path).result()
        except MetadataStoreError:
            return
        if found is not None:
            self.version, self.value = found.stat.version, found.value

    @property
    def same_session(self) -> bool:
        """Whether the session in which its value was created is still the store's session."""
        try:
            return self._session is not None and self._store.session.id == self._session
        except MetadataStoreError:  # The store is closed, or this is a forked process.
            return False

    def valid_until(self) -> float:
        """Return the time before which its session cannot have ended; see ``Session``."""
        if self.ended:
            return -math.inf
        try:
            session = self._store.session
            until = session.valid_until()
            # In this order: a new session's time must not count for the old one.
            same = session.id == self._session
        except MetadataStoreError:  # The store is closed, or this is a forked process.
            return -math.inf
        return until if same else -math.inf

    def held_until(self) -> float:
        """Return the time before which nobody else can hold the path, or ``-math.inf``."""
        return self.valid_until() if self.held else -math.inf

    def over(self, now: float) -> bool:
        """Say whether it has ended: by the clock if it is held, or with its session."""
        if self.held:
            return self.held_until() <= now
        return self.ended or not self.same_session

    def begin(self) -> bool:
        """Hold from now on; return whether the session is certain to be there."""
        self.held = True
        if self.held_until() <= time.monotonic():
            self.held = False
        return self.held

    def end(self) -> None:
        """Hold no more. Any thread may call it, also more than once."""
        self.held = False
        self.ended = True
        self.lost.set()
        self.woken.set()

    def lose(self) -> None:
        """Hold no more, and see to it that nobody waits for it: its value may have survived."""
        if not self.ended:
            self.end()
            self._withdraw(self)


class Warden:
    """Notices when the claims of one store are lost by the clock or with the session."""

    def __init__(self, store: MetadataStore) -> None:
        self._lock = threading.Lock()  # guards the following fields
        self._claims: set[Claim] = set()
        self._running = False
        store.add_session_listener(self._hear)

    def guard(self, claim: Claim) -> None:
        """Look after a claim, from the creation of its value to its end."""
        with self._lock:
            self._claims.add(claim)
            begin, self._running = not self._running, True
        if begin:
            spawn("warden", self._run)

    def _run(self) -> None:
        empty = 0
        while True:
            claims = self._look()
            left = min((claim.held_until() for claim in claims if claim.held), default=math.inf)
            empty = 0 if claims else empty + 1
            with self._lock:
                if empty > _EMPTY and not self._claims:
                    self._running = False
                    return
            time.sleep(min(max(left - time.monotonic(), 0.0), _LOOK))

    def _hear(self, _event: SessionEvent) -> None:
        self._look()

    def _look(self) -> list[Claim]:
        """End the claims that hold no more; return those that do."""
        with self._lock:
            claims = list(self._claims)
        now = time.monotonic()
        over = [claim for claim in claims if claim.over(now)]
        for claim in over:
            claim.lose()
        with self._lock:
            self._claims.difference_update(over)
        return [claim for claim in claims if not claim.ended]


# Guards the table. A warden refers to its store only through its claims.
_lock: Final = threading.Lock()
_wardens: Final[weakref.WeakKeyDictionary[MetadataStore, Warden]] = weakref.WeakKeyDictionary()


def warden(store: MetadataStore) -> Warden:
    """Return the warden of a store."""
    with _lock:
        warden = _wardens.get(store)
        if warden is None:
            warden = _wardens[store] = Warden(store)
        return warden

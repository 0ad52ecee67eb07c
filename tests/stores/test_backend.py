"""Back ends around others, and back ends that lack facets."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from typing import Any, cast

import pytest

import batchkeeper as bk
from batchkeeper.ops import Range
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import PassingBackend, in_steps

from ..waiting import PATIENCE, soon


class Bare:
    """A back end without facets."""

    scans = None
    history = None
    acls = None
    session = None
    watches = None

    def __init__(self) -> None:
        inner = connect("memory://bare", ConnectOptions())
        self.limits, self.tally, self.close = inner.limits, inner.tally, inner.close


def test_a_wrapper_has_the_facets_of_what_it_stands_around() -> None:
    """Scans go to the inner back end, and a facet that it lacks is missing in the wrapper."""
    inner = connect("memory://wrapped", ConnectOptions())
    outer = PassingBackend(inner)
    inner.write([bk.Put("/a", b"1"), bk.Put("/b", b"2")], soon())
    assert outer.scans is not None
    pages = list(outer.scans.scan("/", Range(), None, 60))
    assert [found.path for page in pages for found in page] == ["/a", "/b"]
    assert outer.history is None
    outer.close()
    with pytest.raises(bk.StoreClosedError):
        outer.scans.revision(60)
    bare = PassingBackend(cast("Any", Bare()))
    assert (bare.scans, bare.history) == (None, None)
    bare.close()


def test_a_store_without_a_facet_says_so_at_once() -> None:
    """A missing facet is UnsupportedError from the call itself, whatever the kind states."""
    everything = bk.BatchingConfig()
    with bk.MetadataStore(
        cast("Any", Bare()), everything, 60.0, "bare://", frozenset({"history"})
    ) as store:
        for call in (
            lambda: store.scan("/"),
            lambda: store.scan_pages("/"),
            lambda: store.split("/", 2),
            lambda: store.delete_recursive("/"),
            store.revision,
        ):
            with pytest.raises(bk.UnsupportedError, match="does not support scans"):
                call()
        with pytest.raises(bk.UnsupportedError, match="'history'"):
            store.changes("/", 0, 1)


def test_ctrl_c_does_not_cut_a_step_in_two() -> None:
    """It ends the wait for a page, whose reading goes on to its end; then the scan is closed."""
    steps: list[str] = []
    interrupted, release, closed = threading.Event(), threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def pages() -> Generator[list[int], None, None]:
        try:
            steps.append("begun")
            while not interrupted.wait(0.01):  # One that comes before the wait does not end it.
                signal.pthread_kill(main, signal.SIGINT)
            assert release.wait(PATIENCE)
            steps.append("ended")
            yield [1]
        finally:
            steps.append("closed")
            closed.set()

    usual = signal.signal(signal.SIGINT, interrupt)
    try:
        results = in_steps(pages())
        with pytest.raises(KeyboardInterrupt):
            next(results)
        results.close()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert steps == ["begun"]
    release.set()
    assert closed.wait(PATIENCE)
    assert steps == ["begun", "ended", "closed"]

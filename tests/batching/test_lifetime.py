"""Open stores when their process forks and when it ends. Each test has a separate process."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from ..programs import run_python

pytestmark = pytest.mark.slow  # Each starts a Python.

PRELUDE = """
import concurrent.futures, os, sys, threading, warnings
from batchkeeper.batching import BatchingConfig, MetadataStore
from batchkeeper.batching import futures as futures_module
from batchkeeper.ops import *
from batchkeeper.stores import ConnectOptions, connect, memory
from batchkeeper.testing.faults import Fault, FaultyBackend

def open_store(plan=None, name="a", **settings):
    backend = FaultyBackend(connect("memory://" + name, ConnectOptions()), plan)
    return MetadataStore(backend, BatchingConfig(**settings), 60.0, "memory://" + name)
"""


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new Python, which must end by itself."""
    return run_python(*options, "-c", PRELUDE + textwrap.dedent(program), timeout=60)


# --- fork

# Python warns of a fork beside threads from 3.12 on: this is what happens then.
FORK = ("-W", "ignore::DeprecationWarning")

IN_CHILD = """
def refused(call):
    try:
        call()
    except StoreClosedError as error:
        assert "before this process was forked" in str(error), error
        return True
    return False

def in_child(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_store_raises_in_a_forked_child_and_goes_on_in_the_parent() -> None:
    """Calls in a child are refused with the reason; close returns; nothing hangs."""
    ended = run(
        IN_CHILD
        + """
store = open_store(lambda call: Fault(hold="before") if "/held" in call.paths else None)
held = store.put("/held", b"")
store._engine._backend.wait_for_calls(1)
queued = store.put("/queued", b"")

def work():
    assert refused(lambda: store.get("/a"))
    assert refused(lambda: store.put("/a", b""))
    assert refused(store.flush)
    (outcome,) = store.apply([Get("/a")])
    assert isinstance(outcome.error, StoreClosedError)
    assert not queued.cancel()
    assert not held.cancel()
    assert refused(queued.result)
    assert refused(lambda: concurrent.futures.wait([held]))
    store.close()
    store.close(1.0)

in_child(work)
store._engine._backend.calls[0].release()
assert held.result(20).version == queued.result(20).version == 0
assert store.get("/queued").result(20) is not None
store.close()
print("fine")
""",
        *FORK,
    )
    assert (ended.stdout, ended.returncode) == ("fine\n", 0), ended.stderr


def test_a_child_can_open_stores_whatever_was_locked_at_the_fork() -> None:
    """The child is not blocked by locks that a thread of the parent held at the fork."""
    ended = run(
        IN_CHILD
        + """
store = open_store()
store.put("/a", b"").result(20)

def work():
    assert refused(lambda: store.get("/a"))
    with open_store() as own:  # a store in memory is that of its process
        assert own.get("/a").result(20) is None
        future = own.put("/b", b"")
        future.add_done_callback(lambda future: print("called", flush=True))
        assert future.result(20).version == 0

space = memory._spaces["a"][0]
with futures_module._births, store._engine._lock, space.lock, memory._spaces_lock:
    in_child(work)
store.close()
print("fine")
""",
        *FORK,
    )
    assert (ended.stdout, ended.returncode) == ("called\nfine\n", 0), ended.stderr


def test_a_store_that_only_watched_ends_with_its_loop() -> None:
    """A store whose loop has ended is closed, also if it never had an operation."""
    ended = run(
        """
        import asyncio
        import batchkeeper as bk

        async def main():
            store = await bk.open_async_store("memory://a")
            await store.watch("/a")

        asyncio.run(main())
        (keeper,) = [t for t in threading.enumerate() if t.name == "batchkeeper-deadlines"]
        keeper.join(30)
        print(keeper.is_alive())
        """,
        "-W",
        "ignore::ResourceWarning",
    )
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_leaving_a_with_block_in_a_child_leaves_the_parents_store_alone() -> None:
    """A child that ends normally neither drains nor closes the parent's stores."""
    ended = run(
        """
        with open_store() as store:
            store.put("/a", b"").result(20)
            pid = os.fork()
            if pid:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                assert store.get("/a").result(20) is not None
        print("parent" if pid else "child")
        """,
        *FORK,
        "-W",
        "error::ResourceWarning",
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("child\nparent\n", "", 0)


# --- the interpreter's end

LINGER = """
lock = threading.Lock()
def note(call):
    with lock:
        print(*call.paths, flush=True)
    return None
"""


def test_a_store_that_was_not_closed_is_drained_at_exit() -> None:
    """Queued operations are sent at the interpreter's end, and a ResourceWarning names the
    store."""
    ended = run(
        LINGER
        + """
store = open_store(note, linger="fixed", max_delay=60, max_ops=10)
for number in range(25):
    store.put(f"/{number}", b"")
for number in range(3):
    store.put("/hot", b"")
""",
        "-W",
        "always::ResourceWarning",
    )
    paths = ended.stdout.split()
    assert sorted(paths) == sorted([*(f"/{number}" for number in range(25)), *["/hot"] * 3])
    assert "ResourceWarning: a store was not closed: memory://a" in ended.stderr
    assert "Error" not in ended.stderr
    assert ended.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("warnings", ["default", "error"])
def test_every_store_is_drained_at_exit(warnings: str) -> None:
    """One store's drain, or a warning turned into an error, does not prevent the other drains."""
    ended = run(
        LINGER
        + """
for name in ("a", "b", "c"):
    store = open_store(note, name, linger="fixed", max_delay=60)
    store.put("/" + name, b"")
""",
        "-W",
        f"{warnings}::ResourceWarning",
    )
    assert sorted(ended.stdout.split()) == ["/a", "/b", "/c"]


def test_a_drain_at_exit_needs_no_new_thread() -> None:
    """Python 3.12.0 and 3.12.1 start no threads at exit, so the running threads do all the work."""
    ended = run(
        LINGER
        + """
import atexit
go = threading.Event()

def plan(call):
    go.wait(20)
    note(call)

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

store = open_store(plan, max_ops=1, max_in_flight=8)
threading.Thread.start = refuse
for number in range(20):
    store.put(f"/{number}", b"")
atexit.register(go.set)
"""
    )
    assert ended.stdout.split() == [f"/{number}" for number in range(20)]
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_a_store_that_hangs_does_not_keep_the_interpreter_from_ending() -> None:
    """The drain at exit has a bound; a closed store is not drained, and warns of nothing."""
    ended = run(
        """
        from batchkeeper.batching import lifetime
        lifetime.EXIT_DRAIN = 0.05
        store = open_store(lambda call: Fault(hold="before"))
        future = store.put("/a", b"")
        closed = open_store(name="b")
        closed.close()
        """,
        "-W",
        "always::ResourceWarning",
    )
    assert ended.returncode == 0
    assert ended.stderr.count("ResourceWarning: a store was not closed") == 1


def test_the_drain_comes_before_the_exit_handlers_of_a_back_end() -> None:
    """A back end's exit handlers run after the drain, which still needs the back end."""
    ended = run(
        LINGER
        + """
import atexit
atexit.register(print, "third", flush=True)
first = open_store(note, "a", linger="fixed", max_delay=60)
atexit.register(print, "back end stopped", flush=True)  # as kazoo's handler does
second = open_store(note, "b", linger="fixed", max_delay=60)
second.put("/b", b"")
"""
    )
    assert ended.stdout.splitlines() == ["/b", "back end stopped", "third"], ended.stderr


def test_a_bulk_call_of_the_parent_is_refused_in_a_forked_child() -> None:
    """A child that continues or closes its parent's stream of outcomes does not hang."""
    ended = run(
        IN_CHILD
        + """
store = open_store(
    lambda call: Fault(hold="before") if "/held" in call.paths else None, max_ops=1
)
stream = store.apply_stream(Put(path, b"") for path in ("/before", "/held"))
assert next(stream).ok

def work():
    stream.close()
    assert list(stream) == []

def wait():
    assert refused(lambda: next(stream))

in_child(work)
in_child(wait)
store._engine._backend.wait_for_calls(2)[1].release()
assert next(stream).ok
store.close()
print("fine")
""",
        *FORK,
    )
    assert (ended.stdout, ended.returncode) == ("fine\n", 0), ended.stderr

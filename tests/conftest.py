"""Real servers and fresh stores for the tests.

A server that cannot be started fails the tests that need it, with what is missing and how to get
it. Nothing is skipped: at the end a run with a skipped test counts as failed.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from batchkeeper.bench import releases
from batchkeeper.bench.servers import EtcdServer, LocalServer, ZooKeeperServer
from batchkeeper.stores.kinds import BUILT_IN, load_name

from .proxy import Proxy

# Bytes that a whole run has on the disk at a time, and some to spare.
_DISK = 2 * 2**30

# A test needs a server if it has a fixture that starts one, which its name says; if it makes stores
# of a kind with a server, which a parameter says; or if it has the mark `server`.
_STARTS: Final = re.compile(r"(.+_)?(etcd|zookeeper|server|spark)")
_SERVED: Final = {name for name, kind in BUILT_IN.items() if kind.server}

# What looks for servers takes these for their places, in processes of their own too. A test that
# starts one in a quick run fails, with this in the message.
PLACES: Final = ("BATCHKEEPER_ETCD", "BATCHKEEPER_ZOOKEEPER", "SPARK_HOME")
NOWHERE: Final = "/a quick run has no servers: this test lacks the mark `server` (conftest.py)"

# A test's Java lives for seconds, and would spend a third of its work on optimizing what it runs.
_SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option of a quick run."""
    parser.addoption(
        "--quick", action="store_true", help="only tests that need no etcd, ZooKeeper or Spark"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server or the one Spark; leave the former out of a quick run."""
    parallel = config.pluginmanager.hasplugin("xdist")
    for item in items:
        if _needs_server(item):
            item.add_marker("server")
        # One of the processes has the Spark session, and begins with the tests that need it.
        if parallel and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
    if config.option.quick:
        left_out = [item for item in items if item.get_closest_marker("server")]
        items[:] = [item for item in items if not item.get_closest_marker("server")]
        config.hook.pytest_deselected(items=left_out)


def _needs_server(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    if any(_STARTS.fullmatch(name) for name in fixtures):
        return True
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "fresh_url" in fixtures and any(
        isinstance(value, str) and value in _SERVED for value in parameters
    )


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking over thousands of tests, again and again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to begin on a full disk, where servers die one after the other, and slowly.

    And let Ctrl-C be one where a shell has started the run in the background, which ignores it; and
    set what the servers of this run find in the environment.
    """
    for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        os.environ.setdefault(variable, " ".join(_SHORT_LIVED))
    if config.option.quick:
        os.environ.update(dict.fromkeys(PLACES, NOWHERE))
    there = Path(config.option.basetemp or tempfile.gettempdir()).absolute().parent
    free = shutil.disk_usage(there).free
    if free < _DISK:
        pytest.exit(
            f"the tests' servers need {_DISK >> 20:,} MiB on the disk of {there}, "
            f"and {free >> 20:,} MiB are free",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Say which servers the tests run on."""
    return [
        f"etcd: {releases.describe_etcd()}",
        f"zookeeper: {releases.describe_zookeeper()}",
    ]


@pytest.fixture(scope="session")
def shared_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], LocalServer]]:
    """Give the server of a kind of store that tests share; the first that asks starts it.

    They neither stop nor limit it (``own_etcd`` is for that).
    """
    with ExitStack() as stack:

        @functools.cache
        def started(name: str) -> LocalServer:
            kind = BUILT_IN[name]
            assert kind.server is not None
            server: type[LocalServer] = load_name(kind.server)
            return stack.enter_context(server(tmp_path_factory.mktemp(name)))

        yield started


@pytest.fixture(scope="session")
def etcd_server(shared_servers: Callable[[str], LocalServer]) -> EtcdServer:
    """The etcd that tests share."""
    server = shared_servers("etcd")
    assert isinstance(server, EtcdServer)
    return server


@pytest.fixture(scope="session")
def zookeeper_server(shared_servers: Callable[[str], LocalServer]) -> ZooKeeperServer:
    """The ZooKeeper that tests share."""
    server = shared_servers("zookeeper")
    assert isinstance(server, ZooKeeperServer)
    return server


@pytest.fixture
def own_directory(tmp_path: Path) -> Callable[[str], Path]:
    """Make an empty directory for this test alone, on each call another one."""
    numbers = itertools.count()

    def make(name: str) -> Path:
        made = tmp_path / f"{name}-{next(numbers)}"
        made.mkdir()
        return made

    return make


# What belongs to one test lies in its own tmp_path, which goes when the test has passed: an etcd
# leaves 125 MB behind, and hundreds of them a full disk.


@pytest.fixture
def own_etcd(own_directory: Callable[[str], Path]) -> Iterator[Callable[..., EtcdServer]]:
    """Start an etcd for this test alone: takes etcd's flags, stops it after the test."""
    with ExitStack() as stack:

        def start(*flags: str) -> EtcdServer:
            return stack.enter_context(EtcdServer(own_directory("etcd"), flags=flags))

        yield start


@pytest.fixture
def own_zookeeper(own_directory: Callable[[str], Path]) -> Iterator[Callable[..., ZooKeeperServer]]:
    """Start a ZooKeeper for this test alone: takes Java's flags, stops it after the test."""
    with ExitStack() as stack:

        def start(*jvm_flags: str) -> ZooKeeperServer:
            directory = own_directory("zookeeper")
            # Ticks of 500 ms: a session may time out after one second.
            flags = (*_SHORT_LIVED, *jvm_flags)
            server = ZooKeeperServer(directory, jvm_flags=flags, tick_time=500)
            return stack.enter_context(server)

        yield start


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Put a proxy before a server's ``host:port``."""
    with ExitStack() as stack:

        def put_before(address: str) -> Proxy:
            made = Proxy(address)
            stack.callback(made.close)
            return made

        yield put_before


@pytest.fixture
def fresh_url(
    own_directory: Callable[[str], Path], shared_servers: Callable[[str], LocalServer]
) -> Callable[[str], str]:
    """Give the URL of an empty store that nobody else has, for the name of one of our kinds."""

    def make(name: str) -> str:
        kind, unique = BUILT_IN[name], f"test-{uuid.uuid4().hex}"
        if kind.in_process:
            return f"{name}://{unique}"
        if kind.local_directory:
            return f"{name}://{own_directory(name) / unique}"
        return f"{shared_servers(name).url}/{unique}"

    return make


@pytest.fixture(params=sorted(BUILT_IN, key=lambda name: BUILT_IN[name].server is not None))
def store_url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store of each of our kinds, one after the other."""
    return fresh_url(request.param)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count a skip as a failure: it would hide a server that could not be started."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", ())
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nfailed: {len(skipped)} skipped, and no test may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

"""Real servers and fresh stores for the tests.

A server that cannot be started fails the tests that need it, with what is missing and how to get
it. Nothing is skipped: at the end a run with a skipped test counts as failed.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from batchkeeper.bench import releases
from batchkeeper.bench.servers import EtcdServer, LocalServer, ZooKeeperServer
from batchkeeper.stores.kinds import BUILT_IN, load_name

from .proxy import Proxy

# Bytes that a whole run has on the disk at a time, and some to spare.
_DISK = 2 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to begin on a full disk, where servers die one after the other, and slowly.

    And let Ctrl-C be one where a shell has started the run in the background, which ignores it.
    """
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
def shared_server(
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
def etcd_server(shared_server: Callable[[str], LocalServer]) -> EtcdServer:
    """The etcd that tests share."""
    server = shared_server("etcd")
    assert isinstance(server, EtcdServer)
    return server


@pytest.fixture(scope="session")
def zookeeper_server(shared_server: Callable[[str], LocalServer]) -> ZooKeeperServer:
    """The ZooKeeper that tests share."""
    server = shared_server("zookeeper")
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
            server = ZooKeeperServer(directory, jvm_flags=jvm_flags, tick_time=500)
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
    own_directory: Callable[[str], Path], shared_server: Callable[[str], LocalServer]
) -> Callable[[str], str]:
    """Give the URL of an empty store that nobody else has, for the name of one of our kinds."""

    def make(name: str) -> str:
        kind, unique = BUILT_IN[name], f"test-{uuid.uuid4().hex}"
        if kind.in_process:
            return f"{name}://{unique}"
        if kind.local_directory:
            return f"{name}://{own_directory(name) / unique}"
        return f"{shared_server(name).url}/{unique}"

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

"""Real servers and fresh stores for the tests.

A server that cannot be started fails the tests that need it, with what is missing and how to get
it. Nothing is skipped: at the end a run with a skipped test counts as failed.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from batchkeeper.bench.servers import EtcdServer, ZooKeeperServer

from .proxy import Proxy


def pytest_configure() -> None:
    """Let Ctrl-C be one where a shell has started the run in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """The etcd that tests share; they neither stop nor limit it (``own_etcd`` is for that)."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """The ZooKeeper that tests share; they neither stop nor limit it."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EtcdServer]]:
    """Start an etcd for this test alone: takes etcd's flags, stops it after the test."""
    with ExitStack() as stack:

        def start(*flags: str) -> EtcdServer:
            return stack.enter_context(EtcdServer(tmp_path_factory.mktemp("etcd"), flags=flags))

        yield start


@pytest.fixture
def own_zookeeper(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., ZooKeeperServer]]:
    """Start a ZooKeeper for this test alone: takes Java's flags, stops it after the test."""
    with ExitStack() as stack:

        def start(*jvm_flags: str) -> ZooKeeperServer:
            directory = tmp_path_factory.mktemp("zookeeper")
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
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Give the URL of an empty store that nobody else has, for one of the four schemes."""

    def make(scheme: str) -> str:
        unique = f"test-{uuid.uuid4().hex}"
        if scheme == "memory":
            return f"memory://{unique}"
        if scheme == "rocksdb":
            return f"rocksdb://{tmp_path_factory.mktemp('rocksdb') / unique}"
        # Looked up by name, so that only a test that needs a server starts it.
        server = request.getfixturevalue(f"{scheme}_server")
        return f"{server.url}/{unique}"

    return make


@pytest.fixture(params=["memory", "rocksdb", "etcd", "zookeeper"])
def store_url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store of each of the four kinds, one after the other."""
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

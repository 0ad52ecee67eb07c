"""Real servers and fresh stores for the tests.

If a server cannot be started, the tests that need it fail, with a message that says what to
install. No test is skipped: a run with a skipped test counts as failed. Only those of HBase are
left out where its jars cannot be fetched (``hbase.py``).
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

import hypothesis
import pytest

from batchkeeper.stores.kinds import BUILT_IN
from batchkeeper.testing.servers import (
    ALL_SERVERS,
    SERVERS,
    EtcdServer,
    HBaseServer,
    LocalServer,
    ZooKeeperServer,
    releases,
)

from . import hbase
from .budget import Budget
from .failing import Failing
from .idle import IdleServers, Server, no_data_left
from .java import SHORT_LIVED, archive_classes, use_archive, zookeeper_flags
from .proxy import Proxy

# A slow machine fails no test. Each change draws inputs of its own, and a release many more. What
# needs more or fewer than others says it as a part of `settings.default.max_examples`.
hypothesis.settings.register_profile("batchkeeper", deadline=None, max_examples=40)
hypothesis.settings.register_profile("full", deadline=None, max_examples=400)
hypothesis.settings.load_profile("batchkeeper")


# A test needs a server in three cases: the name of a fixture shows that it starts one, a parameter
# shows that it creates stores of a kind with a server, or it has the mark `server`.
_STARTS: Final = re.compile(rf"(.+_)?({'|'.join(ALL_SERVERS)}|server|spark)")

# The variables with the places of servers, for this process and for those that tests start. A quick
# run sets them to this text. So a test that starts a server fails, with the text in the message.
PLACES: Final = (*(f"BATCHKEEPER_{name.upper()}" for name in ALL_SERVERS), "SPARK_HOME")
NOWHERE: Final = "/a quick run has no servers: this test lacks the mark `server` (conftest.py)"

# What stands above the face of the stores branches on two capabilities, and these two stores differ
# in both: memory stands for RocksDB and etcd, too. A full run takes all four.
_ABOVE_THE_FACE: Final = ("coordination", "histories", "hubs")
_CLASSES: Final = {"memory", "zookeeper"}

# What asks for neither capability sees little of a server's fault but lost sessions, late answers
# and errors. Each test of one takes one of the servers, in turns, so that a file has both.
_TURNS: Final = ("etcd", "zookeeper")
_IN_TURNS: Final = re.compile(
    "(election|fencing|ledgers|lock|work)_failures|coordination_histories|examples|simulation"
)

# The kinds of stores that tests run on, those with a server last.
_KINDS: Final = sorted(
    (name for name in BUILT_IN if name in SERVERS or name not in ALL_SERVERS),
    key=lambda name: name in SERVERS,
)

_HERE: Final = os.path.join(Path(__file__).parent, "")

# What a quick run does not even import: the bench and our own tools change little, and pandas,
# matplotlib and scipy take each process two seconds.
_NOT_QUICK: Final = ("bench", "tools")

# Where hubs keep things in two ways, on two stores, a test has each way on one of them, and the
# next test the other way round: so a file has all four.
_WAYS: Final = {"ephemeral": 0, "compared": 1, "paths": 0, "tables": 1}
_PAIRS: Final = 2 * 2  # two ways on two stores

# Fixtures that take long to make: where processes share the tests, one of them has all that use it,
# and begins with them.
_ONCE: Final = ("spark", "clone", "hbase_server")

# The libraries of this folder take a process five seconds: one process has all its tests.
_ONCE_FOLDER: Final = "bench"

# Files with such names wait for faults most of their time. One of them comes after so many others,
# and not all at once: then a core would wait.
_WAIT: Final = re.compile(r"histories|failover|failures|faults|outages|simulation|session|clusters")
_BETWEEN: Final = 4

# The most seconds that a process waits for the one that compiles the tests.
_COMPILING: Final = 60.0

# Where so many tests need a server, an archive of ZooKeeper's classes is worth its time.
_WORTH_ARCHIVING: Final = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of a quick and of a full run."""
    parser.addoption(
        "--quick", action="store_true", help="no tests that need a server or Spark, or are slow"
    )
    parser.addoption(
        "--full", action="store_true", help="also the tests that run before a release only"
    )
    parser.addoption(
        "--delays", type=int, metavar="SEED", help="delay threads at their seams; see delays.py"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the contract on HBase, too: it passes it, and lacks what other tests need."""
    if "store_url" in metafunc.fixturenames and _folder(metafunc.definition.path) == "conformance":
        kinds = [*_KINDS, HBaseServer.name]
        # A mark takes precedence over the parameters of the fixture.
        metafunc.definition.add_marker(pytest.mark.parametrize("store_url", kinds, indirect=True))


def _process(config: pytest.Config) -> str | None:
    """Return the name of this process, of those that share the run; ``None`` if none do."""
    name: str | None = getattr(config, "workerinput", {}).get("workerid")
    return name


def _common_folder(config: pytest.Config) -> Path:
    """Return the folder above those that each process of a shared run has for itself."""
    return Path(config.option.basetemp).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what a quick run does not import."""
    return (config.option.quick and _folder(collection_path) in _NOT_QUICK) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let the first process of a run compile the tests, and the others read what it has made.

    In a fresh clone, to compile all tests takes a process about twelve seconds. The garbage
    collector rests: it would walk over thousands of tests, and free none, for a fifth of the time.
    """
    process = _process(session.config)
    waits = process is not None and not sys.dont_write_bytecode
    compiled = _common_folder(session.config) / "compiled" if waits else None
    if compiled is not None and process != "gw0":
        give_up = time.monotonic() + _COMPILING
        while not compiled.exists() and time.monotonic() < give_up:
            time.sleep(0.05)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        if compiled is not None:
            compiled.touch()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files, so that what a module shares is made once."""
    from xdist.scheduler import LoadGroupScheduling  # noqa: PLC0415 - it calls this, so it is there

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return str(scope.partition("::")[0])

    return ByFile(config, log)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests in an order in which each process has work, and none of them is late in the end.

    What one process does for all comes first. HBase's history kills the server, which then starts
    again in less time than with the tables of all other tests.
    """
    files: dict[Path, list[pytest.Item]] = {}
    once = []
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and group.args[0] in _ONCE:
            once.append(item)
        else:
            files.setdefault(item.path, []).append(item)
    waiting = [file for file in files if _WAIT.search(file.name)]
    others = iter([file for file in files if not _WAIT.search(file.name)])
    order = [file for first in waiting for file in (first, *itertools.islice(others, _BETWEEN))]
    once.sort(key=lambda item: _folder(item.path) != "histories")
    return once + [item for file in (*order, *others) for item in files[file]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, or stay together; leave out those of other runs."""
    parallel = config.pluginmanager.hasplugin("xdist")
    for item in items:
        if _needs_server(item):
            item.add_marker("server")
        for name in _ONCE if parallel else ():
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))
        if parallel and _parameters(item).get("store_url") == HBaseServer.name:
            item.add_marker(pytest.mark.xdist_group("hbase_server"))
        if parallel and _folder(item.path) == _ONCE_FOLDER:
            item.add_marker(pytest.mark.xdist_group(_ONCE_FOLDER))
    taken = [item for item in items if _taken(item, config)]
    if not (config.option.full or config.option.quick):
        others = {*_others_turns(taken), *_others_ways(taken)}
        taken = [item for item in taken if item not in others]
    if left_out := {*items}.difference(taken):
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = taken if _process(config) is None else _mixed(taken)


def _taken(item: pytest.Item, config: pytest.Config) -> bool:
    given = _parameters(item)
    if config.option.quick and (
        any(map(item.get_closest_marker, ("server", "slow")))
        or given.get("store_url", "memory") != "memory"
        or hypothesis.is_hypothesis_test(getattr(item, "obj", None))  # It draws many inputs.
    ):
        return False
    if config.option.full:
        return True
    above = _folder(item.path) in _ABOVE_THE_FACE
    return not (
        item.get_closest_marker("full")
        or (above and given.get("store_url", "memory") not in _CLASSES)
    )


def _others_ways(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the tests that have another test's way on its store."""
    files: dict[Path, dict[str, dict[tuple[bool, int], pytest.Item]]] = {}
    for item in items:
        given = _parameters(item)
        store = given.get("store_url", given.get("server"))
        way = next((way for way in _WAYS if way in given.values()), None)
        if way is not None and store is not None:
            tests = files.setdefault(item.path, {})
            rest = item.name.replace(store, "").replace(way, "")
            tests.setdefault(rest, {})[store == "zookeeper", _WAYS[way]] = item
    for tests in files.values():
        in_all = [found for found in tests.values() if len(found) == _PAIRS]
        for number, found in enumerate(in_all):
            yield from (item for place, item in found.items() if (number + sum(place)) % 2)


def _others_turns(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the tests of faults that have the server of another test's turn."""
    files: dict[Path, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        given = _parameters(item)
        server = given.get("server", given.get("url"))
        if server in _TURNS and _IN_TURNS.search(item.path.name):
            tests = files.setdefault(item.path, {})
            tests.setdefault(item.name.replace(server, ""), {})[server] = item
    for tests in files.values():
        on_both = [found for found in tests.values() if len(found) == len(_TURNS)]
        for found, turn in zip(on_both, itertools.cycle(_TURNS)):
            yield from (item for server, item in found.items() if server != turn)


def _folder(path: Path) -> str:
    """Return the folder of a test, below this one."""
    return str(path)[len(_HERE) :].partition(os.sep)[0]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _needs_server(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    if any(_STARTS.fullmatch(name) for name in fixtures):
        return True
    return "fresh_url" in fixtures and any(
        isinstance(value, str) and value in ALL_SERVERS for value in _parameters(item).values()
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from walking over thousands of tests, again and again.

    For a long run, the first process also makes ZooKeeper start faster.
    """
    gc.collect()
    gc.freeze()
    process = _process(session.config)
    on_servers = sum(item.get_closest_marker("server") is not None for item in session.items)
    if process is None or on_servers <= _WORTH_ARCHIVING:
        return
    archive = _common_folder(session.config) / "zookeeper.jsa"
    use_archive(archive)
    if process == "gw0":
        budget: Budget = session.config.pluginmanager.get_plugin("budget")
        Thread(target=_archive, args=(archive, budget), daemon=True).start()


def _archive(archive: Path, budget: Budget) -> None:
    # Whatever fails: without the archive, servers start as well.
    with budget.shared(), suppress(Exception):
        archive_classes(archive)


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of the servers.

    It also makes Ctrl-C work if a shell has started the run in the background, where Python ignores
    it.
    """
    config.pluginmanager.register(Budget(), "budget")
    config.pluginmanager.register(Failing(), "failing")
    config.pluginmanager.register(hbase.NotRun(), "not run")
    if config.option.delays is not None:
        from .delays import install  # noqa: PLC0415 - few runs need it

        install(config.option.delays)
    for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        os.environ.setdefault(variable, " ".join(SHORT_LIVED))
    # The heap of a test's etcd is small, so that a fifth of its work is to collect garbage.
    os.environ.setdefault("GOGC", "400")
    if config.option.full:
        hypothesis.settings.load_profile("full")
    if config.option.quick:
        os.environ.update(dict.fromkeys(PLACES, NOWHERE))
    else:
        # The wheel's 3.5.1 may crash as a client goes away (etcd #14110), and lose what it has
        # acknowledged (#14370). So it is used only where there is no other.
        with suppress(releases.ServerMissingError):
            os.environ.setdefault("BATCHKEEPER_ETCD", str(releases.find_durable_etcd()))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Show the servers that the tests use."""
    return [
        f"etcd: {releases.describe_etcd()}",
        f"zookeeper: {releases.describe_zookeeper()}",
        f"hbase: {releases.describe_hbase()}",
    ]


@pytest.fixture(scope="session")
def shared_servers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], LocalServer]]:
    """Return the server that tests share, by the kind of store, running.

    Tests must not stop or limit a shared server. Fixtures such as ``own_etcd`` are for that.
    """
    budget: Budget = request.config.pluginmanager.get_plugin("budget")
    with ExitStack() as stack:

        @functools.cache
        def server(name: str) -> LocalServer:
            options = {"jvm_flags": zookeeper_flags()} if name == "zookeeper" else {}
            made = ALL_SERVERS[name](tmp_path_factory.mktemp(name), **options)
            return stack.enter_context(no_data_left(made))

        def running(name: str) -> LocalServer:
            with budget.shared():
                found = server(name)
                # A crash of the wheel's etcd is no reason for later tests to fail.
                if not found.running:
                    found.start()
            return found

        yield running


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


@pytest.fixture(scope="session")
def hbase_server(
    shared_servers: Callable[[str], LocalServer],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[HBaseServer]:
    """The HBase that tests share. A test that kills it has it run again in the end."""
    folder = tmp_path_factory.getbasetemp()
    hbase.fetch(folder if _process(request.config) is None else folder.parent)
    server = shared_servers("hbase")
    assert isinstance(server, HBaseServer)
    yield server
    server.kill()  # It would take nine seconds to write what it has to files, which nobody reads.


@pytest.fixture(scope="session")
def hbase_tables(hbase_server: HBaseServer) -> Iterator[hbase.Tables]:
    """Tables of that HBase, one for each test."""
    tables = hbase.Tables(hbase_server)
    yield tables
    tables.close()


@pytest.fixture
def own_directory(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Create an empty directory for this test alone, a different one on each call.

    Most tests only could: to make and remove ``tmp_path`` for all took a tenth of a quick run.
    """
    numbers = itertools.count()

    def make(name: str) -> Path:
        parent: Path = request.getfixturevalue("tmp_path")
        made = parent / f"{name}-{next(numbers)}"
        made.mkdir()
        return made

    return make


@pytest.fixture(scope="session")
def idle_etcds(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[IdleServers[EtcdServer]]:
    """The etcds that tests have for themselves, one test after the other."""
    yield from _idle(EtcdServer, "etcd", tmp_path_factory, request)


@pytest.fixture(scope="session")
def idle_zookeepers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[IdleServers[ZooKeeperServer]]:
    """The ZooKeepers that tests have for themselves, one test after the other."""
    yield from _idle(_zookeeper, "zookeeper", tmp_path_factory, request)


def _idle(
    made: Callable[[Path], Server],
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[IdleServers[Server]]:
    budget: Budget = request.config.pluginmanager.get_plugin("budget")

    def new() -> Server:
        server = made(tmp_path_factory.mktemp(name))
        with budget.shared():
            server.start()
        return server

    servers = IdleServers(new)
    yield servers
    servers.stop()


def _zookeeper(directory: Path, *jvm_flags: str) -> ZooKeeperServer:
    # With ticks of 500 ms, a session can time out after one second.
    return ZooKeeperServer(directory, jvm_flags=(*zookeeper_flags(), *jvm_flags), tick_time=500)


@pytest.fixture
def own_etcd(
    own_directory: Callable[[str], Path], idle_etcds: IdleServers[EtcdServer]
) -> Iterator[Callable[..., EtcdServer]]:
    """Return an empty etcd for this test alone; one with etcd's flags is a new one."""
    with ExitStack() as stack:

        def start(*flags: str) -> EtcdServer:
            if flags:
                return stack.enter_context(EtcdServer(own_directory("etcd"), flags=flags))
            return stack.enter_context(idle_etcds.lent())

        yield start


@pytest.fixture
def own_zookeeper(
    own_directory: Callable[[str], Path], idle_zookeepers: IdleServers[ZooKeeperServer]
) -> Iterator[Callable[..., ZooKeeperServer]]:
    """Return an empty ZooKeeper for this test alone; one with Java's flags is a new one."""
    with ExitStack() as stack:

        def start(*jvm_flags: str) -> ZooKeeperServer:
            if jvm_flags:
                return stack.enter_context(_zookeeper(own_directory("zookeeper"), *jvm_flags))
            return stack.enter_context(idle_zookeepers.lent())

        yield start


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Start a proxy in front of a server's ``host:port``."""
    with ExitStack() as stack:

        def put_before(address: str) -> Proxy:
            made = Proxy(address)
            stack.callback(made.close)
            return made

        yield put_before


@pytest.fixture
def fresh_url(
    own_directory: Callable[[str], Path],
    shared_servers: Callable[[str], LocalServer],
    request: pytest.FixtureRequest,
) -> Callable[[str], str]:
    """Return the URL of an empty store for this test alone, for the name of a kind."""

    def make(name: str) -> str:
        if name == HBaseServer.name:
            tables: hbase.Tables = request.getfixturevalue("hbase_tables")
            return tables.next()
        kind, unique = BUILT_IN[name], f"test-{uuid.uuid4().hex}"
        if kind.in_process:
            return f"{name}://{unique}"
        if kind.local_directory:
            return f"{name}://{own_directory(name) / unique}"
        return f"{shared_servers(name).url}/{unique}"

    return make


@pytest.fixture(params=_KINDS)
def store_url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store, for each built-in kind in turn."""
    return fresh_url(request.param)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count a skip as a failure, because it would hide a server that could not be started."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", ())
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nfailed: {len(skipped)} skipped, but no test may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

"""Throw-away real servers, for the bench and for the tests: one etcd, one ZooKeeper, on loopback.

::

    with EtcdServer(scratch / "etcd") as server:
        store = open_store(server.url)
        server.kill()       # as kill -9 does
        server.restart()    # the same ports, the same data

A server and everything that it writes live in the directory that the caller names; removing it
afterwards is the caller's, too. Nothing is written to the system's temporary folder, which may be
memory and would make every fsync free.

Which etcd and which ZooKeeper they are is decided in ``releases.py``.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from .releases import find_etcd, find_java, find_zookeeper_jars

__all__ = [
    "EtcdServer",
    "LocalServer",
    "ServerStartError",
    "ZooKeeperServer",
]

_HOST: Final = "127.0.0.1"
# Reads until this process is gone, however it went, and then ends the server's process group.
_GUARD: Final = 'read -r _; kill -s KILL -- "-$1"'


class ServerStartError(RuntimeError):
    """A server did not come up; the message holds the end of its log."""


class LocalServer(ABC):
    """One server process: started, killed, paused and restarted at will.

    Not for several threads at once: whoever owns a server controls it from one thread at a time.

    Args:
        directory: where everything of this server lives; made if missing. Data that are there
            from an earlier server are used.
        start_timeout: the most seconds that a start may take.

    Attributes:
        directory: as given, absolute.
        log: the file with all that the server printed, over all its restarts.
    """

    name: ClassVar[str]  # of the kind of store, which is also its URLs' scheme

    def __init__(self, directory: str | os.PathLike[str], *, start_timeout: float = 60.0) -> None:
        self.directory = Path(directory).absolute()
        self.log = self.directory / f"{self.name}.log"
        self._start_timeout = start_timeout
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def for_bench(cls, directory: str | os.PathLike[str]) -> Self:
        """Make a server for measurements, which put more into it than tests do."""
        return cls(directory)

    @property
    def address(self) -> str:
        """``host:port`` for clients; known from the first start on, and kept over restarts."""
        if not self._ports:
            raise RuntimeError(f"{self.name} was never started")
        return f"{_HOST}:{self._ports[0]}"

    @property
    def url(self) -> str:
        """The URL of a store on this server, with no prefix or chroot."""
        return f"{self.name}://{self.address}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, and return when it answers.

        The first start finds free ports; later ones use the same.

        Raises:
            ServerMissingError: a part of the server is not on this machine.
            ServerStartError: it did not answer within ``start_timeout``, or it ended.
        """
        if self.running:
            raise RuntimeError(f"{self.name} is running already (pid {self.pid})")
        self._discard()
        self.directory.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self._start_timeout
        keep_ports = bool(self._ports)
        while True:
            ports = self._ports if keep_ports else _free_ports(2)
            log_start = self.log.stat().st_size if self.log.exists() else 0
            command = self._command(ports)
            try:
                failure = self._await_answer(self._launch(command), ports[0], deadline)
            except BaseException:
                self.kill()
                raise
            if failure is None:
                self._ports = ports
                return
            self.kill()
            said = self._log_from(log_start)
            # Somebody else was quicker to take a port. New ports on a first start; on a restart
            # the address must stay, so wait for whoever holds it.
            if "address already in use" in said.lower() and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            tail = "\n".join(said.splitlines()[-20:]) or "(nothing)"
            raise ServerStartError(f"{self.name} {failure}; the end of {self.log}:\n{tail}")

    def stop(self) -> None:
        """End the server in an orderly way, by force after 10 s. No-op if it does not run."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # A paused process acts on SIGTERM only when it goes on.
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
        self._discard()

    def kill(self) -> None:
        """End the server at once, as ``kill -9`` does, and return when it is gone."""
        self._signal(signal.SIGKILL)
        self._discard()

    def restart(self) -> None:
        """Start again on the same ports and data; end it in an orderly way if it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP), and return when it stands still.

        The system still accepts its connections and takes in what they send; nobody answers.
        """
        pid = self._running().pid
        self._signal(signal.SIGSTOP)
        # WEXITED, so that a server that dies at this moment does not block us for ever.
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running()
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _command(self, ports: tuple[int, ...]) -> list[str]:
        """Write what the server needs on disk and return its command line, run in `directory`."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Return whether the server does real work; an ``OSError`` counts as no."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]: ...

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C at the terminal reaches us and not the server, and signals
        # to its group also reach what a wrapper script started.
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process = process
        # Nobody else ends the server if we are killed: atexit does not run then, and Linux's
        # parent-death signal follows the thread that forked, not the process (and needs code
        # between fork and exec, which is unsafe with threads). A pipe closes with its process in
        # every case, so a shell waits for that.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, f"{self.name}-guard", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return process

    def _await_answer(
        self, process: subprocess.Popen[bytes], port: int, deadline: float
    ) -> str | None:
        """Return when the server answers, or return why it does not."""
        while process.poll() is None:
            try:
                if self._answers(port):
                    return None
            except (OSError, http.client.HTTPException):
                pass  # Not listening yet, or not ready to talk: asked again below.
            if time.monotonic() >= deadline:
                return f"did not answer at {_HOST}:{port} within {self._start_timeout:g} s"
            time.sleep(0.02)
        return f"ended at once with code {process.returncode}"

    def _signal(self, number: signal.Signals) -> None:
        # A child that has ended keeps its id, and its group, until `_discard` reaps it.
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def _discard(self) -> None:
        """Reap the server, which has ended or is about to, and then its guard."""
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None

    def _log_from(self, offset: int) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")


class EtcdServer(LocalServer):
    """A single-node etcd with an 8 GiB quota and a synced log, as in production.

    Args:
        directory: see :class:`LocalServer`.
        flags: more of etcd's own flags, such as ``("--max-txn-ops", "16")``.
        start_timeout: the most seconds that a start may take.
    """

    name = "etcd"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        flags: Sequence[str] = (),
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(directory, start_timeout=start_timeout)
        self._flags = tuple(flags)

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        client, peer = (f"http://{_HOST}:{port}" for port in ports)
        return [
            str(find_etcd()),
            *("--name", "batchkeeper", "--data-dir", "data"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"batchkeeper={peer}"),
            *("--quota-backend-bytes", str(8 * 2**30)),
            *self._flags,
        ]

    def _environment(self) -> Mapping[str, str]:
        # Each flag of etcd can come from a variable; those of the user's own etcd are not ours.
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    def _answers(self, port: int) -> bool:
        # Since 3.4 the handler executes a linearizable range, so it says yes only with a leader.
        connection = http.client.HTTPConnection(_HOST, port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status == http.HTTPStatus.OK and b'"true"' in response.read()
        finally:
            connection.close()


class ZooKeeperServer(LocalServer):
    """A standalone ZooKeeper with a synced log, all four-letter words, and no admin server.

    Args:
        directory: see :class:`LocalServer`.
        jvm_flags: more of Java's flags, such as ``("-Djute.maxbuffer=65536",)``.
        tick_time: milliseconds; sessions time out after 2 to 20 ticks, 4 to 40 s by default.
        heap_mib: what Java's heap may grow to. A node with 100 bytes takes about half a KiB, and a
            hundred values of 0.8 MiB, read together, are too much for 512.
        start_timeout: the most seconds that a start may take.
    """

    name = "zookeeper"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        jvm_flags: Sequence[str] = (),
        tick_time: int = 2000,
        heap_mib: int = 1024,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(directory, start_timeout=start_timeout)
        self._jvm_flags = tuple(jvm_flags)
        self._tick_time = tick_time
        self._heap_mib = heap_mib

    @classmethod
    def for_bench(cls, directory: str | os.PathLike[str]) -> Self:
        """Make a server whose heap holds what all settings and rounds of a bench put there.

        Each adds some ten thousand nodes, and one of 100 bytes takes half a KiB.
        """
        return cls(directory, heap_mib=2048)

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        runtime, jars = find_java(), find_zookeeper_jars()
        (self.directory / "tmp").mkdir(exist_ok=True)
        # Paths relative to the directory: Java reads property files as Latin-1, and a clone may
        # lie under any name.
        (self.directory / "zoo.cfg").write_text(
            f"dataDir=./data\n"
            f"clientPort={ports[0]}\n"
            f"clientPortAddress={_HOST}\n"
            f"tickTime={self._tick_time}\n"
            f"maxClientCnxns=0\n"
            f"admin.enableServer=false\n"
            f"4lw.commands.whitelist=*\n"
        )
        (self.directory / "log4j2.properties").write_text(
            "appender.console.type = Console\n"
            "appender.console.name = console\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n\n"
            "rootLogger.level = info\n"
            "rootLogger.appenderRef.console.ref = console\n"
        )
        return [
            str(runtime),
            f"-Xmx{self._heap_mib}m",
            # Java maps a file for its counters in the system's temporary folder, and a write to
            # it can stall; natives are unpacked to java.io.tmpdir.
            "-XX:-UsePerfData",
            "-Djava.io.tmpdir=./tmp",
            "-Djava.awt.headless=true",
            "-Dlog4j2.configurationFile=./log4j2.properties",
            # The log grows in steps of 16 MiB, not 64: a test's server writes a few of them.
            "-Dzookeeper.preAllocSize=16384",
            *self._jvm_flags,
            *("-cp", os.pathsep.join(map(str, jars))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "./zoo.cfg",
        ]

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _answers(self, port: int) -> bool:
        # `srvr`, since `ruok` says yes before requests are served. One that comes in the middle of
        # the start is never answered, so the patience is short.
        with socket.create_connection((_HOST, port), timeout=0.25) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as answer:
                return b"Mode: standalone" in answer.read()


def _free_ports(count: int) -> tuple[int, ...]:
    """Return ports that nobody listens on now; somebody may before they are used.

    They lie outside the range from which the system takes the ports of outgoing connections. In
    that range a client that keeps connecting to a dead server's port is in the end given that
    very port, connects to itself, and holds it against the server's restart.
    """
    ports: list[int] = []
    for port in random.sample(range(10_240, _first_ephemeral_port()), 1_000):
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return tuple(ports)
    raise ServerStartError(f"no {count} free ports on {_HOST}")


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768  # Not Linux; the others begin at 49152.
    return max(int(text.split()[0]), 12_000)

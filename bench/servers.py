"""Throw-away real servers, for the bench and for the tests: one etcd, one ZooKeeper, on loopback.

::

    with EtcdServer(scratch / "etcd") as server:
        store = open_store(server.url)
        server.kill()       # as kill -9 does
        server.restart()    # the same ports, the same data

A server keeps all its files in the directory that the caller names. The caller removes it
afterwards. Nothing is written to the system's temporary folder, which may be in memory and make
every fsync free.

``releases.py`` decides which etcd and which ZooKeeper run.
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
# A shell script that waits for the end of this process, even by a kill, and then kills the server's
# process group.
_GUARD: Final = 'read -r _; kill -s KILL -- "-$1"'


class ServerStartError(RuntimeError):
    """A server did not start. The message has the end of its log."""


class LocalServer(ABC):
    """One server process, which can be started, killed, paused and restarted.

    It is not thread-safe: only one thread at a time may control a server.

    Args:
        directory: the directory for all files of this server; created if missing. The server uses
            the data that an earlier server has left there.
        start_timeout: the most seconds that a start may take.

    Attributes:
        directory: the given directory as an absolute path.
        log: the file with the output of the server, from all its starts.
    """

    name: ClassVar[str]  # the name of the kind of store, and the scheme of its URLs

    def __init__(self, directory: str | os.PathLike[str], *, start_timeout: float = 60.0) -> None:
        self.directory = Path(directory).absolute()
        self.log = self.directory / f"{self.name}.log"
        self._start_timeout = start_timeout
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def for_bench(cls, directory: str | os.PathLike[str]) -> Self:
        """Return a server for measurements, which put more into it than tests do."""
        return cls(directory)

    @property
    def address(self) -> str:
        """``host:port`` for clients. It is known after the first start, and restarts keep it."""
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
        """Whether the process exists. A paused process does."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, and return when it answers.

        The first start finds free ports; later ones use the same.

        Raises:
            ServerMissingError: a part of the server is not on this machine.
            ServerStartError: the server did not answer within ``start_timeout``, or ended.
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
            # Another process has taken a port. A first start tries new ports. A restart must keep
            # the address, so it waits until the port is free.
            if "address already in use" in said.lower() and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            tail = "\n".join(said.splitlines()[-20:]) or "(nothing)"
            raise ServerStartError(f"{self.name} {failure}; the end of {self.log}:\n{tail}")

    def stop(self) -> None:
        """End the server with SIGTERM, and kill it after 10 s. Do nothing if it does not run."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # A paused process acts on SIGTERM only when it continues.
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
        self._discard()

    def kill(self) -> None:
        """Kill the server, as ``kill -9`` does, and return when it has ended."""
        self._signal(signal.SIGKILL)
        self._discard()

    def restart(self) -> None:
        """Stop the server if it runs, and start it again on the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP), and return when it has stopped.

        The system still accepts connections and buffers their data, but nothing answers.
        """
        pid = self._running().pid
        self._signal(signal.SIGSTOP)
        # With WEXITED, a server that dies at this moment does not block this call forever.
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server continue (SIGCONT)."""
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
        """Write the server's configuration, and return its command line, to run in `directory`."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Say whether the server serves requests. An ``OSError`` counts as no."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]: ...

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # In a new session, Ctrl-C at the terminal does not reach the server, and signals to its
        # group also reach the processes that a wrapper script starts.
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
        # If this process is killed, atexit does not run. Linux's parent-death signal depends on the
        # thread that forked, not on the process, and needs code between fork and exec, which is
        # unsafe with threads. But a pipe always closes with its process. So a shell waits for that,
        # and ends the server.
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
        """Wait until the server answers. Return ``None`` then, or the reason why it does not."""
        while process.poll() is None:
            try:
                if self._answers(port):
                    return None
            except (OSError, http.client.HTTPException):
                pass  # It does not listen yet, or is not ready. Ask again below.
            if time.monotonic() >= deadline:
                return f"did not answer at {_HOST}:{port} within {self._start_timeout:g} s"
            time.sleep(0.02)
        return f"ended at once with code {process.returncode}"

    def _signal(self, number: signal.Signals) -> None:
        # A child that has ended keeps its id and its group until `_discard` reaps it.
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def _discard(self) -> None:
        """Reap the server, which has ended or is ending, and then its guard."""
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
        flags: further flags of etcd, such as ``("--max-txn-ops", "16")``.
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
        # Variables can set flags of etcd. Drop them, because they belong to the user's own etcd.
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    def _answers(self, port: int) -> bool:
        # Since etcd 3.4, the handler executes a linearizable range, which needs a leader.
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
        jvm_flags: further flags of Java, such as ``("-Djute.maxbuffer=65536",)``.
        tick_time: a tick in milliseconds. Sessions time out after 2 to 20 ticks, by default 4 to
            40 s.
        heap_mib: the limit of Java's heap in MiB. A node with 100 bytes takes about half a KiB.
            Reading a hundred values of 0.8 MiB at once takes more than 512 MiB.
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
        """Return a server whose heap can hold the nodes of all settings and rounds of a bench.

        Each of them adds some ten thousand nodes, and a node of 100 bytes takes half a KiB.
        """
        return cls(directory, heap_mib=2048)

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        runtime, jars = find_java(), find_zookeeper_jars()
        (self.directory / "tmp").mkdir(exist_ok=True)
        # Relative paths, because Java reads property files as Latin-1, and the directory may have
        # any name.
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
            # Java would map a file for its counters in the system's temporary folder, and writes to
            # it can stall. Native libraries are unpacked to java.io.tmpdir.
            "-XX:-UsePerfData",
            "-Djava.io.tmpdir=./tmp",
            "-Djava.awt.headless=true",
            "-Dlog4j2.configurationFile=./log4j2.properties",
            # The log grows in steps of 16 MiB instead of 64: a test's server writes a few of them.
            "-Dzookeeper.preAllocSize=16384",
            *self._jvm_flags,
            *("-cp", os.pathsep.join(map(str, jars))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "./zoo.cfg",
        ]

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _answers(self, port: int) -> bool:
        # `srvr`, because `ruok` is answered before requests are served. A `srvr` that arrives
        # during the start is never answered, so the timeout is short.
        with socket.create_connection((_HOST, port), timeout=0.25) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as answer:
                return b"Mode: standalone" in answer.read()


def _free_ports(count: int) -> tuple[int, ...]:
    """Return ports that are free now. Another process may take them before they are used.

    They lie outside the system's range for outgoing connections. In that range, a client that keeps
    connecting to the port of a dead server eventually gets that port for itself. It then connects
    to itself, and prevents the server's restart.
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
        return 32_768  # The system is not Linux. Other systems begin at 49152.
    return max(int(text.split()[0]), 12_000)

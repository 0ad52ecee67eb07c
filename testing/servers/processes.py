"""One process of a server, and free ports for it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["HOST", "ServerProcess", "ServerStartError", "cpu_seconds", "free_ports"]

#: The address of all servers.
HOST: Final = "127.0.0.1"

# A shell script that waits for the end of this process, even by a kill, and then kills the server's
# process group.
_GUARD: Final = 'read -r _; kill -s KILL -- "-$1"'


class ServerStartError(RuntimeError):
    """A server did not start. The message has the end of its log."""


class ServerProcess:
    """A process that can be started, killed and paused. Only one thread at a time may use it.

    Args:
        name: the name of the server, for messages and for its log.
        directory: the directory of its log.
        cwd: the directory in which it runs, by default that of its log.

    Attributes:
        directory: as given.
        log: the file with its output, from all its starts.
        paused: whether it is paused.
    """

    def __init__(self, name: str, directory: Path, cwd: Path | None = None) -> None:
        self._name = name
        self._cwd = cwd or directory
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.paused = False
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process, and of its process group."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process exists. A paused process does."""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code of a process that has ended by itself."""
        return self._process.returncode if self._process is not None else None

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process, in a session of its own."""
        self.discard()
        # In a new session, Ctrl-C at the terminal does not reach the server, and signals to its
        # group also reach the processes that a wrapper script starts.
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._cwd,
                env=environment,
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
            ["/bin/sh", "-c", _GUARD, f"{self._name}-guard", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM). ``discard`` waits for that."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # A paused process acts on SIGTERM only when it continues.

    def await_end(self, seconds: float) -> None:
        """Wait until the process has ended, and kill it after some seconds."""
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self.discard()

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` does, and return when it has ended."""
        self.signal(signal.SIGKILL)
        self.discard()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP), and return when it has stopped."""
        pid = self._running().pid
        self.paused = True
        self.signal(signal.SIGSTOP)
        # With WEXITED, a server that dies at this moment does not block this call forever.
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process continue (SIGCONT)."""
        self._running()
        self.paused = False
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to those that it has started."""
        # A child that has ended keeps its id and its group until `discard` reaps it.
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def discard(self) -> None:
        """Reap the process, which has ended or is ending, and then its guard."""
        self.paused = False
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None

    def logged(self, offset: int) -> str:
        """Return the log from an offset on."""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self._name} is not running")
        return self._process


def cpu_seconds(groups: Collection[int]) -> float | None:
    """Return the CPU seconds that the processes of some groups have used; ``None`` if unknown.

    A server has a group because its program may be a script that starts the server.
    """
    if not groups or not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # The process has ended.
            # The fields after the program's name, which may contain spaces and parentheses.
            fields = stat.read_text().rpartition(") ")[2].split()
            group, user, system = (int(fields[place]) for place in (2, 11, 12))
            if group in groups:
                ticks += user + system
    return ticks / os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> tuple[int, ...]:
    """Return free ports. Another process may take them before they are used.

    They lie outside the system's range for outgoing connections. In that range, a client that keeps
    connecting to the port of a dead server eventually gets that port for itself. It then connects
    to itself, and prevents the server's restart.
    """
    ports: list[int] = []
    for port in random.sample(range(10_240, _first_ephemeral_port()), 1_000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return tuple(ports)
    raise ServerStartError(f"no {count} free ports on {HOST}")


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768  # The system is not Linux. Other systems begin at 49152.
    return max(int(text.split()[0]), 12_000)

"""The throw-away servers of the bench and the tests."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kazoo.client import KazooClient

from batchkeeper.testing.servers import (
    SERVERS,
    EtcdServer,
    LocalServer,
    ServerStartError,
    ZooKeeperServer,
    local,
)
from batchkeeper.testing.servers.processes import cpu_seconds

from ..histories.nemesis import server_to_hurt
from ..java import zookeeper_flags


class Etcdctl:
    """A value in etcd through plain gRPC, as bytes, without our client."""

    def __init__(self, server: LocalServer) -> None:
        self._channel = grpc.insecure_channel(server.address)

    def _call(self, method: str, request: bytes, timeout: float) -> bytes:
        call = self._channel.unary_unary(
            f"/etcdserverpb.KV/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        answer: bytes = call(request, timeout=timeout, wait_for_ready=True)
        return answer

    def put(self, value: bytes) -> None:
        # PutRequest { key = 1, value = 2 }, each with its tag and a length of one byte.
        self._call("Put", b"\x0a\x01k\x12" + bytes([len(value)]) + value, 30.0)

    def holds(self, value: bytes, timeout: float = 30.0) -> bool:
        return value in self._call("Range", b"\x0a\x01k", timeout)

    def close(self) -> None:
        self._channel.close()


class Zkcli:
    """A value in ZooKeeper through plain kazoo."""

    def __init__(self, server: LocalServer) -> None:
        self._client = KazooClient(server.address)
        self._client.start(30.0)

    def put(self, value: bytes) -> None:
        self._client.create("/k", value)

    def holds(self, value: bytes, timeout: float = 30.0) -> bool:
        return bool(self._client.get_async("/k").get(timeout=timeout)[0] == value)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


CLIENTS: dict[str, Callable[[LocalServer], Any]] = {"etcd": Etcdctl, "zookeeper": Zkcli}


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalServer]:
    """One server of each kind, not started yet."""
    made = server_to_hurt(request.param, tmp_path / "server")
    yield made
    made.stop()


def test_a_started_server_answers_at_its_url(server: LocalServer) -> None:
    """A server that `start` returned from takes a write and gives it back, at a loopback URL."""
    with server:
        assert server.url == f"{server.name}://{server.address}"
        assert server.address.startswith("127.0.0.1:")
        client = CLIENTS[server.name](server)
        client.put(b"one")
        assert client.holds(b"one")
        client.close()
    assert not server.running


def test_a_killed_server_comes_back_with_its_data(server: LocalServer) -> None:
    """After kill -9 and a restart, address and data are as before; the pid is new."""
    server.start()
    client = CLIENTS[server.name](server)
    client.put(b"kept")
    client.close()
    server.restart()  # A kill may take what an etcd before 3.5.5 acknowledged last (etcd #14370).
    address, pid = server.address, server.pid

    server.kill()
    assert not server.running
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5.0)

    server.restart()
    assert (server.address, server.pid != pid) == (address, True)
    client = CLIENTS[server.name](server)
    assert client.holds(b"kept")
    client.close()


def test_a_paused_server_is_silent_until_it_goes_on(server: LocalServer) -> None:
    """A paused server does not answer, and answers again after `resume`."""
    server.start()
    client = CLIENTS[server.name](server)
    client.put(b"one")
    server.pause()
    state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T"
    with pytest.raises(Exception, match=r"(?i)deadline|timed out|^$"):
        client.holds(b"one", timeout=0.2)
    server.resume()
    assert client.holds(b"one")
    client.close()


def test_a_paused_server_can_be_stopped(server: LocalServer) -> None:
    """`stop` ends a paused server too, and may be called again."""
    server.start()
    server.pause()
    server.stop()
    server.stop()
    assert not server.running
    with pytest.raises(RuntimeError, match="is not running"):
        server.pause()


@pytest.mark.server
@pytest.mark.parametrize("ending", ["sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_server_does_not_outlive_its_process(ending: str, tmp_path: Path) -> None:
    """A server ends with the process that started it: at an exit without `stop`, at a kill -9."""
    program = f"""
        import os, signal, sys
        from batchkeeper.testing.servers import EtcdServer
        server = EtcdServer({str(tmp_path / "etcd")!r})
        server.start()
        print(server.pid, flush=True)
        sys.stdin.readline()
        {ending}
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        process.communicate(b"\n")
    # A process's file descriptor becomes readable when it has ended.
    assert select.select([server], [], [], 30.0)[0] == [server]
    os.close(server)


@pytest.mark.server
def test_a_server_that_fails_to_start_shows_its_log(tmp_path: Path) -> None:
    """A server that ends at once is an error with the end of what it printed."""
    server = EtcdServer(tmp_path, flags=("--heartbeat-interval=900",))
    with pytest.raises(ServerStartError, match=r"(?s)ended at once.*election-timeout"):
        server.start()
    assert not server.running


@pytest.mark.server
def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    """A start that takes too long is an error with the time in it, and the process is gone."""
    server = ZooKeeperServer(tmp_path, start_timeout=0.0)
    with pytest.raises(ServerStartError, match=r"did not answer at .* within 0 s"):
        server.start()
    assert not server.running


@pytest.mark.server
def test_a_taken_port_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process takes a port before the start, the start only tries again."""
    find = local.free_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offers = [(taken.getsockname()[1], *find(1)), find(2)]
        monkeypatch.setattr(local, "free_ports", lambda _: offers.pop(0))
        with EtcdServer(tmp_path) as server:
            assert not offers
            assert server.address != f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.server
def test_a_running_server_is_not_started_twice(tmp_path: Path) -> None:
    """`start` of a running server is refused, and the running one goes on."""
    with EtcdServer(tmp_path) as server:
        pid = server.pid
        with pytest.raises(RuntimeError, match=f"running already .pid {pid}"):
            server.start()
        assert server.pid == pid


@pytest.mark.server
def test_flags_reach_the_server(tmp_path: Path) -> None:
    """Flags given to a server are in its command line, after ours."""
    flags = (*zookeeper_flags(), "-Djute.maxbuffer=65536")
    with ZooKeeperServer(tmp_path, jvm_flags=flags) as server:
        command = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    assert "-Djute.maxbuffer=65536" in command


@pytest.mark.server
def test_variables_of_another_etcd_do_not_reach_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ETCD_ variables, which would set flags of the server, are kept from it."""
    monkeypatch.setenv("ETCD_CLIENT_CERT_AUTH", "true")
    monkeypatch.setenv("ETCD_TRUSTED_CA_FILE", str(tmp_path / "missing"))
    with EtcdServer(tmp_path / "etcd") as server:
        environment = Path(f"/proc/{server.pid}/environ").read_text()
    assert "ETCD_" not in environment


@pytest.mark.server
def test_signals_to_us_spare_the_server(tmp_path: Path) -> None:
    """A server runs in a new session, so that Ctrl-C at the terminal does not end it first."""
    with EtcdServer(tmp_path) as server:
        assert os.getsid(server.pid) == server.pid
        assert os.getpgid(server.pid) != os.getpgrp()
        os.killpg(server.pid, signal.SIGCONT)  # Harmless; the group is there to be signalled.


@pytest.mark.slow
def test_the_cpu_time_of_a_server_that_a_script_starts_counts() -> None:
    """A group's CPU time is that of all its processes, whatever their names."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ninput()"
    script = f"""'{sys.executable}' -c '{burn}'; :"""
    with subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"1\n"
        used = cpu_seconds((shell.pid,))
        shell.communicate(b"\n")
    assert used is not None
    assert used > 0.25  # The clock counts hundredths.
    assert cpu_seconds(()) is None

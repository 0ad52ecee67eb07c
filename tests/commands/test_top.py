"""``batchkeeper top``: what it shows of a running client, and what it says without one."""

from __future__ import annotations

import http.server
import json
import os
import pty
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

import batchkeeper as bk
from batchkeeper.observability import MetricsServer, serve_metrics

from ..programs import COMMAND
from ..waiting import PATIENCE
from .conftest import Run


@pytest.fixture
def client() -> Iterator[MetricsServer]:
    """The metrics of a store that works all the time: puts, gets and one conflict for each."""
    over = threading.Event()

    def work(store: bk.MetadataStore) -> None:
        while not over.wait(0.005):
            store.apply([bk.Put("/a", b"1"), bk.Get("/a"), bk.Put("/b", b"", 99)])

    with bk.open_store("memory://top") as store, serve_metrics(store, port=0) as served:
        thread = threading.Thread(target=work, args=(store,))
        thread.start()
        try:
            yield served
        finally:
            over.set()
            thread.join()


def test_one_interval_as_json(run: Run, client: MetricsServer) -> None:
    """A script gets the rates of one interval, the totals, the lanes and the session."""
    code, output, errors = run("top", str(client.port), "--interval", "200ms", "-o", "json")
    assert (code, errors) == (0, [])
    found = json.loads(output)
    assert (found["store"], found["session"]["state"]) == ("memory://top", "connected")
    rates = found["per_second"]
    assert rates["operations"]["put"] > rates["operations"]["get"] > 0
    assert rates["conflicts"] == rates["errors"]["BadVersionError"] == rates["failures"]["put"] > 0
    assert found["totals"]["conflicts"] > 0
    writes = found["lanes"]["writes"]
    assert writes["operations_per_second"] >= writes["batches_per_second"] > 0
    assert writes["operations_per_batch"] >= 1
    assert 0 < writes["store_seconds_p50"] <= writes["store_seconds_p99"]
    assert found["lanes"]["singles"]["operations_per_batch"] is None


def test_one_interval_as_a_table(
    run: Run, client: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits into the terminal with every lane and every count named, and no figure is cut."""
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, output, _ = run("top", client.url, "--interval", "200ms", "--once")
        lines = output.decode().splitlines()
        assert code == 0
        assert all(len(line) <= columns for line in lines)
        assert "\N{HORIZONTAL ELLIPSIS}" not in output.decode()
        assert lines[0].startswith("memory://top  pid ")
        for word in ("reads", "writes", "singles", "conflicts", "session losses", "connected"):
            assert word in output.decode()
        assert "BadVersionError" in lines[-1]


@pytest.mark.slow
def test_lines_of_json_follow_until_the_reader_has_gone(client: MetricsServer) -> None:
    """Each interval is a line; a closed pipe ends the command without a traceback."""
    command = [*COMMAND, "top", f"localhost:{client.port}", "--interval", "100ms", "-o", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert second["totals"]["operations"] > first["totals"]["operations"]
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_the_live_view_and_restores_the_terminal(client: MetricsServer) -> None:
    """The screen is redrawn in place; the interrupt leaves no traceback behind."""
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [*COMMAND, "top", str(client.port), "--interval", "100ms"]
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env=environment
    ) as process:
        os.close(inner)
        shown = b""
        while shown.count(b"memory://top") < 2:
            shown += os.read(outer, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while more := os.read(outer, 65536):
                shown += more
        except OSError:  # Linux' end of a terminal.
            pass
        assert process.wait(PATIENCE) == 130
    os.close(outer)
    assert b"Traceback" not in shown
    entered, left = shown.find(b"\x1b[?1049h"), shown.rfind(b"\x1b[?1049l")
    assert 0 <= entered < left


def test_nothing_that_listens(run: Run) -> None:
    """The error names the address and what the application has to call; the code is 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound, and nobody listens.
        port = taken.getsockname()[1]
        code, output, (line,) = run("top", str(port), "--once")
    assert (code, output) == (2, b"")
    assert f"no metrics at http://127.0.0.1:{port}: Connection refused" in line
    assert f"serve_metrics(store, port={port})" in line


def test_something_else_that_listens(run: Run) -> None:
    """Another server is named as such; the code is that of bad input."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        code, _, (line,) = run("top", str(other.server_port), "--once")
    assert code == 3
    assert "answers, but not with metrics of batchkeeper (404)" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("host",), "'host'"),
        (("host:port",), "'host:port'"),
        (("https://localhost:1",), "only http"),
        (("0",), "'127.0.0.1:0'"),
        (("9100", "--interval", "1ms"), "at least 0.1"),
        (("9100", "--interval", "soon"), "'soon'"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    """One line has the offending value."""
    code, output, errors = run("top", *arguments, "--once")
    assert (code, output) == (3, b"")
    assert reason in errors[-1]

"""Simulations with real hubs, real clients and real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from rich.console import Console

import batchkeeper as bk
from batchkeeper import cli
from batchkeeper.bench.simulation.events import Event, Recorder, Tail
from batchkeeper.bench.simulation.history import History
from batchkeeper.bench.simulation.lines import Lines
from batchkeeper.bench.simulation.picture import page
from batchkeeper.bench.simulation.plan import FAULTS, Plan
from batchkeeper.bench.simulation.simulation import Outcome, simulate
from batchkeeper.hubs import Hosts
from batchkeeper.stores.registry import parse_url
from batchkeeper.testing.servers import LocalServer

from ...programs import COMMAND, run_python
from ...waiting import until


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


class Shape(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def check(outcome: Outcome) -> None:
    """Every promise holds, but for seconds on a busy machine; the message has all verdicts."""
    broken = [verdict for verdict in outcome.verdicts if not (verdict.holds or verdict.timed)]
    assert not broken, "\n".join(map(str, outcome.verdicts))


# For each change, one: each takes as much time as a hundred tests of hubs.
@pytest.mark.parametrize(
    "ownership", ["ephemeral", pytest.param("compared", marks=pytest.mark.full)]
)
def test_hubs_keep_their_promises_while_they_fail(
    server: LocalServer, ownership: str, tmp_path: Path
) -> None:
    """Hubs are killed, paused, cut off, drained and stopped, and no promise is broken."""
    plan = Plan(
        topics=12,
        seconds=16.0,
        kill_every=2.5,
        rate=60.0,
        session_timeout=2.0,
        ownership=ownership,  # type: ignore[arg-type]
        seed=7,
    )
    outcome = simulate(server.url, "/region", plan, tmp_path / "run", Console(quiet=True))
    check(outcome)
    kinds = [fault.kind for fault in outcome.history.faults]
    assert len(kinds) >= 3
    assert len({*kinds[: len(FAULTS)]}) == len(kinds[: len(FAULTS)]), "each comes once at first"
    assert len(outcome.history.owners) == plan.topics
    text = page("Hubs", plan, outcome.history, outcome.verdicts)
    bars = [tag for tag, attributes in Shape(text).tags if tag == "rect" and "fill" in attributes]
    assert len(bars) >= sum(map(len, outcome.history.owners.values()))
    assert not re.search(r"https?://|src=|@import|url\(", text), "the page needs something else"
    with bk.open_store(server.url) as store, Hosts(store, "/region") as hosts:
        assert hosts.hubs() == {}
        assert plan.hubs <= len(hosts.memberships()) <= plan.addresses


@pytest.mark.parametrize("server", ["etcd"], indirect=True)
def test_the_command(server: LocalServer, tmp_path: Path) -> None:
    """It prints the verdicts, writes the picture, and leaves nothing in the store."""
    url = f"{server.url}/beside"
    tmp_path.joinpath("password").write_text("secret")
    with bk.open_store(url) as store:
        store.put("/mine", b"").result()
    done = run_python(
        *COMMAND[1:],
        *("--store", url, "hubs", "simulate", "--hubs", "2", "--topics", "4", "--minutes", "0.1"),
        *("--faults", "none", "--rate", "40", "-o", "json"),
        cwd=tmp_path,  # Its folder is `.scratch` there, from which hubs and clients must find it,
        # and so must they find a file that the environment or the URL names.
        env=os.environ | {"BATCHKEEPER_USERNAME": "me", "BATCHKEEPER_PASSWORD_FILE": "password"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["plan"]["topics"] == 4
    assert all(verdict["holds"] for verdict in found["verdicts"])
    (picture,) = tmp_path.glob(".scratch/*.html")
    assert str(picture) in done.stderr
    assert "<svg" in picture.read_text()
    with bk.open_store(url) as store:
        assert [path for path, _, _ in store.scan("/")] == ["/mine"]


@pytest.mark.server
def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    """The hubs, the clients and the server end with the command."""

    def mine() -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline", "cwd"])
            if str(tmp_path) in " ".join(process.info.get("cmdline") or ())
            or (process.info.get("cwd") or "").startswith(str(tmp_path))
        ]

    arguments = ("hubs", "simulate", "--hubs", "2", "--topics", "4", "--minutes", "5")
    command = [*COMMAND, *arguments, "--dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "4/4 topics" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.stderr.read()
    until(lambda: not mine())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--store", "memory://m"), "need an etcd or a ZooKeeper"),
        (("--hubs", "1"), "hubs must be 2 at least"),
        (("--hubs", "0"), "--hubs: must be at least 1"),
        (("--faults", "kill,fire"), "no fault 'fire'"),
        (("--minutes", "0.1"), "6 times as long as a session"),
        (("--kill-every", "soon"), "not a duration such as 10s"),
        (("--rate", "0"), "rate must be above 0"),
        (("--members", "2"), "1, 3, 5 or 7"),
        (("--store", "etcd://h:1", "--members", "3"), "only for the servers"),
        (("--html", "/no/such/folder/x.html"), "x.html cannot be written"),
    ],
)
def test_bad_input(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names what is wrong, and starts nothing."""
    try:
        code = cli.main(["hubs", "simulate", *arguments, "--dir", str(tmp_path)])
    except SystemExit as ended:  # as argparse ends
        code = int(str(ended.code))
    (error,) = capsys.readouterr().err.splitlines()
    assert code == 3
    assert message in error
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_without_a_server(tmp_path: Path) -> None:
    """The command says what is missing, and leaves nothing behind."""
    done = run_python(
        *COMMAND[1:],
        *("hubs", "simulate", "--dir", str(tmp_path / "new")),
        env={**os.environ, "BATCHKEEPER_ETCD": str(tmp_path / "none")},
    )
    assert done.returncode == 2, done.stderr
    assert "BATCHKEEPER_ETCD" in done.stderr
    assert not any(tmp_path.iterdir())


def test_records_of_a_killed_process(tmp_path: Path) -> None:
    """Half of a line is not read; each event is read once."""
    record = Recorder(tmp_path / "hub-1-1.jsonl")
    tail = Tail(tmp_path)
    first = record("serving", hub="h")
    assert list(tail.new()) == [Event(first, "hub-1-1", "serving", {"hub": "h"})]
    with (tmp_path / "hub-1-1.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "eve')
    assert list(tail.new()) == []
    record.close()


def test_a_line_that_is_cut(own_etcd: Callable[[], LocalServer]) -> None:
    """A hub behind it reaches the store no more, another one does, and later both do."""
    server = own_etcd()
    lines = Lines(parse_url(f"{server.url}/below"), hubs=2)
    try:
        with bk.open_store(lines.url(0)) as one, bk.open_store(lines.url(1)) as two:
            one.put("/x", b"").result()
            lines.cut(0)
            late = one.put("/x", b"late")
            assert two.get("/x").result() is not None
            assert not late.done()
            lines.restore(0)
            assert late.result().version == 1
        with bk.open_store(server.url) as store:
            assert store.exists("/below/x").result()
    finally:
        lines.close()
    with pytest.raises(bk.InvalidSettingError, match="leave cut and blink out"):
        Lines(parse_url("etcds://localhost:1"), hubs=1)


def test_a_page_of_nothing() -> None:
    """Without any record there are no bars, and no error."""
    assert "<svg" in page("Hubs", Plan(), History.of([]), [])

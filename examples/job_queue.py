"""A job queue whose workers keep to a rate, however many of them run.

::

    python examples/job_queue.py                                      # a demonstration in memory
    python examples/job_queue.py etcd://127.0.0.1:2379 put one two    # add jobs
    python examples/job_queue.py etcd://127.0.0.1:2379 work --rate 5  # do jobs, 5 a second

All workers together begin at most ``--rate`` jobs a second, which they count in one value.
A worker ends when there was no job for ``--idle`` seconds. If it dies, another one does its job; a
job that has failed three times is moved to ``/mail/failed``.
"""

from __future__ import annotations

import argparse
import time

import batchkeeper as bk

QUEUE = "/mail"
MOST_ATTEMPTS = 3


class Rate:
    """Lets all who share a path begin at most ``rate`` jobs a second.

    The value at the path is a second, by the clocks of the hosts, and the jobs begun in it.
    """

    def __init__(self, store: bk.MetadataStore, path: str, rate: float) -> None:
        self._store, self._path, self._rate = store, path, rate

    def wait(self) -> None:
        """Wait for one's turn."""
        while True:
            found = self._store.get(self._path).result()
            second, begun = map(int, found.value.split()) if found else (0, 0)
            now = int(time.time())
            if now > second:
                second, begun = now, 0
            if begun >= self._rate:
                time.sleep(max(0.0, second + 1 - time.time()))
                continue
            try:
                version = found.stat.version if found else bk.ABSENT
                self._store.put(self._path, b"%d %d" % (second, begun + 1), version).result()
            except bk.BadVersionError:
                continue  # Somebody else has taken a turn meanwhile.
            return


def deliver(text: str) -> None:
    """Do one job. A job can come again, for example after a crash, so it must bear that."""
    if not text:
        raise ValueError("an empty mail")
    print(f"delivered {text}", flush=True)


def do(store: bk.MetadataStore, job: bk.Job) -> None:
    """Do a job, give it back if it fails, and put it aside if it fails too often."""
    try:
        deliver(job.value.decode())
    except ValueError as error:
        print(f"attempt {job.attempt} failed: {error}", flush=True)
        if job.attempt < MOST_ATTEMPTS:
            job.release()
            return
        store.put(f"{QUEUE}/failed/{job.path.rpartition('/')[2]}", job.value).result()
    job.done()


def work(store: bk.MetadataStore, rate: float, idle: float) -> int:
    """Do jobs until there are none; return how many were begun."""
    queue = bk.WorkQueue(store, f"{QUEUE}/queue")
    pace = Rate(store, f"{QUEUE}/rate", rate)
    begun = 0
    while True:
        try:
            job = queue.claim(timeout=idle)
        except bk.OperationTimeoutError:
            return begun
        pace.wait()
        try:
            do(store, job)
        except bk.MetadataStoreError as error:
            # Somebody else has the job by now, or no server answers. It is done again later.
            print(f"{job.path} stays: {error}", flush=True)
            job.release()
        begun += 1


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(description="A rate-limited job queue.")
    parser.add_argument("url", nargs="?", default="memory://mail")
    parser.add_argument("command", nargs="?", choices=["put", "work", "demo"], default="demo")
    parser.add_argument("texts", nargs="*", help="the jobs to put")
    parser.add_argument("--rate", type=float, default=5.0, help="jobs a second, of all workers")
    parser.add_argument("--idle", type=float, default=2.0, help="seconds without a job")
    asked = parser.parse_args()
    with bk.open_store(asked.url) as store:
        if asked.command in {"put", "demo"}:
            texts = asked.texts or ["one", "two", ""]
            bk.WorkQueue(store, f"{QUEUE}/queue").put_all(text.encode() for text in texts)
        if asked.command in {"work", "demo"}:
            print(f"{work(store, asked.rate, asked.idle)} jobs begun", flush=True)


if __name__ == "__main__":
    main()

"""A message hub in about fifty lines.

::

    python examples/topic_hub.py etcd://127.0.0.1:2379 127.0.0.1:4080 --logs /var/tmp/messages
    python examples/topic_hub.py etcd://127.0.0.1:2379 127.0.0.1:4081 --logs /var/tmp/messages

Start as many as you like. They share the store and the directory of the messages, and divide the
topics among them. Stop one with Ctrl-C or SIGTERM: it gives its topics up first, so clients go on
with the others at once. Kill one: the others take its topics over when its session has ended.

``surviving_subscriber.py`` is a client.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from contextlib import ExitStack

import batchkeeper as bk
from batchkeeper.hubs import FileLogs, HubServer, TopicHub


def main(arguments: list[str] | None = None) -> int:
    """Serve until somebody stops the process."""
    parser = argparse.ArgumentParser(description="Serve topics.")
    parser.add_argument("url", help="the store that all hubs share")
    parser.add_argument("address", help="HOST:PORT; port 0 for any that is free")
    parser.add_argument("--logs", default="messages", help="the directory of the messages")
    parser.add_argument("--region", default="/hubs")
    parser.add_argument("--session", type=float, default=10.0, help="seconds to take over")
    asked = parser.parse_args(arguments)
    host, _, port = asked.address.rpartition(":")

    with ExitStack() as stack:
        server = HubServer()
        stack.callback(server.stop)  # Last, so that clients hear where their topics are now.
        address = server.listen(host, int(port))
        store = stack.enter_context(bk.open_store(asked.url, session_timeout=asked.session))
        hub = TopicHub(store, asked.region, address, FileLogs(asked.logs))
        hub.add_listener(
            acquired=lambda claim: print(f"owns {claim.topic}", flush=True),
            lost=lambda claim: print(f"gives up {claim.topic}", flush=True),
        )
        stack.enter_context(hub)  # Its end gives all topics up.
        server.serve(hub)
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
        print(f"serves {asked.region} at {address}", flush=True)
        stopping.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

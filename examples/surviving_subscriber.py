"""A subscriber, and a publisher, that survive crashes of their hubs.

::

    python examples/surviving_subscriber.py read orders billing --hubs 127.0.0.1:4080,127.0.0.1:4081
    python examples/surviving_subscriber.py publish orders --hubs 127.0.0.1:4080 --count 100

Kill the hub that owns the topic, or this program: it goes on where it was. The subscriber says that
it has consumed a message when its work is done. So no message is lost. After a crash of the
subscriber or its hub, the last ones may come again, with the same numbers: work that must happen
once keeps the last number together with its result.
"""

from __future__ import annotations

import argparse
import sys
import time

from batchkeeper.hubs import HubConnections, TopicClient


def read(client: TopicClient, asked: argparse.Namespace) -> None:
    """Print the messages of a topic."""
    seen = 0
    with client.subscribe(asked.subscriber, asked.topic) as reader:
        print(f"{asked.subscriber} reads {asked.topic}", flush=True)
        while asked.count is None or seen < asked.count:
            for message in reader.take():
                print(f"{message.number}: {message.body.decode()}", flush=True)
                reader.consumed(message.number)
                seen += 1


def publish(client: TopicClient, asked: argparse.Namespace) -> None:
    """Publish numbers. If an answer is lost, the message is published again, and comes twice."""
    number = 0
    while asked.count is None or number < asked.count:
        number += 1
        published = client.publish("publisher", asked.topic, b"message %d" % number)
        print(f"message {number} is at hub {published.hub.address}", flush=True)
        time.sleep(asked.period)


def main(arguments: list[str] | None = None) -> int:
    """Read or publish, for ever or some messages."""
    parser = argparse.ArgumentParser(description="Read or publish, whatever happens to hubs.")
    commands = parser.add_subparsers(required=True)
    for name, call in (("read", read), ("publish", publish)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("topic")
        if call is read:
            command.add_argument("subscriber")
        command.add_argument("--hubs", required=True, help="addresses of some hubs, with commas")
        command.add_argument("--count", type=int, help="end after this many messages")
        command.add_argument("--period", type=float, default=0.1, help="seconds between two")
    asked = parser.parse_args(arguments)
    with HubConnections(timeout=5.0) as connections:
        # Longer than a hub's session, after which another hub takes its topics over.
        asked.call(TopicClient(connections, asked.hubs.split(","), timeout=120.0), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())

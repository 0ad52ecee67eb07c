"""What hubs and their clients exchange."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ..managers.data import HubInfo

__all__ = ["Attempt", "Message", "Published", "Redirect", "SubscribeMode"]

#: Whether a subscription must be new, must be there already, or either.
SubscribeMode: TypeAlias = Literal["create", "attach", "create_or_attach"]


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        number: its place in the topic: 1 for the first message, then without gaps.
        body: what was published.
    """

    number: int
    body: bytes


class Published(NamedTuple):
    """A message was accepted: it is in the log of its topic.

    Attributes:
        number: its place in the topic.
        hub: the hub that owns the topic.
    """

    number: int
    hub: HubInfo


class Redirect(NamedTuple):
    """Another hub is to be asked, with ``redirected=True``.

    Attributes:
        hub: the hub that owns the topic, or that is to become its owner.
    """

    hub: HubInfo


class Attempt(NamedTuple):
    """One of the attempts of a client to connect its subscriber.

    A hub may execute an attempt late, for example because it was paused, when the client has long
    connected with its next one. By these numbers, the hub knows that and does not replace it.

    Attributes:
        reader: the client's reader; no other one has this text.
        number: grows with each attempt of the reader.
    """

    reader: str
    number: int

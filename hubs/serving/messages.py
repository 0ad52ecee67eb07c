"""The messages and answers between hubs and their clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from ..managers.data import HubInfo

__all__ = ["Attempt", "Message", "MessageFilter", "Published", "Redirect", "SubscribeMode"]

#: Whether a subscription must be new, must already exist, or either.
SubscribeMode: TypeAlias = Literal["create", "attach", "create_or_attach"]


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        number: its position in the topic: 1 for the first message, then without gaps.
        body: the published bytes.
    """

    number: int
    body: bytes


#: Returns whether a subscriber gets a message, given the ``options`` of its preferences. A hub has
#: filters by name, and calls the one that the ``message_filter`` of the preferences names.
MessageFilter: TypeAlias = Callable[[Message, Mapping[str, bytes]], bool]


class Published(NamedTuple):
    """A message was accepted: it is in the log of its topic.

    Attributes:
        number: its position in the topic.
        hub: the hub that owns the topic.
    """

    number: int
    hub: HubInfo


class Redirect(NamedTuple):
    """The client must ask another hub, with ``redirected=True``.

    Attributes:
        hub: the hub that owns the topic, or should become its owner.
    """

    hub: HubInfo


class Attempt(NamedTuple):
    """One of the attempts of a client to connect its subscriber.

    A hub may execute an attempt late, for example after a pause, when the client has already
    connected with a later attempt. The numbers let the hub detect that, and keep the later
    connection.

    Attributes:
        reader: a text that is unique to the client's reader.
        number: grows with each attempt of the reader.
    """

    reader: str
    number: int

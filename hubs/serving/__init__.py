"""A hub that serves topics, and the clients that find it.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``messages``: what hubs and their clients exchange
- ``settings``: how a hub behaves, validated
- ``shedding``: which topics a hub gives up, and when: pure functions
- ``async_logs``: what a hub needs of the logs of messages
- ``file_logs``: logs in files, for examples and tests
- ``async_owned``: a topic that a hub owns, and its subscribers
- ``async_served``: the topics that a hub serves, and a lock for each topic
- ``async_listeners``: the functions that learn which topics a hub gets and loses
- ``async_holding``: how a hub claims topics, gives them up, loses them and hands them over
- ``async_lookup``: which hub serves a topic
- ``async_subscribing``: how subscribers are connected and removed
- ``async_upkeep``: what a hub does in the background
- ``async_hub``: the hub: its face, and its parts put together
- ``async_outages``: how the calls of a client wait while hubs do not answer
- ``async_client``: publishes and subscribes, whichever hub has the topic
- ``protocol``: what hubs and their clients say to each other over TCP: pure functions
- ``async_frames``: frames over TCP, for tasks
- ``frames``: the same for threads, written by hand
- ``async_server``: a server that lets clients reach a hub over TCP
- ``async_remote``: hubs that clients reach over TCP
"""

from ._sync.client import Connect, Delivery, HubConnection, Reader, TopicClient
from ._sync.hub import TopicHub
from ._sync.logs import Logs
from ._sync.owned import Subscription
from ._sync.remote import HubConnections, RemoteHub, RemoteSubscription
from ._sync.server import HubServer
from .async_client import (
    AsyncConnect,
    AsyncDelivery,
    AsyncHubConnection,
    AsyncReader,
    AsyncTopicClient,
)
from .async_hub import AsyncTopicHub
from .async_logs import AsyncLogs
from .async_owned import AsyncSubscription
from .async_remote import AsyncHubConnections, AsyncRemoteHub, AsyncRemoteSubscription
from .async_server import AsyncHubServer
from .file_logs import AsyncFileLogs, FileLogs
from .messages import Attempt, Message, Published, Redirect, SubscribeMode
from .settings import HubSettings

__all__ = [
    "AsyncConnect",
    "AsyncDelivery",
    "AsyncFileLogs",
    "AsyncHubConnection",
    "AsyncHubConnections",
    "AsyncHubServer",
    "AsyncLogs",
    "AsyncReader",
    "AsyncRemoteHub",
    "AsyncRemoteSubscription",
    "AsyncSubscription",
    "AsyncTopicClient",
    "AsyncTopicHub",
    "Attempt",
    "Connect",
    "Delivery",
    "FileLogs",
    "HubConnection",
    "HubConnections",
    "HubServer",
    "HubSettings",
    "Logs",
    "Message",
    "Published",
    "Reader",
    "Redirect",
    "RemoteHub",
    "RemoteSubscription",
    "SubscribeMode",
    "Subscription",
    "TopicClient",
    "TopicHub",
]

"""A hub that serves topics, and the clients that find it.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``errors``: the errors that several modules here raise
- ``messages``: the messages and answers between hubs and their clients
- ``settings``: the settings of a hub, validated
- ``shedding``: which topics a hub releases, and when: pure functions
- ``async_logs``: the interface of message logs
- ``file_logs``: logs in files, for examples and tests
- ``async_owned``: a topic that a hub owns, and its subscribers
- ``async_served``: the topics that a hub serves, and a lock for each topic
- ``async_listeners``: the callbacks for topics that a hub gets and loses
- ``async_holding``: how a hub claims, releases, loses and hands over topics
- ``async_lookup``: finds the hub that serves a topic
- ``async_subscribing``: connects and removes subscribers
- ``async_upkeep``: the background work of a hub
- ``async_hub``: the hub: its public face, and the connection of its parts
- ``async_outages``: how the calls of a client wait while a hub does not answer
- ``async_client``: a client that follows topics from hub to hub
- ``schema``: the messages between hubs and clients, as gRPC knows them
- ``wire``: what they mean: errors, sizes, options of the connections
- ``security``: TLS, tokens, and who a client has proved to be
- ``workers``: the threads of a server's requests
- ``async_server``: a server that makes a hub reachable over the network
- ``async_remote``: hubs that clients reach over the network
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
from .messages import Attempt, Message, MessageFilter, Published, Redirect, SubscribeMode
from .security import HubTLS
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
    "HubTLS",
    "Logs",
    "Message",
    "MessageFilter",
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

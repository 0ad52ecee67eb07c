"""Hubs, servers and clients of both faces, which tests call alike."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import batchkeeper as bk
from batchkeeper import hubs
from batchkeeper.hubs import FileLogs, HubSettings

from ...waiting import PATIENCE
from .conftest import R

__all__ = ["Face", "Hold", "Tasks", "Threads"]


class Hold:
    """Holds calls of a method up: ``entered`` is set when one waits, and ``open`` lets all go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.calls = 0

    def open(self) -> None:
        self.gate.set()

    def wait(self) -> None:
        self.calls += 1
        self.entered.set()
        assert self.gate.wait(PATIENCE)


def connected(subscription: Any) -> bool:
    """Say whether a subscriber is connected by this subscription."""
    try:
        subscription.consumed(0)  # It changes nothing.
    except bk.MetadataStoreError:
        return False
    return True


class Threads:
    """The face for threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stack = ExitStack()
        self.made: list[Any] = []  # the connections of subscribers that the hub has made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def server(self, **security: Any) -> Any:
        """A server that is stopped at the end."""
        made = hubs.HubServer(**security)
        self.stack.callback(made.stop)
        return made

    def hub(self, server: Any = None, **settings: Any) -> tuple[Any, Any]:
        """A hub behind a server, on a store in memory."""
        server = server or self.server()
        address = server.listen()
        store = self.stack.enter_context(bk.open_store("memory://wire"))
        logs = FileLogs(self.directory, sync=False)
        hub = hubs.TopicHub(store, R, address, logs, HubSettings(**settings))
        self.stack.enter_context(hub)
        subscribe = hub.subscribe

        def noted(*args: Any) -> Any:
            self.made.append(subscribe(*args))
            return self.made[-1]

        hub.subscribe = noted  # type: ignore[method-assign]
        server.serve(hub)
        self.stack.callback(server.stop)
        return hub, server

    def connections(self, timeout: float = PATIENCE, **security: Any) -> Any:
        """Connections, closed at the end."""
        return self.stack.enter_context(hubs.HubConnections(timeout, **security))

    def remote(self, address: str, timeout: float = PATIENCE) -> Any:
        """One connection, which is closed at the end."""
        made = hubs.RemoteHub(address, timeout)
        self.stack.callback(made.close)
        return made

    def client(self, *addresses: str, timeout: float = PATIENCE) -> Any:
        """A client of hubs."""
        return hubs.TopicClient(self.connections(timeout), addresses)

    def subscribers(self) -> int:
        """Return how many subscribers are connected to the hub."""
        return sum(map(connected, self.made))

    def hold(self, hub: Any, method: str) -> Hold:
        """Hold the calls of a hub's method up from now on."""
        made, call = Hold(), getattr(hub, method)

        def held(*args: Any) -> Any:
            made.wait()
            return call(*args)

        setattr(hub, method, held)
        self.stack.callback(made.open)
        return made


class Blocking:
    """Calls an object of a loop as threads call theirs."""

    def __init__(self, face: Tasks, made: Any) -> None:
        self.face = face
        self.made = made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.made, name)
        return self.face.blocking(found) if inspect.ismethod(found) else self.face.wrapped(found)

    def __call__(self, *args: Any) -> Any:
        return self.face.blocking(self.made)(*args)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.face.blocking(self.made.__aexit__)(None, None, None)


class Tasks(Threads):
    """The face for tasks, with a loop on a thread of its own."""

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()

        def end() -> None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()
            if rest := asyncio.all_tasks(self.loop):
                self.loop.run_until_complete(asyncio.wait(rest, timeout=PATIENCE))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

        self.stack.callback(end)
        return self

    def blocking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls another one on the loop, and waits for its result."""

        async def work(*args: Any, **kwargs: Any) -> Any:
            made = call(*args, **kwargs)
            return await made if inspect.isawaitable(made) else made

        def run(*args: Any, **kwargs: Any) -> Any:
            args = tuple(arg.made if isinstance(arg, Blocking) else arg for arg in args)
            future = asyncio.run_coroutine_threadsafe(work(*args, **kwargs), self.loop)
            return self.wrapped(future.result(PATIENCE))

        return run

    def wrapped(self, made: Any) -> Any:
        """Return an object as threads call it."""
        return Blocking(self, made) if type(made).__name__.startswith("Async") else made

    def server(self, **security: Any) -> Any:
        made = self.blocking(hubs.AsyncHubServer)(**security)
        self.stack.callback(made.stop)
        return made

    def hub(self, server: Any = None, **settings: Any) -> tuple[Any, Any]:
        server = server or self.server()
        address = server.listen()
        store = self.blocking(bk.open_async_store("memory://wire").__aenter__)()
        self.stack.callback(store.close)
        logs = hubs.AsyncFileLogs(self.directory, sync=False)
        hub = self.blocking(hubs.AsyncTopicHub)(store, R, address, logs, HubSettings(**settings))
        hub.start()
        self.stack.callback(hub.stop)
        subscribe = hub.made.subscribe

        async def noted(*args: Any) -> Any:
            self.made.append(Blocking(self, await subscribe(*args)))
            return self.made[-1].made

        hub.made.subscribe = noted
        server.serve(hub)
        self.stack.callback(server.stop)
        return hub, server

    def connections(self, timeout: float = PATIENCE, **security: Any) -> Any:
        made = self.blocking(hubs.AsyncHubConnections)(timeout, **security)
        return self.stack.enter_context(made)

    def remote(self, address: str, timeout: float = PATIENCE) -> Any:
        made = self.blocking(hubs.AsyncRemoteHub)(address, timeout)
        self.stack.callback(made.close)
        return made

    def client(self, *addresses: str, timeout: float = PATIENCE) -> Any:
        return self.blocking(hubs.AsyncTopicClient)(self.connections(timeout), addresses)

    def hold(self, hub: Any, method: str) -> Hold:
        made, call = Hold(), getattr(hub.made, method)

        async def held(*args: Any) -> Any:
            await asyncio.to_thread(made.wait)
            return await call(*args)

        setattr(hub.made, method, held)
        self.stack.callback(made.open)
        return made


Face = Threads | Tasks

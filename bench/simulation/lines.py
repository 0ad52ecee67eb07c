"""The connections of hubs to their store, each of which can be cut separately."""

from __future__ import annotations

from typing import Final

from ...ops.errors import InvalidSettingError
from ...stores.urls import StoreURL
from ...testing.servers.processes import HOST, free_ports
from ...testing.servers.proxies import CLIENT, Proxies, Route

# The default ports of servers.
_PORTS: Final = {"etcd": 2379, "zookeeper": 2181, "zk": 2181}


class Lines:
    """A proxy between each hub and each member of the store. Close it at the end.

    Args:
        url: the store.
        hubs: the number of hubs, which are numbered from 0.

    Raises:
        InvalidSettingError: hubs cannot reach such a store through proxies.
    """

    def __init__(self, url: StoreURL, hubs: int) -> None:
        if url.scheme not in _PORTS:
            schemes = ", ".join(sorted(_PORTS))
            raise InvalidSettingError(
                f"hubs can be cut off from these stores only: {schemes}; leave cut and blink out "
                f"of the faults: {url.text}"
            )
        self._url = url
        members = [address.rpartition(":") for address in url.addresses(_PORTS[url.scheme])]
        fronts = iter(free_ports(hubs * len(members)))
        routes = [
            Route(next(fronts), int(port), CLIENT, hub, host=host)
            for hub in range(hubs)
            for host, _, port in members
        ]
        self._fronts = {
            hub: [route.front for route in routes if route.target == hub] for hub in range(hubs)
        }
        self._proxies = Proxies(routes, lambda *_: None)
        for hub in range(hubs):
            self._proxies.listen(hub)

    def url(self, hub: int) -> str:
        """Return the URL by which a hub reaches the store."""
        scheme, _, rest = self._url.text.partition("://")
        path = rest.removeprefix(",".join(self._url.hosts))
        fronts = ",".join(f"{HOST}:{front}" for front in self._fronts[hub])
        return f"{scheme}://{fronts}{path}"

    def cut(self, hub: int) -> None:
        """Hold back all bytes between a hub and the store."""
        self._proxies.cut(hub, clients=True)

    def restore(self, hub: int) -> None:
        """Release the bytes that were held back."""
        self._proxies.restore(hub)

    def close(self) -> None:
        """End all connections."""
        self._proxies.close()

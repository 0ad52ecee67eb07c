"""Hubs that are killed while they serve: a simulation with real processes, and its verdict.

Hubs and clients are processes of their own. They share a real etcd or ZooKeeper, and the logs of
the messages in a directory. While clients publish and subscribe, hubs are killed, paused, cut off
from the store, drained, stopped and started again. Every process records what it does, by the one
monotonic clock of the machine; afterwards, the records are checked against what hubs promise.

- ``plan``: what is simulated, validated
- ``events``: the records of all processes
- ``hub``: the process of a hub
- ``clients``: the process of the publishers and subscribers
- ``traffic``: counts what a hub asks of its store
- ``lines``: the connections of hubs to the store, which can be cut
- ``faults``: what happens to the hubs, and when
- ``marks``: reads the stored consume marks while they change
- ``history``: who owned which topic when, out of the records
- ``checks``: the verdicts
- ``live``: what the terminal shows meanwhile
- ``picture``: the ownership of topics over time, as SVG in an HTML file
- ``simulation``: runs all of it
- ``command``: ``batchkeeper hubs simulate``
"""

"""A simulation of failing hubs, with real processes, and its verdict.

Hubs and clients run as separate processes. They share a real etcd or ZooKeeper, and the message
logs in a directory. While clients publish and subscribe, hubs are killed, paused, cut off from the
store, drained, stopped and restarted. Every process records its actions, by the monotonic clock of
the machine. Afterwards, the records are checked against the promises of hubs.

- ``plan``: the settings of a simulation, validated
- ``events``: the records of all processes
- ``hub``: the process of a hub
- ``clients``: the process of the publishers and subscribers
- ``lines``: the connections of hubs to the store, which can be cut
- ``faults``: the faults of hubs, and their times
- ``history``: the owners of topics over time, from the records
- ``checks``: the verdicts
- ``live``: the live display in the terminal
- ``picture``: the ownership of topics over time, as SVG in an HTML file
- ``simulation``: runs a simulation
- ``command``: ``batchkeeper hubs simulate``
"""

"""The watches of a client.

- ``watches``: the watches, and the thread that delivers their events
- ``watch``: one of these watches
- ``placing``: the requests behind watches
- ``events``: turns events of nodes into events of values
"""

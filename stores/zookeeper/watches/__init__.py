"""The watches of a client.

- ``watches``: the watches, and the thread that delivers their events
- ``watch``: one of these watches
- ``deletions``: waits for the deletion of single nodes
- ``placing``: the requests behind watches
- ``events``: turns events of nodes into events of values
"""

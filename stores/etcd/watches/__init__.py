"""Changes as they happen and of the past, on one stream for all watches of a client.

- ``watches``: reports changes to all watches
- ``stream``: that stream, at one member
- ``watch``: one watch: which changes it reports, and where it goes on
- ``messages``: the messages of watch streams
- ``changes``: reads the changes of the past through a watch
"""

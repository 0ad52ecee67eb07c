"""The bytes of requests and answers, and the client that carries them.

- ``jute``: the bytes of requests and answers
- ``acls``: access control lists, as users write them and as bytes
- ``exchanges``: one request, with a sent mark, and its reply
- ``kazoo_client``: kazoo's client, with its traps closed
- ``errors``: the one table that interprets a failed request
- ``nodes``: the last known state of nodes, for guesses
"""

"""Calls to HBase's servers over its native RPC.

- ``messages``: the messages of the protocol
- ``fields``: the bytes of messages that are sent by the thousand
- ``cells``: the cells beside a message
- ``connection``: one connection to one server
- ``encryption``: TLS around the socket of a connection
- ``errors``: the one table that interprets a failed call
"""

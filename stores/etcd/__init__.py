"""The etcd back end, on the messages, stubs and channels of etcd3 and gRPC.

- ``backend``: turns batches into transactions, nested or flat, of a suitable size
- ``codecs``: each kind of operation: encode, parse, read back
- ``txn``: applies codecs to a whole batch
- ``protobuf``: the bytes of messages written by hand
- ``protos``: etcd3's messages on today's protobuf
- ``limits``: the limits of a server: probes and learns them, and returns them as ``Limits``
- ``estimates``: the size of the next request, estimated from recent answers
- ``write_ids``: the ids that make sending a write again safe
- ``txn_settling``: finds out the outcome of a transaction without an answer
- ``connection``: calls, failover, retries
- ``members``: credentials, logins, and the features of a member's version
- ``calls``: the end of calls that no caller waits for
- ``errors``: the one table that interprets a failed call
- ``scans``: pages of one revision, and deletes of trees
- ``page_ranges``: guesses where the range of the next page ends
- ``listing``: the names below a path in a flat space of keys
- ``splitting``: equal parts, by counting
- ``changes``: reads the changes of the past through a watch
"""

from .backend import EtcdBackend, connect

__all__ = ["EtcdBackend", "connect"]

"""The etcd back end, on the messages, stubs and channels of etcd3 and gRPC.

- ``backend``: batches to transactions: nested or flat, and how many operations at a time
- ``codecs``: each kind of operation: encode, parse, read back
- ``txn``: codecs over a whole batch
- ``protobuf``: the bytes of messages written by hand
- ``protos``: etcd3's messages on today's protobuf
- ``limits``: what a server takes in one request: probed, learned, turned into ``Limits``
- ``estimates``: how much to ask for, guessed from recent answers
- ``write_ids``: what makes sending a write again safe
- ``txn_settling``: what became of a transaction without an answer
- ``connection``: calls, failover, retries
- ``members``: who the client is, logging in, and what a member's version means
- ``calls``: the end of calls that no caller waits for
- ``errors``: the one table from a failed call to what it means
- ``scans``: pages of one revision, and deletes of trees
- ``page_ranges``: where the range of the next page ends
- ``listing``: the names below a path in a flat space of keys
- ``splitting``: equal parts, by counting
- ``changes``: a watch that ends
"""

from .backend import EtcdBackend, connect

__all__ = ["EtcdBackend", "connect"]

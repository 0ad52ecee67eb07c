"""The etcd back end, on the messages, stubs and channels of etcd3 and gRPC.

Each folder imports only those below it:

- ``backend``: hands batches of a suitable size to the writer and the reader
- ``writes``: batches of writes, each in one transaction, whose outcome is found out
- ``reads``: batches of reads, and walks over many keys
- ``watches``: changes as they happen
- ``session``: the client's session, and those of others
- ``sizes``: how much goes into one request
- ``wire``: calls to a cluster
"""

from .backend import EtcdBackend, connect

__all__ = ["EtcdBackend", "connect"]

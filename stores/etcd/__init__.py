"""The etcd back end, on the messages, stubs and channels of etcd3 and gRPC.

- ``backend``: hands batches of a suitable size to the writer and the reader
- ``batches``: executes a batch in parts
- ``reads``: executes batches of reads
- ``read_forms``: reads as ranges, and their answers; compiled
- ``writer``: executes batches of writes, and once more what needs another form
- ``plan``: which transaction executes a batch of writes, and what its response means
- ``groups``: the groups of a nested transaction, and how their responses read
- ``forms``: the table of writes: what is sent for each condition and effect, and how answers read
- ``hot``: the short way of frequent writes, compiled
- ``attempts``: a write that is sent again in another form, and a sequential put with its path
- ``guard``: finds out whether any client has a session
- ``counters``: the counters of sequential puts
- ``fields``: the parts of a transaction, as bytes
- ``protobuf``: the bytes of messages written by hand
- ``protos``: etcd3's messages on today's protobuf
- ``limits``: the limits of a server: probes and learns them, and returns them as ``Limits``
- ``estimates``: the size of the next request, estimated from recent answers
- ``write_ids``: the ids that make sending a write again safe
- ``lineage``: finds out whether etcd still has the history that the client has seen
- ``txn_settling``: finds out the outcome of a transaction without an answer
- ``requests``: sends transactions, and learns how large they may be
- ``connection``: calls, failover, retries
- ``members``: credentials, logins, and the features of a member's version
- ``calls``: the end of calls that no caller waits for
- ``errors``: the one table that interprets a failed call
- ``scans``: pages of one revision, and deletes of trees
- ``page_ranges``: guesses where the range of the next page ends
- ``listing``: the names below a path in a flat space of keys
- ``splitting``: equal parts, by counting
- ``changes``: reads the changes of the past through a watch
- ``watches``: reports changes as they happen, on one stream for all watches
- ``watch_stream``: that stream, at one member
- ``watch``: one watch: which changes it reports, and where it goes on
- ``watch_messages``: the messages of watch streams
- ``session``: the client's session: a lease, and the thread that keeps it alive
- ``keep_alives``: a stream of keep-alives for one lease at one member
"""

from .backend import EtcdBackend, connect

__all__ = ["EtcdBackend", "connect"]

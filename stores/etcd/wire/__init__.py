"""Calls to a cluster: members, messages, errors.

- ``connection``: calls, failover, retries
- ``members``: credentials, logins, and the features of a member's version
- ``patience``: how long to wait for an answer before asking another member
- ``cancelling``: the end of calls that no caller waits for
- ``errors``: the one table that interprets a failed call
- ``lineage``: finds out whether etcd still has the history that the client has seen
- ``batches``: executes a batch in parts, and reads answers that may not fit
- ``fields``: the parts of a transaction, as bytes
- ``protos``: etcd3's messages on today's protobuf
"""

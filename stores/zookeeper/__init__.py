"""ZooKeeper as a store, on kazoo's connection.

- ``backend``: opens the store and passes calls to the modules below
- ``fitness``: finds out whether the server does what the package relies on
- ``reads``: many reads in one multi-read
- ``writes``: a call in one multi, with an outcome for each operation
- ``batches``: the writes of one call, and what is known about them
- ``forms``: what each condition with each effect becomes in a multi
- ``plan``: distributes writes over multis
- ``transactions``: the ops of transactions, and which of their parts does not hold
- ``groups``: multis in the making
- ``write_ids``: the slots that make sending a multi again safe
- ``multi_settling``: sends multis until the outcome of each is known
- ``outcomes``: the answers of the requests in a multi that was applied
- ``sequences``: the names of sequential nodes whose answer was lost
- ``nodes``: the last known state of nodes, for guesses
- ``sizes``: finds the longest request that the server accepts
- ``packets``: packs reads into one request
- ``scans``: scans, recursive deletes and the revision
- ``walk``: walks the tree in the order of paths
- ``readahead``: the running reads of a walk
- ``splitting``: samples the tree, and chooses where to cut it
- ``removal``: removes children before parents
- ``session``: the events of the session, and proofs of how long it lives
- ``watches``: the watches of a client, and the thread that delivers their events
- ``watch``: one of these watches
- ``placing``: the requests behind watches
- ``events``: turns events of nodes into events of values
- ``connection``: requests and answers over the session, each with a certain outcome
- ``exchanges``: one request, with a sent mark, and its reply
- ``kazoo_client``: kazoo's client, with its traps closed
- ``jute``: the bytes of requests and answers
- ``errors``: the one table that interprets a failed request
"""

from .backend import connect

__all__ = ["connect"]

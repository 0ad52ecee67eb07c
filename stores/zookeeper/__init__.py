"""ZooKeeper as a store, on kazoo's connection.

- ``backend``: opens the store and passes calls to the modules below
- ``codecs``: each kind of operation: its request, and the answer from a node
- ``reads``: many reads in one multi-read
- ``writes``: a call in one multi, with an outcome for each operation
- ``plan``: distributes writes over multis
- ``write_ids``: the slots that make sending a multi again safe
- ``multi_settling``: sends multis until the outcome of each is known
- ``recovery``: the results of a multi whose answer was lost
- ``nodes``: the last known state of nodes, for guesses
- ``sizes``: finds the longest request that the server accepts
- ``packets``: packs reads into one request
- ``scans``: scans, recursive deletes and the revision
- ``walk``: walks the tree in the order of paths
- ``readahead``: the reads of a walk that are under way
- ``splitting``: samples the tree, and chooses where to cut it
- ``removal``: removes children before parents
- ``connection``: requests with a sent mark
- ``kazoo_client``: kazoo's client, with its traps closed
- ``jute``: the bytes of requests and answers
- ``answers``: answers that cannot be read
- ``errors``: the one table that interprets a failed request
"""

from .backend import connect

__all__ = ["connect"]

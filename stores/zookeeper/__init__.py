"""ZooKeeper as a store, on kazoo's connection.

- ``backend``: opens the store and hands calls to the modules below
- ``codecs``: each kind of operation: which step, and what a node says of it
- ``reads``: many reads in one multi-read
- ``writes``: a call in one multi, with one outcome each all the same
- ``plan``: writes to multis
- ``write_ids``: what makes sending a multi again safe: slots
- ``multi_settling``: sends multis until it is known what became of each
- ``recovery``: the results of a multi whose answer was lost
- ``nodes``: what the client last saw of paths, to guess by
- ``sizes``: how long a request may be
- ``packets``: reads that travel together
- ``scans``: what goes over many nodes
- ``walk``: the tree in the order of paths
- ``readahead``: the reads of a walk that are under way
- ``splitting``: a sample of the tree, and where to cut it
- ``removal``: children before parents
- ``connection``: requests with a sent mark
- ``kazoo_client``: kazoo's client, with its traps closed
- ``jute``: the bytes of requests and answers
- ``answers``: answers that cannot be read
- ``errors``: what a failed request means
"""

from .backend import connect

__all__ = ["connect"]

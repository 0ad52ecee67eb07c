"""ZooKeeper as a store, on kazoo's connection.

Each folder imports from those below it only; ``scans`` imports from all but ``watches``, and
``access`` from ``session`` and ``wire``.

- ``backend``: opens the store and passes calls to the modules below
- ``access``: access control lists of single nodes
- ``scans``: scans, recursive deletes and the revision
- ``watches``: the watches of a client
- ``writes``: a call in one multi, with an outcome for each operation
- ``reads``: many reads in one request, and walks over the tree
- ``session``: requests and answers over the session
- ``wire``: the bytes, kazoo's client, and what its errors mean
"""

from .backend import connect

__all__ = ["connect"]

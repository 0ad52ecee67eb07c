"""ZooKeeper as a store, on kazoo's connection.

``backend`` opens it. ``connection`` sends requests and knows what became of each, ``wire`` is how
they look, ``errors`` what the server's errors mean. ``reads`` and ``writes`` turn whole calls into
requests, ``plan`` puts writes together, ``nodes`` is what they remember of the tree. ``scans`` is
what goes over many nodes: ``walk`` and ``readahead``, ``splitting`` and ``removal``.
"""

from .backend import connect

__all__ = ["connect"]

"""The embedded store: a directory of this machine, on RocksDB through rocksdict.

- ``backend``: executes batches: reads, and writes with compare-and-set; opens a store
- ``drafts``: decides the writes of one call, those with options too
- ``commits``: group commit: the write lock, and one sync of the log for all waiting batches
- ``scans``: scans, splits and recursive deletes
- ``sessions``: lock files, which show that a session lives
- ``ephemerals``: removes or hides the ephemeral values of ended sessions
- ``database``: the open RocksDB, which stays open during calls
- ``files``: checks the files of a directory, and opens them
- ``layout``: the keys, and the formats of a store
- ``value_format``: the forms of a value
- ``walks``: iterators over keys, which end with their store
"""

from .backend import connect

__all__ = ["connect"]

"""The embedded store: a directory of this machine, on RocksDB through rocksdict.

- ``backend``: executes batches: reads, and writes with compare-and-set; opens a store
- ``commits``: group commit: the write lock, and one sync of the log for all waiting batches
- ``scans``: scans, splits and recursive deletes
- ``database``: the open RocksDB, which stays open during calls
- ``files``: checks the files of a directory, and opens them
- ``records``: the form of a value on the disk
- ``walks``: iterators over keys, which end with their store
"""

from .backend import connect

__all__ = ["connect"]

"""The embedded store: a directory of this machine, on RocksDB through rocksdict.

- ``backend``: executes batches: compare-and-set, group commit, scans, opening and closing
- ``files``: whose files a directory holds, and opening them
- ``records``: the form of a value on the disk
- ``walks``: iterators over keys, which end with their store
"""

from .backend import connect

__all__ = ["connect"]

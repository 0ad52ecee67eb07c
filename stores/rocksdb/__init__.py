"""The embedded store: a directory of this machine, on RocksDB through rocksdict.

- ``backend``: executes batches: compare-and-set, group commit, scans, opening and closing
- ``files``: checks the files of a directory, and opens them
- ``records``: the form of a value on the disk
- ``walks``: iterators over keys, which end with their store
"""

from .backend import connect

__all__ = ["connect"]

"""Reads: many in one request, and walks over the tree.

- ``reader``: many reads in one multi-read
- ``packets``: packs reads into one request
- ``walk``: walks the tree in the order of paths
- ``readahead``: the running reads of a walk
- ``splitting``: samples the tree, and chooses where to cut it
- ``removal``: removes children before parents
"""

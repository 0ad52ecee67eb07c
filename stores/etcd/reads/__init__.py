"""Batches of reads, and walks over many keys.

- ``reader``: executes batches of reads
- ``ranges``: reads as ranges, and their answers; compiled
- ``listing``: the names below a path in a flat space of keys
- ``pages``: pages of scans in columns, from etcd's answers; compiled
- ``scans``: pages of one revision, and deletes of trees
- ``page_ranges``: guesses where the range of the next page ends
- ``splitting``: equal parts, by counting
"""

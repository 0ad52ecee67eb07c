"""Batches of writes: each in one transaction, whose outcome is found out.

- ``writer``: executes batches of writes, and once more what needs another form
- ``plan``: which transaction executes a batch, and what its response means
- ``groups``: the groups of a nested transaction, and how their responses read
- ``forms``: the table of writes: what is sent for each condition and effect, and how answers read
- ``hot``: the short way of frequent writes, compiled
- ``pending``: a write that is sent again in another form, and a sequential put with its path
- ``counters``: the counters of sequential puts
- ``settling``: finds out the outcome of a transaction without an answer
- ``write_ids``: the ids that make sending a write again safe
"""

"""HBase: all operations but transactions, and no watches, in one table.

- ``backend``: opens the store, and passes its calls on
- ``layout``: the rows of the table
- ``forms``: what is sent to change one
- ``cluster``: the servers, and which of them has which region
- ``tables``: the table itself
- ``requests``: actions on rows, each with its own end
- ``writes``: each write once
- ``sessions``: shows others that this client lives, and ends those that do not
- ``sequences``: the counters of sequential puts
- ``scans``: walks over the rows, in pages
- ``reads``: gets, existence and children
- ``wire``: HBase's RPC
"""

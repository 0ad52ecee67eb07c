"""The commands of ``batchkeeper``, in groups. ``cli.py`` starts them.

- ``arguments``: arguments that several commands share, and the store that they name.
- ``named_stores``: the configuration file, and the stores that it names.
- ``output``: writes values, records and messages.
- ``values``: ``get``, ``put``, ``delete`` and ``ls``.
- ``walks``: ``scan``, ``count`` and ``delete -r``, which walk over all values under a path.
- ``acls``: ``acl``, which shows and sets access control lists.
- ``load``: ``load``, which puts the records of a file.
- ``transactions``: ``txn``, which executes the operations of a file together.
- ``completion``: ``completion``, which writes a shell's script for completion.
- ``watches``: ``watch``, which writes the changes under a path.
- ``locks``: ``locks``, which lists who holds a lock, and who waits for it.
- ``top``: ``top``, which shows a running client.
- ``top_view``: how it looks in a terminal.
- ``hubs``: ``hubs list``, ``topics``, ``drain``, ``watch`` and ``simulate``.
"""

"""Message hubs: the metadata of topics, on the public face of a store.

- ``names``: names of topics, subscribers and keys as parts of paths
- ``formats``: JSON objects with the version of their format
- ``errors``: the errors that only hubs have
- ``tables``: tables of keys with named fields, as BookKeeper's MetaStore has them
- ``ledgers``: the metadata of ledgers in a table, as BookKeeper keeps it
- ``managers``: the owners, the ledgers and the subscriptions of topics
- ``topics``: topic management: the hubs of a region, choosing one, and access rules
- ``serving``: a hub that serves topics, and the clients that find it
"""

from . import errors, ledgers, managers, serving, tables, topics
from .errors import *
from .ledgers import *
from .managers import *
from .names import escaped, unescaped
from .serving import *
from .tables import *
from .topics import *

__all__ = ["escaped", "unescaped"]
__all__ += errors.__all__
__all__ += ledgers.__all__
__all__ += managers.__all__
__all__ += serving.__all__
__all__ += tables.__all__
__all__ += topics.__all__

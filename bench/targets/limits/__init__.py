"""The client at its limit: how close it comes to the capacity of its server.

- ``rows.toml``: the ratios and their targets
- ``measuring``: tries the variants, and measures them in rounds
- ``variants``: what a variant is
- ``puts``: the client's side of most ratios
- ``plain``: the plain clients' side
- ``raw``: the raw side: prepared requests, replayed; on each store by ``raw_NAME``
- ``delays``: back ends that time calls, or only wait
- ``watched``: watches, and values that their clients leave behind
- ``locks``: locks without contenders, and with a hundred
- ``caches``: hits and updates
- ``counters``: numbers, in one process and in four
- ``failover``: elections whose leader is killed
- ``hubs``: topics that a hub claims, consume marks, and the subscriptions of a topic
- ``recovery``: the topics of a hub that is killed
- ``neighbour``: another client of the same server
- ``processes``: another process that takes part
"""

"""The client at its limit: how near it comes to what its server can do.

::

    python -m batchkeeper.bench.limits etcd
    python -m batchkeeper.bench.limits zookeeper --grid

measures the rows of :mod:`.rows` on a throw-away server of this machine, each against something
that was measured in the same rounds: the raw ceiling of its store, or its plain client.
"""

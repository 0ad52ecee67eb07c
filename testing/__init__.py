"""What helps to test: programs that use batchkeeper, stores in other packages, and this package.

::

    from batchkeeper.testing import FaultInjector

    faults = FaultInjector()
    store = batchkeeper.open_store("memory://test", wrap=faults)
    faults.lose_answer("put", "/topics/t1")

It is also a pytest plugin that runs the conformance suite on a store, which another package may
provide::

    pytest -p batchkeeper.testing --batchkeeper-store 'consul://127.0.0.1:8500/{unique}'

- ``faults``: the fault injector, and the back end whose calls can be held or fail.
- ``servers``: throw-away real servers on loopback. It is not imported with this package.
- ``contents``: puts the contents of a store, and reads them back.
- ``plugin``: the pytest plugin. Only pytest imports it.
- ``programs``: runs programs as separate processes.
- ``waiting``: helpers for waiting.

The suite itself, ``conformance``, is the folder ``tests/conformance`` of the repository. The
modules above have the same names there, so that its imports work in both places.
"""

from .faults import Call, Fault, FaultInjector, FaultyBackend, Hit, Injection, Target

__all__ = [
    "Call",
    "Fault",
    "FaultInjector",
    "FaultyBackend",
    "Hit",
    "Injection",
    "Target",
]

#: pytest reads this where the package is named as a plugin, with ``-p``.
pytest_plugins = ["batchkeeper.testing.plugin"]

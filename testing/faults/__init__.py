"""Deliberate faults: a wrapper around a back end that fails where a test wants it to.

``FaultInjector`` is for users who test their own programs; :mod:`batchkeeper.testing` exports it.
It chooses the faults of a ``FaultyBackend``, which can also be used directly with a plan.

- ``backend``: a back end whose calls can be held, fail or lose their answers, and whose connection
  can be cut.
- ``calls``: a call that reached the back end, and its fault.
- ``facets``: its scans and its history.
- ``injector``: arms faults for the operations that a test picks, and records what they hit.
- ``sessions``: its session, which can be lost.
- ``watches``: its watches, which can have gaps and end.
"""

from .backend import FaultyBackend
from .calls import Call, Fault, Method, Plan
from .injector import FaultInjector, Hit, Injection, Target

__all__ = [
    "Call",
    "Fault",
    "FaultInjector",
    "FaultyBackend",
    "Hit",
    "Injection",
    "Method",
    "Plan",
    "Target",
]

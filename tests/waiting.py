"""Helpers for waiting. They live in the package, because the conformance suite needs them there."""

from batchkeeper.testing.waiting import PATIENCE, error, result, soon, until

__all__ = ["PATIENCE", "error", "result", "soon", "until"]
